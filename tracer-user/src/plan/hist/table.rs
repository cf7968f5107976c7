//! Layout of a histogram's table, in memory that programs and user space share.
//!
//! The table is the one value of an array: a head, the slots, the keys, the entries. It has the scheme of the kernel's
//! `tracing_map`: twice as many slots as entries, searched one after the other from the place that the key's hash gives.
//! A program claims an empty slot by compare-and-exchange, takes the next entry, writes the key, and then stores the
//! entry's number in the slot. When all entries are taken, a hit with another key is a drop.
//!
//! An entry is written by all CPUs, or each CPU has a copy of it in a region of its own.

use super::Layout;

/// Byte offset of the number of entries taken. It can exceed the number of entries.
pub const USED: usize = 0;
/// Byte offset of the word that is not 0 while no hit may count, because the table is being cleared.
pub const CLOSED: usize = 8;
/// Byte offset of a random number from which hashes start. It never changes.
pub const SEED: usize = 16;
/// Byte offset of the slots: the high half of the key's hash with bit 0 set, and in the low half of the word the
/// entry's number plus one, or 0 while the entry is being made. An empty slot is 0.
pub const SLOTS: usize = 64;

/// Sizes and offsets of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLayout {
    /// Number of entries, a power of two.
    pub entries: u32,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of an entry.
    pub entry_size: usize,
    /// Copies of each entry: the number of CPU ids, or 1 for entries that all CPUs write.
    pub copies: u32,
}

impl TableLayout {
    /// The table of a histogram on a machine with this many CPU ids.
    pub fn of(layout: &Layout, cpus: u32) -> Self {
        Self {
            entries: layout.entries,
            key_size: layout.key_size,
            entry_size: layout.size,
            copies: if layout.is_shared() { 1 } else { cpus },
        }
    }

    /// Number of slots, a power of two.
    pub fn slots(&self) -> u32 {
        2 * self.entries
    }

    /// Byte offset of the keys, by the entry's number.
    pub fn keys(&self) -> usize {
        SLOTS + 8 * self.slots() as usize
    }

    /// Byte offset of the entries, by the CPU (or 0) and the entry's number.
    pub fn values(&self) -> usize {
        // The CPUs' regions begin at a cache line.
        (self.keys() + self.key_size * self.entries as usize).next_multiple_of(64)
    }

    /// Bytes of a CPU's region.
    pub fn region(&self) -> usize {
        (self.entry_size * self.entries as usize).next_multiple_of(64)
    }

    /// Size of the table in bytes.
    pub fn size(&self) -> usize {
        self.values() + self.region() * self.copies as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let table = TableLayout { entries: 4, key_size: 24, entry_size: 40, copies: 3 };
        assert_eq!((table.keys(), table.values(), table.region()), (64 + 64, 128 + 128, 192));
        assert_eq!(table.size(), 256 + 3 * 192);
    }
}
