//! Functions that change several components of the engine, and so get the whole engine.

pub(crate) mod buffers;
pub(crate) mod changes;
pub(crate) mod definitions;
pub(crate) mod deleted_events;
pub(crate) mod lifecycle;
pub(crate) mod marks;
pub(crate) mod modules;
pub(crate) mod probe_counts;
