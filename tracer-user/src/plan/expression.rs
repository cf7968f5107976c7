//! Numbers that are computed from a raw tracepoint's arguments and from memory that they point to.

pub use crate::kernel::handler::{Comparison, Operation};

/// Operations within operations, at most. Each takes eight bytes of a program's stack.
pub const DEPTH_MAX: usize = 10;

/// A number of eight bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A fixed number.
    Const(u64),
    /// An argument as it is passed.
    Arg(u8),
    /// A number in kernel memory, found like the bytes of [`Source::Memory`](super::source::Source::Memory), with zeros above
    /// it.
    Memory {
        /// Number of the argument.
        arg: u8,
        /// Byte offsets, at least one.
        path: Vec<u32>,
        /// Bytes that are read (1, 2, 4 or 8).
        width: u8,
    },
    /// A number in kernel memory at an address that is computed, with zeros above it.
    Load {
        /// The address, without the offset.
        from: Box<Self>,
        /// Byte offset.
        offset: i32,
        /// Bytes that are read (1, 2, 4 or 8).
        width: u8,
    },
    /// The low bytes of a number, extended to eight.
    Extended {
        /// The number.
        of: Box<Self>,
        /// How many bytes (1, 2 or 4).
        size: u8,
        /// Whether the sign extends; otherwise zeros do.
        signed: bool,
    },
    /// The result of an operation of `size` bytes (1, 2, 4 or 8), with zeros above them. The operands have zeros above theirs.
    Operation {
        /// The operation.
        operation: Operation,
        /// Bytes of the operands and of the result.
        size: u8,
        /// The operands.
        operands: Box<[Self; 2]>,
    },
    /// One of two numbers.
    Choice {
        /// Decides for the first number if it holds.
        condition: Box<Condition>,
        /// The numbers.
        numbers: Box<[Self; 2]>,
    },
}

/// A condition. The operands have zeros above their size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The comparison.
    pub comparison: Comparison,
    /// The result of the comparison with which the condition holds.
    pub holds_if: bool,
    /// Bytes of the operands (1, 2, 4 or 8).
    pub size: u8,
    /// The operands.
    pub operands: [Expression; 2],
}

impl Expression {
    /// Calls a function with each place in memory that is read: argument, path and bytes.
    pub fn each_memory(&self, to: &mut impl FnMut(u8, &[u32], u8)) {
        match self {
            Self::Const(_) | Self::Arg(_) => {}
            Self::Memory { arg, path, width } => to(*arg, path, *width),
            Self::Load { from: of, .. } | Self::Extended { of, .. } => of.each_memory(to),
            Self::Operation { operands, .. } => operands.iter().for_each(|operand| operand.each_memory(to)),
            Self::Choice { condition, numbers } => {
                condition.operands.iter().chain(numbers.iter()).for_each(|number| number.each_memory(to));
            }
        }
    }

    /// How deep operations are within operations.
    pub fn depth(&self) -> usize {
        let deepest = |operands: &[Self]| operands.iter().map(Self::depth).max().unwrap_or(0);
        match self {
            Self::Const(_) | Self::Arg(_) | Self::Memory { .. } => 0,
            Self::Load { from, .. } => 1 + from.depth(),
            Self::Extended { of, .. } => of.depth(),
            Self::Operation { operands, .. } => 1 + deepest(&**operands),
            Self::Choice { condition, numbers } => 1 + deepest(&condition.operands).max(deepest(&**numbers)),
        }
    }
}
