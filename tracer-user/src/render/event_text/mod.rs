//! Texts of events that tracefs prints by functions of its own instead of the print fmt.

pub(super) mod probe;
pub(super) mod syscall;
