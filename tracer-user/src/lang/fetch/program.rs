//! The steps that fetch a value: what a checked argument is to planning and code generation.
//!
//! They are the kernel's own (`enum fetch_op`), because how many there may be decides which arguments it takes: a
//! source, dereferences, a store, then perhaps bits and a loop over an array. A last dereference becomes the store.

use std::fmt::{self, Display};

use super::OPS_MAX;
use crate::event::Field;
use crate::event::dynamic::latin1;

/// A value's steps, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    ops: Vec<Op>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A symbol and perhaps an offset, whose address is the immediate value that follows.
    Symbol(Vec<u8>),
    /// The first value.
    Load(Source),
    /// The word at the value and an offset.
    Deref {
        /// Whether it is memory of user space.
        user: bool,
        /// Bytes.
        offset: i32,
    },
    /// Into the record.
    Store {
        /// What.
        what: Store,
        /// Bytes from the value, for what is read from memory.
        offset: i32,
        /// Bytes, of each element.
        size: u32,
    },
    /// Some bits of what was stored: shifted left, then right with the type's sign, in a word of so many bytes.
    Bits {
        /// Bits to the left.
        left: u8,
        /// Bits to the right.
        right: u8,
        /// Bytes of the word.
        size: u8,
    },
    /// The store again for each further element of an array of so many.
    Loop(u32),
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A register, by its place in `struct pt_regs`.
    Register(u32),
    /// The stack pointer.
    StackPointer,
    /// A word of the stack, counted from its pointer.
    Stack(u32),
    /// What the function returns.
    Retval,
    /// A number or an address.
    Immediate(u64),
    /// The name of the current task.
    Comm,
    /// An argument of the function, counted from 0; a tracepoint's are counted from 1.
    Argument(u32),
    /// An address by its offset in the probed file.
    File(i64),
    /// A text.
    Text(Vec<u8>),
    /// An argument that was kept at the function's entry, by its place among those.
    Kept(u32),
    /// A field of the event that is probed.
    Field(Box<Field>),
}

/// How a value goes into the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// The value itself.
    Raw,
    /// Memory at the value.
    Memory,
    /// Memory of user space at the value.
    UserMemory,
    /// The text at the value.
    Text,
    /// The text of user space at the value.
    UserText,
    /// The name of the symbol that the value lies in.
    SymbolText,
}

impl Program {
    /// The steps.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Adds a step; false where there is no room.
    pub(super) fn push(&mut self, op: Op) -> bool {
        let room = self.ops.len() < OPS_MAX;
        if room {
            self.ops.push(op);
        }
        room
    }

    /// The last step.
    pub(super) fn last(&self) -> Option<&Op> {
        self.ops.last()
    }

    /// Puts another step in the place of the last one.
    pub(super) fn replace_last(&mut self, op: Op) {
        self.ops.pop();
        self.ops.push(op);
    }

    /// Whether it starts with a field that no event has, as it was not looked up yet: its name.
    pub(super) fn unknown_field(&self) -> Option<&str> {
        match self.ops.first() {
            Some(Op::Load(Source::Field(field))) if field.ty.is_empty() => Some(&field.name),
            _ => None,
        }
    }

    /// Puts another source in the place of the first one.
    pub(super) fn replace_source(&mut self, source: Source) {
        if let Some(first) = self.ops.first_mut() {
            *first = Op::Load(source);
        }
    }

    /// Gives the symbols' addresses to the immediate values behind them.
    pub(crate) fn resolve<E>(&mut self, mut address: impl FnMut(&[u8]) -> Result<u64, E>) -> Result<(), E> {
        for at in 1..self.ops.len() {
            if let Some([Op::Symbol(symbol), value]) = self.ops.get_mut(at - 1..=at) {
                *value = Op::Load(Source::Immediate(address(symbol)?));
            }
        }
        Ok(())
    }
}

/// One step behind the other, as `tracer explain` shows them.
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
            Self::Argument(n) => write!(f, "argument {n}"),
            Self::File(offset) => write!(f, "file {offset:+#x}"),
            Self::Text(text) => write!(f, "\"{}\"", text.escape_ascii()),
            Self::Kept(offset) => write!(f, "kept at {offset}"),
            Self::Field(field) => write!(f, "field {}", field.name),
        }
    }
}
