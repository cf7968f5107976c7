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
//! payer while the kernel knows an inode of it. Directories, and files that only root could open so far, have slot 0.
//! Root's slot for other files differs from it, because any user can keep a descriptor of `O_PATH` from before. The
//! kernel must not keep the names of files, because it asks for the inode of a name only by a lookup.
//!
//! The kernel locks an inode while it asks for attributes, for example in utimensat(2), which any user may call. So the
//! attributes of shared inodes are kept here, and need no turn of the caller.

use std::{collections::HashMap, sync::Mutex};

use super::{attributes::Attributes, node::NUMBER_BITS};
use crate::fs::threads::lock;

/// The slot of payers that found no free one.
const SHARED: u64 = 1;
/// Root's slot, for files that users may open.
const ROOTS: u64 = 2;
/// The slots after this one do not exist.
const LAST: u64 = (1 << (u64::BITS - NUMBER_BITS)) - 1;

/// A payer with inodes.
#[derive(Debug)]
struct Slot {
    payer: u32,
    /// How many lookups of its inodes the kernel has not forgotten.
    lookups: u64,
}

#[derive(Debug)]
struct SharedInode {
    attributes: Attributes,
    lookups: u64,
}

#[derive(Debug, Default)]
struct State {
    shared: HashMap<u64, SharedInode>,
    slots: HashMap<u64, Slot>,
    by_payer: HashMap<u32, u64>,
    /// Slots that were used before.
    free: Vec<u64>,
}

/// The inodes that the kernel knows.
#[derive(Debug, Default)]
pub(crate) struct Inodes(Mutex<State>);

/// The number of an inode's file.
pub(crate) fn file(ino: u64) -> u64 {
    ino & ((1 << NUMBER_BITS) - 1)
}

/// Whether it is the inode that all payers share while only root may open the file.
pub(crate) fn is_shared(ino: u64) -> bool {
    ino >> NUMBER_BITS == 0
}

impl Inodes {
    /// The inode of a file for a payer, which a lookup returns to the kernel.
    pub(crate) fn look_up(&self, attributes: &Attributes, payer: u32) -> u64 {
        if attributes.is_dir {
            return attributes.number;
        }
        let mut state = lock(&self.0);
        let slot = match (attributes.opened, payer) {
            (false, _) => {
                state.share(attributes);
                0
            }
            (true, 0) => ROOTS,
            (true, _) => state.slot(payer),
        };
        slot << NUMBER_BITS | attributes.number
    }

    /// The attributes of a file, if it is an inode that all payers share. `None` once users may open the file: root then
    /// has another inode, so no request of root waits for the lock of this one.
    pub(crate) fn shared(&self, ino: u64) -> Option<Attributes> {
        lock(&self.0).shared.get(&ino).map(|known| known.attributes).filter(|known| !known.opened)
    }

    /// Attributes of a file were changed.
    pub(crate) fn change(&self, attributes: &Attributes) {
        if let Some(known) = lock(&self.0).shared.get_mut(&attributes.number) {
            known.attributes = *attributes;
        }
    }

    /// The kernel forgets an inode that it looked up so many times.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        let mut state = lock(&self.0);
        match ino >> NUMBER_BITS {
            0 => state.forget_shared(ino, lookups),
            slot => state.forget(slot, lookups),
        }
    }
}

impl State {
    /// Counts a lookup of an inode that all payers share.
    fn share(&mut self, attributes: &Attributes) {
        let attributes = *attributes;
        let known = self.shared.entry(attributes.number).or_insert(SharedInode { attributes, lookups: 0 });
        known.attributes = attributes;
        known.lookups += 1;
    }

    fn forget_shared(&mut self, ino: u64, lookups: u64) {
        let Some(known) = self.shared.get_mut(&ino) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups == 0 {
            self.shared.remove(&ino);
        }
    }

    /// The slot of a payer, with one lookup more.
    fn slot(&mut self, payer: u32) -> u64 {
        if let Some(slot) = self.by_payer.get(&payer) {
            if let Some(used) = self.slots.get_mut(slot) {
                used.lookups += 1;
            }
            return *slot;
        }
        let next = ROOTS + 1 + self.slots.len() as u64;
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
        let (mode, opened) = (0o666, true);
        Attributes { number, is_dir, mode, links: 1, uid: 0, gid: 0, lasting: true, size: 0, opened }
    }

    #[test]
    fn each_payer_has_its_own_inode_of_a_file() {
        let inodes = Inodes::default();
        let (number, dir) = (77, attributes(78, true));
        let of = |payer| inodes.look_up(&attributes(number, false), payer);
        let roots = ROOTS << NUMBER_BITS | number;
        assert_eq!((of(0), inodes.look_up(&dir, 5)), (roots, 78));
        let (first, second) = (of(5), of(6));
        assert!(first != roots && second != roots && first != second);
        assert_eq!((file(first), file(second), file(number)), (number, number, number));
        assert_eq!((of(5), of(6)), (first, second));
        // The slot belongs to the payer until each lookup is forgotten.
        inodes.forget(first, 1);
        assert_eq!(of(5), first);
        inodes.forget(first, 2);
        assert_eq!(of(7), first, "the free slot has a new payer");
        assert_ne!(of(5), first);
        inodes.forget(roots, 10);
        assert_eq!(of(0), roots);
    }

    #[test]
    fn all_share_the_inode_of_a_file_that_only_root_could_open_so_far() {
        let (inodes, closed) = (Inodes::default(), Attributes { opened: false, ..attributes(77, false) });
        assert_eq!((inodes.look_up(&closed, 0), inodes.look_up(&closed, 5)), (77, 77));
        assert_eq!(inodes.shared(77), Some(closed));
        // Neither root nor a user gets it again after a chmod.
        let open = attributes(77, false);
        inodes.change(&open);
        assert_eq!(inodes.shared(77), None);
        assert!(inodes.look_up(&open, 0) != 77 && inodes.look_up(&open, 5) != 77);
        inodes.change(&closed);
        inodes.forget(77, 1);
        assert_eq!(inodes.shared(77), Some(closed));
        inodes.forget(77, 1);
        inodes.forget(77, 1);
        assert_eq!(inodes.shared(77), None);
    }

    #[test]
    fn the_mode_and_the_owner_tell_who_may_open_a_file() {
        let opens = |mode, uid, gid| Attributes { mode, uid, gid, ..attributes(77, false) }.opens_to_others();
        for (mode, uid, gid) in [(0o640, 0, 0), (0o660, 0, 0), (0o600, 0, 7), (0, 1, 1)] {
            assert!(!opens(mode, uid, gid), "{mode:o} {uid} {gid}");
        }
        for (mode, uid, gid) in [(0o644, 0, 0), (0o602, 0, 0), (0o640, 0, 7), (0o600, 7, 0)] {
            assert!(opens(mode, uid, gid), "{mode:o} {uid} {gid}");
        }
    }

    #[test]
    fn payers_without_a_slot_share_one() {
        let inodes = Inodes::default();
        let of = |payer| inodes.look_up(&attributes(9, false), payer) >> NUMBER_BITS;
        for payer in 1..=(LAST - ROOTS) as u32 {
            assert_eq!(of(payer), u64::from(payer) + ROOTS);
        }
        assert_eq!((of(100_000), of(100_001), of(1)), (SHARED, SHARED, ROOTS + 1));
        inodes.forget(7 << NUMBER_BITS, 1);
        assert_eq!((of(100_000), of(100_001)), (7, SHARED));
        // Nobody counts the lookups of the shared slot.
        inodes.forget(SHARED << NUMBER_BITS, 1);
        assert_eq!(of(100_001), SHARED);
    }
}
