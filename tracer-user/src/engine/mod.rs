//! The engine: the typed commands that every front end uses, and the state that they change.
//!
//! [`Engine`] owns the state. Every front end changes it by [`Engine::execute`] and then applies
//! [`Engine::take_effects`]. A refused command returns a [`CommandError`] and leaves the state that the kernel would
//! leave. A command that fails half-way for a reason that the kernel does not have is undone.
//!
//! | module | content |
//! |---|---|
//! | [`facts`], [`pages`] | facts of the running kernel |
//! | [`command`] | the entry for changes, its errors and effects |
//! | [`registry`] | events and their definitions |
//! | [`instances`] | the wanted state of each instance |
//! | [`attachments`] | the programs attached for each instance |
//! | [`histograms`] | histogram triggers |
//! | `dependents` | consumers of an event's records: event probes, histograms, emitted events |
//! | `operations` | changes that span several of these modules |
//! | [`user`], [`client_memory`] | user events and the memory of clients |
//! | [`records`], [`tasks`] | records on their way to readers, and names of threads |
//! | [`saved`] | the state that outlives the daemon |
//! | [`quota`], [`payers`], [`confine`] | limits for clients, and restrictions of the process |
//! | [`record`] | recordings, each in a private engine |
//! | [`hooks`], [`context`] | the choice of an event's hook, and how programs read the interrupted context |
//! | [`probes`], [`programs`] | hooks of dynamic events, and events of programs |

pub mod attachments;
pub mod client_memory;
pub mod command;
pub mod confine;
pub mod context;
mod core;
mod dependents;
pub mod facts;
pub mod handlers;
pub mod histograms;
pub mod hooks;
pub mod instances;
mod operations;
pub mod pages;
pub mod payers;
pub mod probes;
pub mod programs;
pub mod quota;
pub mod record;
pub mod records;
pub mod registry;
pub mod saved;
mod scheduler;
pub mod tasks;
pub mod user;
mod verify;

pub use self::core::Engine;
pub use command::{
    Client, Command, HoldCommand, InstanceCommand, RecordCommand, Reply, Request,
    effects::{Effects, Saving},
    error::{CommandError, ErrorKind},
};
#[cfg(any(test, feature = "internals"))]
pub use dependents::emission::emit;
pub use dependents::emission::{emission, is_published, publish_at};
pub use instances::List;
pub use operations::{
    definitions::{definitions, profile},
    marks::prepare_marks,
};
pub use scheduler::{Cooperative, LongestStep, Scheduler};
