//! The result of lowering, and its errors.

use crate::code::asm::Function;

/// Generated functions and their requirements on the template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The function that the template calls, then the functions that it calls itself.
    pub functions: Vec<Function>,
    /// Requirements at run time.
    pub needs: Needs,
    /// Size of the payload in bytes if it is the same for all records; None for a filter.
    pub size: Option<usize>,
}

/// The requirements of a filter on its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The second argument points to scratch memory.
    pub scratch: bool,
    /// Flags and preempt count are filled in the third argument.
    pub flags: bool,
    /// The filter uses the third argument or calls a helper: it needs the identity of the task, or costs more than
    /// reading it.
    pub more: bool,
}

/// The reason why a plan cannot be lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// A raw tracepoint has no source for these bytes of the record.
    #[error("the hook gives no value for bytes {offset} to {end} of the record")]
    NoSource {
        /// First byte.
        offset: usize,
        /// First byte after them.
        end: usize,
    },
    /// A number that is not 1, 2, 4 or 8 bytes wide.
    #[error("a number of {0} bytes")]
    NumberSize(usize),
    /// Text or data at a varying place, at a hook that has no record.
    #[error("the hook has no data after the fixed fields")]
    NoData,
    /// A record longer than any payload.
    #[error("a record of {0} bytes")]
    RecordSize(usize),
}
