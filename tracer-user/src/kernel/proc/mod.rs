//! Files of `/proc`, read as bytes where users choose names in them.

pub mod memory;
pub mod mounts;
mod thread;

pub use thread::ThreadStatus;
