//! The inodes of files: each payer has its own inode of a file that users may open, so that no payer waits for the lock
//! of another's.
//!
//! The kernel locks an inode while write(2) copies its data and until the write is answered. The client decides how long
//! the copy takes: its buffer can be a page of a file system that it serves itself. A chmod(2) and the writes of all
//! others to the inode wait meanwhile, and cannot be killed. tracefs has no such lock.
//!
//! Payers with different inodes remove the file's name from the kernel's cache: the next lookup locks the directory, which
//! any user can keep locked, and a mount on the file ends. So all share the inode of a file that only root may open.
//!
//! The number of an inode is the number of its file, and a slot in the bits above [`NUMBER_BITS`]. A slot belongs to a
//! payer while the kernel knows an inode of it. Root's slot is 0, and directories have only that one. The kernel must not
//! keep the names of files, because it asks for the inode of a name only by a lookup.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{attributes::Attributes, node::NUMBER_BITS};

/// The slot of payers that found no free one.
const SHARED: u64 = 1;
/// The slots after this one do not exist.
const LAST: u64 = (1 << (u64::BITS - NUMBER_BITS)) - 1;

/// A payer with inodes.
#[derive(Debug)]
struct Slot {
    payer: u32,
    /// How many lookups of its inodes the kernel has not forgotten.
    lookups: u64,
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<u64, Slot>,
    by_payer: HashMap<u32, u64>,
    /// Slots that were used before.
    free: Vec<u64>,
}

/// The inodes that the kernel knows.
#[derive(Debug, Default)]
pub(in crate::fs) struct Inodes(Mutex<State>);

/// The number of an inode's file.
pub(in crate::fs) fn file(ino: u64) -> u64 {
    ino & ((1 << NUMBER_BITS) - 1)
}

/// Whether it is the inode of root, or of a file that only root may open.
pub(in crate::fs) fn is_roots(ino: u64) -> bool {
    ino >> NUMBER_BITS == 0
}

impl Inodes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inode of a file for a payer, which a lookup returns to the kernel.
    pub(in crate::fs) fn look_up(&self, attributes: &Attributes, payer: u32) -> u64 {
        if payer == 0 || attributes.is_dir || !attributes.opens_to_others() {
            return attributes.number;
        }
        self.state().slot(payer) << NUMBER_BITS | attributes.number
    }

    /// The kernel forgets an inode that it looked up so many times.
    pub(in crate::fs) fn forget(&self, ino: u64, lookups: u64) {
        self.state().forget(ino >> NUMBER_BITS, lookups);
    }
}

impl State {
    /// The slot of a payer, with one lookup more.
    fn slot(&mut self, payer: u32) -> u64 {
        if let Some(slot) = self.by_payer.get(&payer) {
            if let Some(used) = self.slots.get_mut(slot) {
                used.lookups += 1;
            }
            return *slot;
        }
        let next = SHARED + 1 + self.slots.len() as u64;
        let Some(slot) = self.free.pop().or_else(|| (next <= LAST).then_some(next)) else { return SHARED };
        self.slots.insert(slot, Slot { payer, lookups: 1 });
        self.by_payer.insert(payer, slot);
        slot
    }

    fn forget(&mut self, slot: u64, lookups: u64) {
        let Some(used) = self.slots.get_mut(&slot) else { return };
        used.lookups = used.lookups.saturating_sub(lookups);
        if used.lookups == 0 {
            self.by_payer.remove(&used.payer);
            self.slots.remove(&slot);
            self.free.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(number: u64, is_dir: bool) -> Attributes {
        Attributes { number, is_dir, mode: 0o666, links: 1, uid: 0, gid: 0, lasting: true, size: 0 }
    }

    #[test]
    fn each_payer_has_its_own_inode_of_a_file() {
        let inodes = Inodes::default();
        let (number, dir) = (77, attributes(78, true));
        let of = |payer| inodes.look_up(&attributes(number, false), payer);
        assert_eq!((of(0), inodes.look_up(&dir, 5)), (number, 78));
        let (first, second) = (of(5), of(6));
        assert!(first != number && second != number && first != second);
        assert_eq!((file(first), file(second), file(number)), (number, number, number));
        assert_eq!((of(5), of(6)), (first, second));
        // The slot belongs to the payer until each lookup is forgotten.
        inodes.forget(first, 1);
        assert_eq!(of(5), first);
        inodes.forget(first, 2);
        assert_eq!(of(7), first, "the free slot has a new payer");
        assert_ne!(of(5), first);
        inodes.forget(number, 10);
        assert_eq!(of(0), number);
    }

    #[test]
    fn all_share_the_inode_of_a_file_that_only_root_may_open() {
        let inodes = Inodes::default();
        let of =
            |mode, uid, gid| inodes.look_up(&Attributes { mode, uid, gid, ..attributes(77, false) }, 5) == 77;
        assert!(of(0o640, 0, 0) && of(0o660, 0, 0) && of(0o600, 0, 7) && of(0, 1, 1));
        assert!(!of(0o644, 0, 0) && !of(0o602, 0, 0) && !of(0o640, 0, 7) && !of(0o600, 7, 0));
    }

    #[test]
    fn payers_without_a_slot_share_one() {
        let inodes = Inodes::default();
        let of = |payer| inodes.look_up(&attributes(9, false), payer) >> NUMBER_BITS;
        for payer in 1..LAST as u32 {
            assert_eq!(of(payer), u64::from(payer) + SHARED);
        }
        assert_eq!((of(100_000), of(100_001), of(1)), (SHARED, SHARED, SHARED + 1));
        inodes.forget(7 << NUMBER_BITS, 1);
        assert_eq!((of(100_000), of(100_001)), (7, SHARED));
        // Nobody counts the lookups of the shared slot.
        inodes.forget(SHARED << NUMBER_BITS, 1);
        assert_eq!(of(100_001), SHARED);
    }
}
