//! A filter resolved against an event: a boolean tree over tests of record fields.
//!
//! This is the seam between the language (`lang::filter`, which builds it through [`crate::plan`]'s resolver)
//! and code generation; tests evaluate it a second time over record bytes and share no code with the lowering.

use std::fmt;

/// A filter that an event accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// One comparison.
    Test(Test),
    /// All hold; evaluated left to right, stops at the first that does not.
    And(Vec<Filter>),
    /// One holds; evaluated left to right, stops at the first that does.
    Or(Vec<Filter>),
    /// The opposite.
    Not(Box<Filter>),
    /// Known without looking at the record.
    Const(bool),
}

/// One comparison of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// A number in the record.
    Number {
        /// Where it lies.
        place: Place,
        /// Whether its sign extends.
        signed: bool,
        /// The comparison.
        op: NumberOp,
        /// The other side; truncated to the field's size as the kernel truncates it, sign- or zero-extended
        /// again by the field's sign, kept as 64 bits.
        value: u64,
    },
    /// An address in the record lies in a function: `.function` fields. `low <= value < high`; `not` inverts.
    Function {
        /// Where the address lies (8 bytes).
        place: Place,
        /// First address of the function.
        low: u64,
        /// First address behind it.
        high: u64,
        /// `!=` instead of `==`.
        not: bool,
    },
    /// Text.
    Text {
        /// Where the text comes from.
        text: Text,
        /// What it must look like.
        pattern: Pattern,
        /// `!=` instead of `==` or `~`.
        not: bool,
    },
    /// The number of the CPU that the hit is on.
    Cpu {
        /// The comparison.
        op: NumberOp,
        /// The other side.
        value: i32,
    },
    /// A set of CPUs, given by `CPUS{...}`.
    Cpus {
        /// What is compared with the set.
        subject: CpusSubject,
        /// The comparison.
        op: CpusOp,
        /// The CPUs of the set, sorted.
        set: Vec<u32>,
    },
}

/// A run of bytes at a fixed place in the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Offset in bytes from the payload's start, common fields included.
    pub offset: u16,
    /// Size in bytes: 1, 2, 4 or 8 for numbers.
    pub size: u16,
}

/// Comparison of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumberOp {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`, by the field's sign
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
    /// `&`: some bit in common
    And,
}

/// Where text comes from. In all of them the kernel's rule holds that a NUL ends the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Text {
    /// A char array in the record.
    Static(Place),
    /// A `__data_loc` word at this offset: length << 16 | offset from the payload's start.
    Dyn {
        /// Offset of the word.
        offset: u16,
    },
    /// A `__rel_loc` word at this offset: the offset it holds counts from the word's end.
    Rel {
        /// Offset of the word.
        offset: u16,
    },
    /// A pointer in the record; at most [`POINTER_TEXT_MAX`] bytes are fetched, and a fault means no match
    /// (of either sense).
    Pointer {
        /// Where the pointer lies (8 bytes).
        place: Place,
        /// Whether it points into user memory (`.ustring`, and syscall arguments do need it said).
        user: bool,
    },
    /// The name of the current task, 16 bytes.
    Comm,
}

/// Bytes fetched at most from behind a `char *`: `USTRING_BUF_SIZE`, kernel/trace/trace_events_filter.c.
pub const POINTER_TEXT_MAX: usize = 1024;

/// What text is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// The whole text is this.
    Full(Vec<u8>),
    /// The text starts with this (`abc*`).
    Front(Vec<u8>),
    /// The text holds this (`*abc*`).
    Middle(Vec<u8>),
    /// The text ends with this (`*abc`).
    End(Vec<u8>),
    /// A glob of lib/glob.c.
    Glob(Vec<u8>),
}

/// What a set of CPUs is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpusSubject {
    /// A number in the record that is a CPU.
    Scalar {
        /// Where it lies.
        place: Place,
        /// Whether its sign extends.
        signed: bool,
    },
    /// A cpumask behind a `__data_loc` word.
    Mask {
        /// Offset of the word.
        offset: u16,
        /// Whether it is a `__rel_loc` word.
        relative: bool,
    },
    /// The CPU the hit is on.
    Current,
}

/// Comparison of a set of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpusOp {
    /// Equal (a scalar: the set is just that CPU).
    Eq,
    /// Not equal.
    Ne,
    /// They share a CPU.
    And,
}

impl fmt::Display for NumberOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eq => "==",
            Self::Ne => "!=",
            Self::Lt => "<",
            Self::Le => "<=",
            Self::Gt => ">",
            Self::Ge => ">=",
            Self::And => "&",
        })
    }
}
