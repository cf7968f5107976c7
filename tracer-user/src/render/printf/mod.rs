//! The kernel's printf (lib/vsprintf.c): conversions, numbers, strings and the `%p` extensions.
//!
//! It differs from C's printf in ways that a trace shows. Precision does not disable zero padding of numbers, `%c` has
//! a width, strings at bad addresses print a word, and `%p` has many extensions.

mod errno;
pub(super) mod hex;
pub(super) mod number;
pub(super) mod pointer;
pub(super) mod spec;
