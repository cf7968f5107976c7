//! A filter resolved against an event: a boolean tree over tests of record fields.
//!
//! This is the interface between the language and code generation: `lang::filter` builds it through [`crate::plan`]'s
//! resolver, and the lowering translates it. Tests evaluate it a second time over record bytes and share no code with
//! the lowering.

use std::fmt;

/// A filter that an event accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// One comparison.
    Test(Test),
    /// All parts hold; evaluation goes from left to right and stops at the first that fails.
    And(Vec<Filter>),
    /// One part holds; evaluation goes from left to right and stops at the first that holds.
    Or(Vec<Filter>),
    /// Negation.
    Not(Box<Filter>),
    /// The result is known without reading the record.
    Const(bool),
}

/// One comparison of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// A number in the record.
    Number {
        /// Place of the number in the record.
        place: Place,
        /// Whether its sign extends.
        signed: bool,
        /// The comparison.
        op: NumberOp,
        /// The right operand: truncated to the field's size as in the kernel, sign- or zero-extended again by the
        /// field's sign, and stored as 64 bits.
        value: u64,
    },
    /// An address in the record is inside a function: `.function` fields. `low <= value < high`; `not` inverts.
    Function {
        /// Place of the address (8 bytes).
        place: Place,
        /// First address of the function.
        low: u64,
        /// First address after the function.
        high: u64,
        /// `!=` instead of `==`.
        not: bool,
    },
    /// Text.
    Text {
        /// Source of the text.
        text: Text,
        /// The pattern that it is compared with.
        pattern: Pattern,
        /// `!=` instead of `==` or `~`.
        not: bool,
    },
    /// The number of the CPU of the hit.
    Cpu {
        /// The comparison.
        op: NumberOp,
        /// The right operand.
        value: i32,
    },
    /// A set of CPUs, given by `CPUS{...}`. For a number or the current CPU, the only comparison is [`CpusOp::And`]
    /// (membership). In the kernel, a number never equals a set of several CPUs, and the resolver has replaced sets of
    /// one by plain numbers.
    Cpus {
        /// The number or mask that is compared with the set.
        subject: CpusSubject,
        /// The comparison.
        op: CpusOp,
        /// The CPUs of the set, sorted, each below the kernel's `nr_cpu_ids`.
        set: Vec<u32>,
    },
}

/// Consecutive bytes at a fixed place in the payload.
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
    /// `&`: at least one common bit
    And,
}

/// The source of a text, and its number of bytes (`len` in [`Pattern`]).
///
/// `len` is the size of an array, 0 for an array without a length, and 16 for the task's name. For `__data_loc` and
/// `__rel_loc` it is the upper half of the word, and for a pointer the number of bytes up to the NUL plus one.
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
    /// A pointer in the record. At most [`POINTER_TEXT_MAX`] bytes are fetched. After a fault the test fails, whether
    /// it is inverted or not.
    Pointer {
        /// Place of the pointer (8 bytes).
        place: Place,
        /// Whether it points into user memory (`.ustring`; syscall arguments need it explicitly).
        user: bool,
    },
    /// A char array without a length at the record's end (`char buf[]`), starting at this offset: `len` is 0.
    Open {
        /// Offset of the first byte.
        offset: u16,
    },
    /// The name of the current task, 16 bytes.
    Comm,
}

/// Largest number of bytes fetched from a `char *`: `USTRING_BUF_SIZE`, `kernel/trace/trace_events_filter.c`.
pub const POINTER_TEXT_MAX: usize = 1024;

/// The pattern that a text is compared with, by the kernel's rules (`regex_match_*()`,
/// `kernel/trace/trace_events_filter.c`).
///
/// The rules are surprising where `len` (see [`Text`]) is not the length of the string. For text `t` of `len` bytes and
/// pattern `p` of `n` bytes without NUL:
///
/// - `Full`: `len >= n`, and `t` and `p` are equal up to `len` bytes or to the NUL that ends both. A char array that
///   `p` fills to its last byte therefore matches without a NUL.
/// - `Front`: `len >= n`, and the first `n` bytes of `t` are `p` (a NUL before that is a mismatch).
/// - `Middle`: `p` is somewhere in the `len` bytes, even after a NUL.
/// - `End`: `len > n`, and `p` is right before the last of the `len` bytes. In a char array that is a fixed place:
///   `comm ~ "*sh"` tests bytes 13 and 14 and does not match `bash`.
/// - `Glob`: the glob matches `t` up to its first NUL or `len` bytes.
///
/// For a text whose `len` is 0, `Full`, `Front` and `Middle` read up to its first NUL, at any position (NULs follow
/// the record's end). `End` does not match it, and `Glob` treats it as empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// The whole text is this.
    Full(Vec<u8>),
    /// The text starts with this (`abc*`).
    Front(Vec<u8>),
    /// The text contains this (`*abc*`).
    Middle(Vec<u8>),
    /// The text ends with this (`*abc`).
    End(Vec<u8>),
    /// A glob of lib/glob.c.
    Glob(Vec<u8>),
}

/// The value that is compared with a set of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpusSubject {
    /// A number in the record that is a CPU, read without sign, of at most four bytes.
    Scalar {
        /// Place of the number in the record.
        place: Place,
    },
    /// A cpumask at a `__data_loc` word: as many 64-bit words as `nr_cpu_ids` bits need. The comparison covers all of
    /// them; words that are missing in the record have no CPU.
    Mask {
        /// Offset of the word.
        offset: u16,
    },
    /// The CPU of the hit.
    Current,
}

/// Comparison of a set of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpusOp {
    /// Equal (for a scalar, the set contains only that CPU).
    Eq,
    /// Not equal.
    Ne,
    /// They share a CPU.
    And,
}

impl Filter {
    /// The conjunction of `parts`, flattened and without parts that are constant.
    pub fn and(parts: Vec<Self>) -> Self {
        Self::joined(parts, false, Self::And)
    }

    /// The disjunction of `parts`, flattened and without parts that are constant.
    pub fn or(parts: Vec<Self>) -> Self {
        Self::joined(parts, true, Self::Or)
    }

    /// `settling` is the constant that decides the result alone; the other constant has no effect.
    fn joined(parts: Vec<Self>, settling: bool, many: fn(Vec<Self>) -> Self) -> Self {
        let mut kept = Vec::new();
        for part in parts {
            match part {
                Self::Const(value) if value == settling => {
                    // Tests have no side effects, so the preceding parts can be dropped.
                    return part;
                }
                Self::Const(_) => {}
                Self::Or(inner) if settling => kept.extend(inner),
                Self::And(inner) if !settling => kept.extend(inner),
                other => kept.push(other),
            }
        }
        match kept.len() {
            0 => Self::Const(!settling),
            1 => kept.remove(0),
            _ => many(kept),
        }
    }

    /// The negation. A second `!` cancels the first. Tests are not inverted: if the text of `p` cannot be read,
    /// `!(p == "x")` matches and `p != "x"` does not.
    #[must_use]
    pub fn negated(self) -> Self {
        match self {
            Self::Const(value) => Self::Const(!value),
            Self::Not(inner) => *inner,
            other => Self::Not(Box::new(other)),
        }
    }

    /// The tests in the order of the filter's text.
    pub fn tests(&self) -> Vec<&Test> {
        match self {
            Self::Test(test) => vec![test],
            Self::And(parts) | Self::Or(parts) => parts.iter().flat_map(Self::tests).collect(),
            Self::Not(inner) => inner.tests(),
            Self::Const(_) => Vec::new(),
        }
    }
}

/// The form of `tracer explain`: places instead of names, `@offset:size`.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |f: &mut fmt::Formatter<'_>, parts: &[Self], junction: &str| {
            for (index, part) in parts.iter().enumerate() {
                if index > 0 {
                    f.write_str(junction)?;
                }
                match part {
                    Self::And(_) | Self::Or(_) => write!(f, "({part})")?,
                    _ => write!(f, "{part}")?,
                }
            }
            Ok(())
        };
        match self {
            Self::Test(test) => write!(f, "{test}"),
            Self::And(parts) => joined(f, parts, " && "),
            Self::Or(parts) => joined(f, parts, " || "),
            Self::Not(inner) => write!(f, "!({inner})"),
            Self::Const(value) => write!(f, "{value}"),
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equal = |not: &bool| if *not { "!=" } else { "==" };
        match self {
            Self::Number { place, signed: true, op, value } => {
                write!(f, "s{}{place} {op} {}", place.size * 8, *value as i64)
            }
            Self::Number { place, signed: false, op, value } => {
                write!(f, "u{}{place} {op} {value:#x}", place.size * 8)
            }
            Self::Function { place, low, high, not } => {
                write!(f, "function{place} {} {low:#x}..{high:#x}", equal(not))
            }
            Self::Text { text, pattern, not } => write!(f, "{text} {} {pattern}", equal(not)),
            Self::Cpu { op, value } => write!(f, "cpu {op} {value}"),
            Self::Cpus { subject, op, set } => {
                let op = match op {
                    CpusOp::Eq => "==",
                    CpusOp::Ne => "!=",
                    CpusOp::And => "&",
                };
                match subject {
                    CpusSubject::Scalar { place } => write!(f, "u{}{place}", place.size * 8)?,
                    CpusSubject::Mask { offset } => write!(f, "mask@{offset}")?,
                    CpusSubject::Current => f.write_str("cpu")?,
                }
                write!(f, " {op} CPUs {set:?}")
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}:{}", self.offset, self.size)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(place) => write!(f, "char{place}"),
            Self::Dyn { offset } => write!(f, "data_loc@{offset}"),
            Self::Rel { offset } => write!(f, "rel_loc@{offset}"),
            Self::Pointer { place, user: false } => write!(f, "kernel*{place}"),
            Self::Pointer { place, user: true } => write!(f, "user*{place}"),
            Self::Open { offset } => write!(f, "open@{offset}"),
            Self::Comm => f.write_str("comm"),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, text) = match self {
            Self::Full(text) => ("full", text),
            Self::Front(text) => ("front", text),
            Self::Middle(text) => ("middle", text),
            Self::End(text) => ("end", text),
            Self::Glob(text) => ("glob", text),
        };
        write!(f, "{kind} \"{}\"", text.escape_ascii())
    }
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
