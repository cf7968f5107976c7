//! The state of each instance: what is enabled, filters, triggers, threads, options, buffers and errors.

pub(in crate::engine) mod awaited;
pub(in crate::engine) mod errors;
pub(in crate::engine) mod filter;
pub(in crate::engine) mod inject;
pub(in crate::engine) mod instance;
pub(in crate::engine) mod options;
pub(in crate::engine) mod select;
pub(in crate::engine) mod status;
pub(in crate::engine) mod table;
pub(in crate::engine) mod thread_lists;
pub(in crate::engine) mod trigger;
pub(in crate::engine) mod trigger_list;
pub mod words;

pub use errors::ErrorLog;
pub use instance::{Instance, Size};
pub use options::TraceOptions;
pub use select::Selector;
pub use status::Status;
pub use table::Instances;
pub use thread_lists::List;
