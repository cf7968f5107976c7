//! Closing links and perf events without blocking their owner: in bulk, in background threads, or in the guard
//! process.

pub(in crate::attach) mod guard;
pub(in crate::attach) mod opening;
pub(in crate::attach) mod perf_event;
pub(in crate::attach) mod unlink;
