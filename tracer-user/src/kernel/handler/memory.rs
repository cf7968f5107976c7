//! Memory whose content is followed: the handler's stack, and the record.

use std::collections::BTreeMap;

use super::value::Value;

/// The values that were stored, by offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory(BTreeMap<i64, (u8, Value)>);

/// The largest store in bytes.
const LONGEST: i64 = 8;

impl Memory {
    /// Stores the low bytes of a value.
    pub(super) fn store(&mut self, offset: i64, size: u8, value: Value) {
        let end = offset + i64::from(size);
        let overlapping: Vec<i64> = self
            .0
            .range(offset - LONGEST + 1..end)
            .filter(|(at, (length, _))| **at + i64::from(*length) > offset)
            .map(|(at, _)| *at)
            .collect();
        for at in overlapping {
            let Some((length, was)) = self.0.remove(&at) else { continue };
            // What is left of it: the bytes before and after.
            let (before, after) = (offset - at, at + i64::from(length) - end);
            if before > 0 {
                self.keep(at, before, was.clone());
            }
            if after > 0 {
                self.keep(end, after, Value::Other { of_arguments: was.depends() });
            }
        }
        self.0.insert(offset, (size, value.low(size)));
    }

    /// Keeps the low bytes of a value of which the others were overwritten.
    fn keep(&mut self, at: i64, bytes: i64, value: Value) {
        let value = match u8::try_from(bytes) {
            Ok(size @ (1 | 2 | 4)) => value.low(size),
            _ => Value::Other { of_arguments: value.depends() },
        };
        self.0.insert(at, (bytes as u8, value));
    }

    /// The value of these bytes, if one store made all of them; `None` if nothing was stored there. If several stores made
    /// them, or only some were stored, the value is unknown.
    pub(super) fn load(&self, offset: i64, size: u8) -> Option<Value> {
        if let Some((length, value)) = self.0.get(&offset)
            && *length >= size
        {
            return Some(value.clone().low(size));
        }
        let mut parts = self.parts(offset, i64::from(size)).peekable();
        parts.peek()?;
        Some(Value::Other { of_arguments: parts.any(|(_, _, value)| value.depends()) })
    }

    /// The stores that touch these bytes.
    pub(super) fn parts(&self, offset: i64, bytes: i64) -> impl Iterator<Item = (i64, u8, &Value)> {
        self.0
            .range(offset - LONGEST + 1..offset + bytes)
            .filter(move |(at, (length, _))| **at + i64::from(*length) > offset)
            .map(|(at, (length, value))| (*at, *length, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_replaces_what_it_overlaps() {
        let mut memory = Memory::default();
        memory.store(0, 8, Value::Arg(1));
        assert_eq!(memory.load(0, 4), Some(Value::Arg(1).low(4)));
        assert_eq!(memory.load(8, 1), None);
        memory.store(4, 4, Value::Const(7));
        assert_eq!(memory.load(0, 4), Some(Value::Arg(1).low(4)));
        assert_eq!(memory.load(4, 4), Some(Value::Const(7)));
        assert_eq!(memory.load(0, 8), Some(Value::Other { of_arguments: true }), "two stores");
        memory.store(2, 1, Value::Const(1));
        assert_eq!(memory.load(3, 1), Some(Value::Other { of_arguments: true }));
        let parts: Vec<_> = memory.parts(0, 8).map(|(at, size, _)| (at, size)).collect();
        assert_eq!(parts, [(0, 2), (2, 1), (3, 1), (4, 4)]);
    }
}
