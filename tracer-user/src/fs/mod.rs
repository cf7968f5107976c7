//! The mirror: a directory tree whose files behave as the files of tracefs do.
//!
//! Each folder uses only the folders before it, and all use `threads`:
//!
//! - `files`: the directories as tables of files. A file turns reads into text and writes into commands of
//!   `engine::command`.
//! - `tree`: the numbers and names of files, open files, and [`Tree`], which works without FUSE.
//! - `helpers`: the processes that do work for a daemon.
//! - `serve`: FUSE requests, the thread that owns the tree, and reads that wait.
//! - `daemon`: mounting, the main loop and the end.

mod daemon;
mod files;
mod helpers;
mod serve;
mod threads;
mod tree;

pub use daemon::{Heartbeat, Options, Reload, descriptors::allow_descriptors, place::is_mirror, serve};
pub use helpers::{
    Helpers,
    opener::{COMMAND as OPENER, run as open_files},
    reaper::{COMMAND as CLOSER, Closer, run as close_events},
    state_writer::{COMMAND as STATE_WRITER, DIR as STATE_DIR, StateLifetime, run as write_state},
};
pub use tree::{
    attributes::{Attributes, Owner},
    dispatch::Tree,
    open::{Access, Outcome},
};
