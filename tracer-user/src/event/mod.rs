//! Events: their fields, types and offsets, as `events/SYS/NAME/format` gives them.
//!
//! A [`Format`] is the one description of a record that the filter language, the code generator, the record
//! path and the renderer share. Building one needs only the text of a format file; finding those files is
//! [`crate::kernel`]'s work.

mod catalogue;
pub mod dynamic;
mod field;
mod format;
pub mod program;
pub mod synthetic;
pub mod user;

pub use catalogue::{Catalogue, Glob};
pub use field::{Field, FieldClass};
pub use format::{Format, FormatError};
