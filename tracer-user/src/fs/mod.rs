//! The mirror: a tree of files that behave as tracefs's do.
//!
//! Directories are tables of entries ([`files`]), one small file here for each file there, which turns reads into text
//! and writes into commands of `engine::instance`. [`node`] numbers files and finds them by name, [`open`] is an open
//! file, [`whole`] the whole, which tests use as it is; [`fuse`] only passes the kernel's requests on to the thread that owns it
//! ([`owner`]; [`reads`] and [`waits`] have what a read may wait for, [`streams`] what is read by splice(2), [`asked`] the
//! requests by ioctl(2)), [`tell`] what user events are on to programs, [`place`] is where it is mounted, and
//! [`daemon`] keeps it going.

mod daemon;
mod dispatch;
mod entry;
mod files;
mod fuse;
mod helpers;
mod hub;
mod ioctl;
mod lookups;
mod node;
mod notify;
mod open;
mod opener;
mod opening;
mod owner;
mod place;
mod reads;
mod reaper;
mod state_file;
mod streams;
mod waits;

pub use daemon::{Heartbeat, Options, allow_descriptors, serve};
pub use dispatch::{Access, Attributes, Outcome, Owner, Tree};
pub use helpers::Helpers;
pub use opener::{COMMAND as OPENER, run as open_files};
pub use place::is_mirror;
pub use reaper::{COMMAND as CLOSER, Closer, run as close_events};
