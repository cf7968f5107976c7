//! Changes of several components of the engine. Their types borrow the whole engine.

pub(crate) mod buffers;
pub(crate) mod changes;
pub(crate) mod definitions;
pub(crate) mod deleted_events;
pub(crate) mod lifecycle;
pub(crate) mod marks;
pub(crate) mod modules;
