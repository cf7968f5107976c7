//! The mirror: a tree of files that behave as tracefs's do.
//!
//! Directories are tables of entries ([`files`]), one small file here for each file there, which turns reads into text
//! and writes into commands of `control::instance`. [`node`] numbers files and finds them by name, [`open`] is an open
//! file, [`whole`] the whole, which tests use as it is; [`fuse`] only passes the kernel's requests on to it ([`asked`] those by
//! ioctl(2)), [`tell`] what user events are on to programs, and [`daemon`] keeps it going.

mod asked;
mod closer;
mod daemon;
mod entry;
mod files;
mod fuse;
mod keeper;
mod node;
mod open;
mod tell;
mod whole;

pub use closer::{COMMAND as CLOSER, close as close_later, run as close_events};
pub use daemon::{Options, allow_descriptors, is_mirror, serve};
pub use whole::{Access, Attributes, Outcome, Owner, Tree};
