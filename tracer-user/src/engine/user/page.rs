//! The page of bits that shows which events are enabled to programs of the 6.1 interface (`user_events_status`).

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

/// Size of the page in bytes.
const BYTES: usize = 4096;
/// Maximum number of events, which the text shows.
pub(super) const EVENTS_MAX: u32 = BYTES as u32 * 8;

/// The bytes of the page. Clones share them, so that a read of the page needs no engine.
#[derive(Clone, Debug)]
pub struct StatusBytes(Arc<[AtomicU8]>);

impl Default for StatusBytes {
    fn default() -> Self {
        Self((0..BYTES).map(|_| AtomicU8::new(0)).collect())
    }
}

impl StatusBytes {
    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.iter().map(|byte| byte.load(Ordering::Acquire)).collect()
    }
}

/// The page, and which of its bits are allocated.
#[derive(Debug)]
pub(super) struct Page {
    bytes: StatusBytes,
    given: Vec<bool>,
    /// All bits below this one are allocated.
    lowest: usize,
}

impl Default for Page {
    fn default() -> Self {
        // Programs treat bit 0 as a failure.
        let given = (0..EVENTS_MAX).map(|bit| bit == 0).collect();
        Self { bytes: StatusBytes::default(), given, lowest: 1 }
    }
}

impl Page {
    /// Allocates the lowest free bit; `None` if all are allocated.
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let free = self.given.iter().skip(self.lowest).position(|given| !given);
        let free = free.map_or(self.given.len(), |behind| self.lowest + behind);
        self.lowest = free;
        *self.given.get_mut(free)? = true;
        Some(free as u32)
    }

    pub(super) fn free(&mut self, bit: u32) {
        self.set(bit, false);
        if let Some(given) = self.given.get_mut(bit as usize) {
            *given = false;
            self.lowest = self.lowest.min(bit as usize);
        }
    }

    pub(super) fn set(&mut self, bit: u32, on: bool) {
        let Some(byte) = self.bytes.0.get(bit as usize / 8) else { return };
        let mask = 1 << (bit % 8);
        if on {
            byte.fetch_or(mask, Ordering::AcqRel)
        } else {
            byte.fetch_and(!mask, Ordering::AcqRel)
        };
    }

    pub(super) fn bytes(&self) -> &StatusBytes {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_allocated_once_and_the_first_never() {
        let mut page = Page::default();
        assert_eq!((page.allocate(), page.allocate(), page.allocate()), (Some(1), Some(2), Some(3)));
        page.set(2, true);
        let first = |page: &Page| page.bytes().to_vec()[0];
        assert_eq!(first(&page), 4);
        page.free(2);
        assert_eq!((first(&page), page.allocate()), (0, Some(2)));
        assert_eq!((4..EVENTS_MAX).filter(|bit| page.allocate() == Some(*bit)).count(), 32_764);
        assert_eq!(page.allocate(), None);
        page.free(77);
        page.free(5);
        assert_eq!((page.allocate(), page.allocate(), page.allocate()), (Some(5), Some(77), None));
    }
}
