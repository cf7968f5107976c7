//! The programs that are attached to the kernel for each instance, and how they follow the instance's wanted state.

mod apply;
mod attach_event;
pub(crate) mod bulk_enable;
pub(crate) mod bulk_functions;
pub(crate) mod desired;
pub(crate) mod enabled;
pub(crate) mod hook_choices;
pub(crate) mod off_thread;
mod options;
pub(crate) mod plan;
mod probe_counts;
pub(crate) mod reconcile;
pub(crate) mod session;
pub(crate) mod sessions;

pub use options::{AttachOptions, RecordingOptions};
