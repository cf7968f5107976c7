//! The steps that fetch a value: the result of checking an argument, and the input of planning and code generation.
//!
//! The steps are the kernel's own (`enum fetch_op`), because their number decides which arguments are valid. A program
//! has a source, dereferences and a store, then optionally a bit field and a loop over an array. The store replaces a
//! final dereference.

use std::fmt::{self, Display};

use super::OPS_MAX;
use crate::event::Field;
use crate::event::dynamic::latin1;

/// The steps of a value, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    ops: Vec<Op>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A symbol with an optional offset. The next step loads its address as an immediate value.
    Symbol(Vec<u8>),
    /// Loads the initial value.
    Load(Source),
    /// Reads the word at the value plus an offset.
    Deref {
        /// Whether the memory is in user space.
        user: bool,
        /// Offset in bytes.
        offset: i32,
    },
    /// Makes the address of a variable of each CPU that of this CPU's.
    ThisCpu,
    /// Stores the value into the record.
    Store {
        /// Kind of the store.
        what: Store,
        /// Offset from the value in bytes, for a store from memory.
        offset: i32,
        /// Size of an element in bytes.
        size: u32,
    },
    /// Extracts bits of the stored value: shifts left, then right with the sign of the type, in a word of `size` bytes.
    Bits {
        /// Bits of the left shift.
        left: u8,
        /// Bits of the right shift.
        right: u8,
        /// Size of the word in bytes.
        size: u8,
    },
    /// Repeats the store for the other elements of an array of this length.
    Loop(u32),
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A register, by its offset in `struct pt_regs`.
    Register(u32),
    /// The stack pointer.
    StackPointer,
    /// A word of the stack, counted from the stack pointer.
    Stack(u32),
    /// The return value of the function.
    Retval,
    /// A number or an address.
    Immediate(u64),
    /// The name of the current task.
    Comm,
    /// The address of the current task.
    Current,
    /// An argument of the function, counted from 0; for a tracepoint, counted from 1.
    Argument(u32),
    /// An address, by its offset in the probed file.
    File(i64),
    /// A literal text.
    Text(Vec<u8>),
    /// An argument saved at function entry, by its byte offset among the saved arguments.
    SavedArg(u32),
    /// A field of the probed event.
    Field(Box<Field>),
}

/// Kinds of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// The value itself.
    Raw,
    /// Memory at the value.
    Memory,
    /// User memory at the value.
    UserMemory,
    /// The string at the value.
    Text,
    /// The user string at the value.
    UserText,
    /// The name of the symbol that contains the value.
    SymbolText,
}

impl Program {
    /// The steps.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Adds a step; returns false if the program is full.
    pub(super) fn push(&mut self, op: Op) -> bool {
        let fits = self.ops.len() < OPS_MAX;
        if fits {
            self.ops.push(op);
        }
        fits
    }

    pub(super) fn last(&self) -> Option<&Op> {
        self.ops.last()
    }

    pub(super) fn replace_last(&mut self, op: Op) {
        self.ops.pop();
        self.ops.push(op);
    }

    /// Returns the name of the field in the first step if its lookup is still pending.
    pub(super) fn unknown_field(&self) -> Option<&str> {
        match self.ops.first() {
            Some(Op::Load(Source::Field(field))) if field.ty.is_empty() => Some(&field.name),
            _ => None,
        }
    }

    /// Replaces the source in the first step.
    pub(super) fn replace_source(&mut self, source: Source) {
        if let Some(first) = self.ops.first_mut() {
            *first = Op::Load(source);
        }
    }

    /// Sets the immediate value after each symbol to the address of the symbol.
    pub(crate) fn resolve<E>(&mut self, mut address: impl FnMut(&[u8]) -> Result<u64, E>) -> Result<(), E> {
        for at in 1..self.ops.len() {
            if let Some([Op::Symbol(symbol), value]) = self.ops.get_mut(at - 1..=at) {
                *value = Op::Load(Source::Immediate(address(symbol)?));
            }
        }
        Ok(())
    }
}

/// The steps, separated by commas, as `tracer explain` prints them.
impl Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, op) in self.ops.iter().enumerate() {
            write!(f, "{}{op}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(symbol) => write!(f, "symbol {}", latin1(symbol)),
            Self::Load(source) => write!(f, "{source}"),
            Self::Deref { user, offset } => write!(f, "{}{offset:+}()", if *user { "user " } else { "" }),
            Self::ThisCpu => f.write_str("this CPU's"),
            Self::Store { what, offset, size } => match what {
                Store::Raw => write!(f, "store {size}"),
                Store::Memory => write!(f, "store {size} at {offset:+}"),
                Store::UserMemory => write!(f, "store {size} at user {offset:+}"),
                Store::Text => write!(f, "text at {offset:+}"),
                Store::UserText => write!(f, "text at user {offset:+}"),
                Store::SymbolText => f.write_str("symbol's name"),
            },
            Self::Bits { left, right, size } => write!(f, "<< {left} >> {right} of {size}"),
            Self::Loop(count) => write!(f, "{count} times"),
        }
    }
}

impl Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(place) => write!(f, "register at {place}"),
            Self::StackPointer => f.write_str("stack pointer"),
            Self::Stack(n) => write!(f, "stack word {n}"),
            Self::Retval => f.write_str("return value"),
            Self::Immediate(value) => write!(f, "{value:#x}"),
            Self::Comm => f.write_str("comm"),
            Self::Current => f.write_str("current task"),
            Self::Argument(n) => write!(f, "argument {n}"),
            Self::File(offset) => write!(f, "file {offset:+#x}"),
            Self::Text(text) => write!(f, "\"{}\"", text.escape_ascii()),
            Self::SavedArg(offset) => write!(f, "saved argument at {offset}"),
            Self::Field(field) => write!(f, "field {}", field.name),
        }
    }
}
