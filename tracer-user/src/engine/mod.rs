//! What is traced: the typed commands that every front end uses, and the state that they change.
//!
//! [`Engine`] owns all of it. Every front end, the mounted tree first of all, changes it by [`Engine::apply`]. A command that is refused
//! returns the kernel's error number and leaves the state that the kernel would leave; a command that fails half-way for reasons of this
//! program is undone.
//!
//! | module | content |
//! |---|---|
//! | [`facts`], [`pages`] | what is known of the running kernel |
//! | [`registry`] | events and their definitions |
//! | [`instances`] | what each instance wants |
//! | [`attachments`] | what is attached to the kernel |
//! | [`histograms`] | histogram triggers |
//! | [`user`], [`client_memory`] | user events and the memory of clients |
//! | [`records`], [`tasks`] | records on their way to readers, and names of threads |
//! | [`saved`] | the state that outlives the daemon |
//! | [`quota`], [`confine`] | what clients may use, and what the process may do |
//! | [`recorder`], [`hist`], [`selection`], [`hooks`] | recordings and histograms of the command line |

pub mod attachments;
pub mod client_memory;
mod command;
pub mod confine;
mod core;
pub mod facts;
pub mod hist;
pub mod histograms;
pub mod hooks;
pub mod instances;
mod operations;
pub mod pages;
pub mod probes;
pub mod programs;
pub mod quota;
pub mod recorder;
pub mod records;
pub mod registry;
pub mod saved;
mod scheduler;
pub mod selection;
pub mod tasks;
pub mod user;
mod verify;

pub use self::core::Engine;
pub use command::Command;
pub use instances::List;
pub use scheduler::{Cooperative, LongestStep, Scheduler};
