//! Instances: what each has on, its filters, threads, options, buffers and errors, and the typed commands that change
//! them. Every front end, the mounted tree first of all, goes through [`Mirror::apply`] and reads through the rest.
//!
//! A command that is refused says so with the kernel's error number and leaves the state that the kernel would leave;
//! one that fails half-way for reasons of ours is taken back.

mod aside;
mod boot;
pub mod catalogue;
mod choice;
mod collect;
mod command;
mod counting;
mod dynamic;
mod enabled;
mod errors;
mod followers;
mod hist;
mod hung;
mod inject;
mod live;
mod made;
mod many;
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
mod rest;
mod saved;
mod select;
mod stack;
mod standing;
mod state;
mod synthetic;
mod tables;
mod text;
mod together;
mod trigger;
mod turns;
pub mod user;
pub mod words;

pub use boot::Boot;
pub use catalogue::IDS as EVENT_IDS;
pub use command::{Command, List};
pub use errors::ErrorLog;
pub use hist::Seen;
pub use marks::Marks;
pub use mirror::{Mirror, TOP};
pub use options::TraceOptions;
pub use programs::program_files;
pub use saved::{BYTES_MAX as SAVED_MAX, Saved, SavedError, SavedInstance};
pub use select::Selector;
pub use state::{Instance, Size};
pub use tables::HistFault;
pub use text::{Filled, Lines, Pages, Pipe};
pub use turns::{Longest, Others};
