//! The events: the static ones of the kernel, and those of definitions, programs and clients.

pub(in crate::engine) mod catalogue;
mod defined_ids;
pub(in crate::engine) mod dynamic;
pub(in crate::engine) mod event_registry;
pub(in crate::engine) mod profile;
pub(in crate::engine) mod program_events;
pub(in crate::engine) mod published;
pub(in crate::engine) mod synthetic;
pub(in crate::engine) mod table;

pub use catalogue::{Events, IDS as EVENT_IDS};
pub use dynamic::DynamicEvents;
pub use event_registry::EventRegistry;
pub use program_events::{ProgramEvents, program_files};
pub use synthetic::SyntheticEvents;
