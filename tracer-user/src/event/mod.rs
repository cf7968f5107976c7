//! Events: their fields, types and offsets, as in `events/SYS/NAME/format`.
//!
//! A [`Format`] is the only description of a record; the filter language, the code generator, the record path and the
//! renderer share it. Building one needs only the text of a format file; [`crate::kernel`] finds those files.

mod catalogue;
pub mod dynamic;
mod field;
mod format;
mod ids;
pub mod irqs_off;
pub mod program;
pub mod synthetic;
pub mod user;

pub use catalogue::{Catalogue, Glob};
pub use field::{Field, FieldClass};
pub use format::{Format, FormatError};
pub use ids::{DEFINED_IDS, EventId, InstanceId, Slot, SystemId};
