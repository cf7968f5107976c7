//! Layout of an entry of a histogram's table: the key's parts, the sums, the variables, the texts.
//!
//! Generated programs fill in such entries (`code::lower::hist`), and `render::hist` shows them. [`table`] is the memory
//! that holds them.
//!
//! A histogram with variables has one entry per key for all CPUs ([`Layout::is_shared`]), because other histograms look
//! the variables up from any CPU. A histogram that only counts has one entry per CPU.
//!
//! Keys are equal to the kernel's byte for byte (`event_hist_trigger()`). Parts are padded to eight bytes, a number is
//! its 64-bit value with its sign, a text ends with a NUL, and a stack has sixteen words.

mod references;
pub mod table;

pub use references::{Reference, References};

use crate::lang::hist::action::ActionKind;
use crate::lang::hist::{Flags, Function, Hist, STACK_SIZE, TEXT_MAX, Value};

/// Bytes of a task's name, the NUL included: `TASK_COMM_LEN`.
pub const COMM_SIZE: usize = 16;

/// Kind of a key part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// A 64-bit number.
    Number,
    /// A text, padded with NULs.
    Text,
    /// The stack of the hit.
    Stack,
    /// A stack that the record holds.
    RecordedStack,
}

/// A part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// Its kind.
    pub kind: KeyKind,
    /// Offset of its first byte.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

impl KeyPart {
    fn of(value: &Value) -> Self {
        let is = |flags| value.flags.has(flags);
        let kind = if is(Flags::STACKTRACE) {
            if value.field.is_some() { KeyKind::RecordedStack } else { KeyKind::Stack }
        } else if is(Flags::STRING) {
            KeyKind::Text
        } else {
            KeyKind::Number
        };
        Self { kind, offset: value.offset as usize, size: value.size as usize }
    }

    /// Its bytes in a key.
    pub fn of_key<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key.get(self.offset..self.offset + self.size).unwrap_or_default()
    }
}

/// Offsets and sizes of the parts of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a key.
    pub key_size: usize,
    /// The key's parts.
    pub keys: Vec<KeyPart>,
    /// Number of sums, the hit count first; an entry starts with them.
    pub sums: usize,
    /// Number of variables, which follow the sums.
    pub slots: usize,
    /// Offset of the name of the task that created the entry, if the entry has one.
    pub comm: Option<usize>,
    /// Variables that are texts or stacks: the variable's number and the offset of its first byte. Each takes
    /// [`TEXT_MAX`] bytes.
    pub texts: Vec<(usize, usize)>,
    /// Offset of the word that is not 0 while a CPU saves, if something is saved.
    pub lock: Option<usize>,
    /// Size of an entry in bytes.
    pub size: usize,
    /// Number of entries of the table.
    pub entries: u32,
}

/// The state of the last snapshot that a histogram's action took: a lock, the value, whether there was one, the
/// name of the entry's task, the key.
pub mod snapshot {
    /// Not 0 while a CPU writes.
    pub const LOCK: usize = 0;
    /// Value of the variable.
    pub const VALUE: usize = 8;
    /// Not 0 once a snapshot was taken.
    pub const TAKEN: usize = 16;
    /// The task's name.
    pub const COMM: usize = 24;
    /// The key.
    pub const KEY: usize = COMM + super::COMM_SIZE;
}

impl Layout {
    /// The layout of a histogram's entries.
    pub fn of(hist: &Hist) -> Self {
        let sums = hist.values - hist.variables;
        let slots = hist.slots;
        let mut size = 8 * (sums + slots);
        // One bit per variable: whether it has been set and not consumed.
        size += if slots > 0 { 8 } else { 0 };
        let keeps_comm = hist.fields.iter().any(|value| value.flags.has(Flags::EXECNAME));
        let comm = keeps_comm.then_some(size);
        size += if keeps_comm { COMM_SIZE } else { 0 };
        let own = hist.fields[..hist.values].iter().filter(|value| value.flags.has(Flags::VAR));
        let own = own.map(|value| (value.slot.at, value));
        let made = hist.field_variables.iter().chain(&hist.saved);
        let made = made.map(|(variable, value)| (variable.slot.at, value));
        let mut texts = Vec::new();
        for (slot, value) in own.chain(made).filter(|(slot, _)| *slot < slots) {
            if is_text(value) || is_stack(value) {
                texts.push((slot, size));
                size += TEXT_MAX as usize;
            }
        }
        let saves = hist.actions.iter().any(|action| action.kind == ActionKind::Save);
        let lock = saves.then_some(size);
        size += if saves { 8 } else { 0 };
        Self {
            key_size: hist.key_size as usize,
            keys: hist.keys().iter().map(KeyPart::of).collect(),
            sums,
            slots,
            comm,
            texts,
            lock,
            size,
            entries: 1 << hist.bits,
        }
    }

    /// Whether all CPUs share one entry per key.
    pub fn is_shared(&self) -> bool {
        self.slots > 0
    }

    /// Offset of the text or stack of a variable.
    pub fn text_at(&self, slot: usize) -> Option<usize> {
        self.texts.iter().find(|(at, _)| *at == slot).map(|(_, start)| *start)
    }

    /// Offset of a variable.
    pub fn slot(&self, slot: usize) -> usize {
        8 * (self.sums + slot)
    }

    /// Offset of the bits that record which variables are set.
    pub fn set_bits(&self) -> usize {
        self.slot(self.slots)
    }

    /// A sum of an entry.
    pub fn sum(entry: &[u8], sum: usize) -> u64 {
        word(entry, 8 * sum)
    }

    /// A variable of an entry.
    pub fn variable(&self, entry: &[u8], slot: usize) -> u64 {
        word(entry, self.slot(slot))
    }

    /// The text of a variable of an entry.
    pub fn text<'a>(&self, entry: &'a [u8], slot: usize) -> Option<&'a [u8]> {
        let start = self.text_at(slot)?;
        entry.get(start..start + TEXT_MAX as usize).map(until_nul)
    }

    /// The name of the task that created an entry.
    pub fn comm_of<'a>(&self, entry: &'a [u8]) -> &'a [u8] {
        let bytes = self.comm.and_then(|start| entry.get(start..start + COMM_SIZE));
        until_nul(bytes.unwrap_or_default())
    }
}

/// Eight bytes as a number.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u64::from_ne_bytes)
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let length = bytes.iter().position(|byte| *byte == 0);
    &bytes[..length.unwrap_or(bytes.len())]
}

/// Whether a variable of this value stores a text. An alias stores none.
pub fn is_text(value: &Value) -> bool {
    value.flags.has(Flags::STRING) && !value.flags.has(Flags::ALIAS)
}

/// Whether a variable of this value stores a stack: its depth, then its addresses.
pub fn is_stack(value: &Value) -> bool {
    value.flags.has(Flags::STACKTRACE) && !value.flags.has(Flags::STRING.and(Flags::ALIAS))
}

/// Whether a value needs data of the hit besides the record: the clock, the CPU, the task or the stack.
#[cfg(any(test, feature = "internals"))]
pub fn needs_context(value: &Value) -> bool {
    let own =
        matches!(value.function, Function::Timestamp | Function::Cpu | Function::Comm | Function::Execname)
            || (value.flags.has(Flags::STACKTRACE) && value.field.is_none());
    own || value.operands.iter().any(needs_context)
}

/// Size of a stack in a key, in bytes.
pub const STACK_BYTES: usize = STACK_SIZE as usize;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lang::hist::{Fixed, Set, World};

    fn layout(command: &str) -> Layout {
        let world = Fixed::small();
        let mut set = Set::default();
        let event = world.event("test", "start").unwrap();
        set.apply(&event, Some(command.as_bytes()), false, &world).unwrap();
        let trigger = set.triggers().next().unwrap();
        Layout::of(&trigger.hist)
    }

    #[test]
    fn keys_and_entries() {
        let layout = layout("keys=pid,comm,common_stacktrace:vals=bytes:x=bytes:onmax($x).save(name,prio)");
        let part = |kind, offset, size| KeyPart { kind, offset, size };
        assert_eq!(
            layout.keys,
            [part(KeyKind::Number, 0, 8), part(KeyKind::Text, 8, 16), part(KeyKind::Stack, 24, 128)]
        );
        // hits, bytes; x, the maximum, name, prio; which are set; the text; the lock.
        assert_eq!((layout.key_size, layout.sums, layout.slots), (152, 2, 4));
        assert_eq!((layout.set_bits(), layout.texts.clone(), layout.size), (48, vec![(2, 56)], 56 + 256 + 8));
        assert_eq!(layout.lock, Some(56 + 256));
        assert_eq!(layout.comm, None);
    }

    #[test]
    fn names_of_tasks_are_stored_with_their_ids() {
        let layout = layout("keys=common_pid.execname:size=200");
        assert_eq!((layout.comm, layout.size, layout.entries), (Some(8), 24, 256));
        let mut entry = vec![0; layout.size];
        entry[..8].copy_from_slice(&7u64.to_ne_bytes());
        entry[8..11].copy_from_slice(b"cat");
        assert_eq!((Layout::sum(&entry, 0), layout.comm_of(&entry)), (7, &b"cat"[..]));
    }
}
