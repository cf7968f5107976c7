//! Closing links and perf events without blocking their owner: in bulk, in background threads, or in the guard
//! process.

pub(crate) mod guard;
pub(crate) mod links;
pub(crate) mod opening;
pub(crate) mod perf_event;
pub(crate) mod unlink;
