//! Records on their way from the rings to readers: intake, marks, names of threads, stacks, text.

pub(in crate::engine) mod mark;
pub(in crate::engine) mod marks;
pub(in crate::engine) mod names;
pub(in crate::engine) mod objects;
mod pages;
pub(in crate::engine) mod record_intake;
pub(in crate::engine) mod record_stream;
pub(in crate::engine) mod stack;
pub(in crate::engine) mod text;

pub use mark::{Mark, Writer};
pub use marks::Marks;
pub use pages::Pages;
pub use record_intake::{collect_names, leave_unread};
pub use record_stream::ShownRecord;
pub use text::{Filled, LineContext, Lines, Pipe};
