//! The events: the static ones of the kernel, and those of definitions, programs and clients.

pub(crate) mod catalogue;
mod defined_ids;
pub(crate) mod dynamic;
pub(crate) mod event_registry;
pub(crate) mod profile;
pub(crate) mod program_events;
pub(crate) mod published;
pub(crate) mod synthetic;
pub(crate) mod table;

pub use catalogue::{Events, IDS as EVENT_IDS};
pub use dynamic::DynamicEvents;
pub use event_registry::EventRegistry;
pub use program_events::{ProgramEvents, program_files};
pub use synthetic::SyntheticEvents;
