//! The programs that are attached to the kernel for each instance, and how they follow the instance's wanted state.

pub(in crate::engine) mod aside;
mod attach_event;
pub(in crate::engine) mod bulk_enable;
pub(in crate::engine) mod bulk_functions;
pub(in crate::engine) mod desired;
pub(in crate::engine) mod enabled;
pub(in crate::engine) mod hook_choices;
mod options;
pub(in crate::engine) mod reconcile;
pub(in crate::engine) mod session;
pub(in crate::engine) mod sessions;

pub use options::{AttachOptions, RecordingOptions};
