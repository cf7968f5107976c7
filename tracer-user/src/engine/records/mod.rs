//! Records on their way from the rings to readers: intake, marks, names of threads, stacks, text.

pub(crate) mod common;
pub(crate) mod mark;
pub(crate) mod marks;
pub(crate) mod names;
pub(crate) mod objects;
mod pages;
pub(crate) mod record_intake;
pub(crate) mod record_stream;
pub(crate) mod stack;
pub(crate) mod text;

pub use mark::{Mark, Writer};
pub use marks::Marks;
pub use pages::Pages;
pub use record_intake::{collect_names, leave_unread};
pub use text::{Filled, LineContext, Lines, Pipe};
