//! Files of `/proc`, read as bytes where users choose names in them.

pub mod cgroups;
pub mod memory;
pub mod mounts;
pub mod syscall;
mod thread;

pub use thread::{ThreadStatus, process_of};
