//! Instances: what each has on, its filters, threads, options, buffers and errors, and the typed commands that change
//! them. Every front end, the mounted tree first of all, goes through [`Mirror::apply`] and reads through the rest.
//!
//! A command that is refused says so with the kernel's error number and leaves the state that the kernel would leave;
//! one that fails half-way for reasons of ours is taken back.

mod aside;
mod attached;
mod boot;
mod bulk_enable;
mod bulk_functions;
pub mod catalogue;
mod choice;
mod command;
mod counting;
mod deferred_close;
mod dependents;
mod dynamic;
mod enabled;
mod errors;
mod hist;
mod inject;
mod made;
pub mod mark;
mod marks;
mod mirror;
mod modules;
mod names;
mod objects;
mod options;
mod profile;
mod programs;
mod published;
mod record_intake;
mod saved;
mod select;
mod session;
mod stack;
mod state;
mod synthetic;
mod tables;
mod text;
mod trigger;
mod trigger_list;
mod turns;
pub mod user;
pub mod words;

pub use boot::Boot;
pub use catalogue::{Events, IDS as EVENT_IDS};
pub use command::{Command, List};
pub use errors::ErrorLog;
pub use hist::Seen;
pub use marks::Marks;
pub use mirror::Mirror;
pub use options::TraceOptions;
pub use programs::program_files;
pub use saved::{BYTES_MAX as SAVED_MAX, Saved, SavedError, SavedInstance};
pub use select::Selector;
pub use state::{Instance, Size};
pub use tables::HistFault;
pub use text::{Filled, Lines, Pages, Pipe};
pub use turns::{Longest, Others};
