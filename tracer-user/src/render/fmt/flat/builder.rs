//! Builds a list of operations.

use super::{BLOCK, Flat, Op, Value};
use crate::render::printf::pointer::take;

/// Operations, and the literal before the next one.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    ops: Vec<Op>,
    literal: Vec<u8>,
}

impl Builder {
    pub(crate) fn literal(&mut self, text: &[u8]) {
        self.literal.extend_from_slice(text);
    }

    /// Adds a register of a system call.
    pub(crate) fn register(&mut self, offset: usize, prefix_above: u64) {
        self.value(Value::Register { offset: offset as u32, prefix_above });
    }

    pub(crate) fn finish(mut self) -> Flat {
        self.flush();
        Flat(self.ops)
    }

    /// Adds a value. Returns its index.
    pub(super) fn value(&mut self, value: Value) -> usize {
        let literal = std::mem::take(&mut self.literal);
        let mut blocks = literal.chunks(BLOCK).peekable();
        while blocks.len() > 1 {
            self.ops.extend(blocks.next().map(|block| op(block, Value::Nothing)));
        }
        self.ops.push(op(blocks.next().unwrap_or_default(), value));
        self.ops.len() - 1
    }

    /// Ends the literal. Returns the index of the next operation.
    pub(super) fn flush(&mut self) -> usize {
        if !self.literal.is_empty() {
            self.value(Value::Nothing);
        }
        self.ops.len()
    }

    pub(super) fn replace(&mut self, index: usize, value: Value) {
        if let Some(op) = self.ops.get_mut(index) {
            op.value = value;
        }
    }
}

fn op(literal: &[u8], value: Value) -> Op {
    Op { literal: take(literal), length: literal.len() as u8, value }
}
