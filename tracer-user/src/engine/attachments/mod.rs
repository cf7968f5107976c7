//! What is attached to the kernel for each instance, and how that follows what the instances want.

pub(in crate::engine) mod aside;
pub(in crate::engine) mod bulk_enable;
pub(in crate::engine) mod bulk_functions;
pub(in crate::engine) mod count_ledger;
pub(in crate::engine) mod deferred_close;
pub(in crate::engine) mod dependents;
pub(in crate::engine) mod desired;
pub(in crate::engine) mod enabled;
pub(in crate::engine) mod event_config;
pub(in crate::engine) mod hook_choices;
pub(in crate::engine) mod probes;
pub(in crate::engine) mod ring_queue;
pub(in crate::engine) mod session;
pub(in crate::engine) mod sessions;
