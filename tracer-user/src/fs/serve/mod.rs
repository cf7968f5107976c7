//! Requests of the kernel. [`fuse`] receives them and queues jobs; [`owner`] runs the jobs on the thread that owns
//! the tree.
//!
//! [`hub`] is the state that the threads share. [`opening`], [`reads`] and [`ioctl`] serve requests of several steps.
//! [`waits`] keeps reads and polls that are not ready, [`signals`] ends interrupted ones, [`lookups`] reads facts for
//! them, [`notify`] and [`streams`] notify programs and the kernel of changes, and [`state_file`] saves the settings.

pub(crate) mod errno;
pub(crate) mod fuse;
pub(crate) mod hub;
pub(crate) mod ioctl;
pub(crate) mod lookups;
pub(crate) mod notify;
pub(crate) mod opening;
pub(crate) mod owner;
pub(crate) mod reads;
mod signals;
pub(crate) mod state_file;
pub(crate) mod streams;
pub(crate) mod texts;
mod waits;
