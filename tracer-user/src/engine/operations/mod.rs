//! Functions that change several components of the engine, and so get the whole engine.

pub(in crate::engine) mod buffers;
pub(in crate::engine) mod changes;
pub(in crate::engine) mod definitions;
pub(in crate::engine) mod deleted_events;
pub(in crate::engine) mod lifecycle;
pub(in crate::engine) mod marks;
pub(in crate::engine) mod modules;
pub(in crate::engine) mod probe_counts;
