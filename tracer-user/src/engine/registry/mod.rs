//! The events: the static ones of the kernel and those that definitions, programs and clients make.

pub(in crate::engine) mod catalogue;
pub(in crate::engine) mod dynamic;
pub(in crate::engine) mod made;
pub(in crate::engine) mod modules;
pub(in crate::engine) mod profile;
pub(in crate::engine) mod program_events;
pub(in crate::engine) mod published;
pub(in crate::engine) mod synthetic;

pub use catalogue::{Events, IDS as EVENT_IDS};
pub use program_events::program_files;
