//! The state of each instance: what is enabled, filters, triggers, threads, options, buffers and errors.

pub(crate) mod awaited;
pub(crate) mod change;
pub(crate) mod errors;
pub(crate) mod filter;
pub(crate) mod inject;
pub(crate) mod instance;
pub(crate) mod options;
pub(crate) mod select;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod thread_lists;
pub(crate) mod trigger;
pub(crate) mod trigger_list;
pub mod words;

pub use errors::ErrorLog;
pub use instance::{Instance, Size};
pub use options::TraceOptions;
pub use select::Selector;
pub use status::Status;
pub use table::Instances;
pub use thread_lists::List;
