//! Requests of the kernel. [`fuse`] receives them and queues jobs; [`owner`] runs the jobs on the thread that owns
//! the tree.
//!
//! [`hub`] is the state that the threads share. [`opening`], [`reads`] and [`ioctl`] serve requests of several steps.
//! [`waits`] keeps reads and polls that are not ready, [`signals`] ends interrupted ones, [`lookups`] reads facts for
//! them, [`notify`] and [`streams`] notify programs and the kernel of changes, and [`state_file`] saves the settings.

pub(in crate::fs) mod errno;
pub(in crate::fs) mod fuse;
pub(in crate::fs) mod hub;
pub(in crate::fs) mod ioctl;
pub(in crate::fs) mod lookups;
pub(in crate::fs) mod notify;
pub(in crate::fs) mod opening;
pub(in crate::fs) mod owner;
pub(in crate::fs) mod reads;
mod signals;
pub(in crate::fs) mod state_file;
pub(in crate::fs) mod streams;
pub(in crate::fs) mod texts;
mod waits;
