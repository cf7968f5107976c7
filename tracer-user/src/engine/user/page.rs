//! The page of bits that programs of the 6.1 age map to see which events are on (`user_events_status`).

/// Bytes of the page, and the events that it has bits for.
const BYTES: usize = 4096;
/// What the text calls the greatest number of events.
pub(super) const EVENTS_MAX: u32 = BYTES as u32 * 8;

/// The page, and which bits are given out.
#[derive(Debug)]
pub(super) struct Page {
    bytes: Vec<u8>,
    given: Vec<bool>,
    /// No bit before this one is free.
    lowest: usize,
}

impl Default for Page {
    fn default() -> Self {
        // Programs take the first one for a failure.
        let given = (0..EVENTS_MAX).map(|bit| bit == 0).collect();
        Self { bytes: vec![0; BYTES], given, lowest: 1 }
    }
}

impl Page {
    /// Gives the lowest bit out that is free; none when all are.
    pub(super) fn give(&mut self) -> Option<u32> {
        let free = self.given.iter().skip(self.lowest).position(|given| !given);
        let free = free.map_or(self.given.len(), |behind| self.lowest + behind);
        self.lowest = free;
        *self.given.get_mut(free)? = true;
        Some(free as u32)
    }

    /// Takes one back.
    pub(super) fn take(&mut self, bit: u32) {
        self.set(bit, false);
        if let Some(given) = self.given.get_mut(bit as usize) {
            *given = false;
            self.lowest = self.lowest.min(bit as usize);
        }
    }

    /// Sets or clears one.
    pub(super) fn set(&mut self, bit: u32, on: bool) {
        let Some(byte) = self.bytes.get_mut(bit as usize / 8) else { return };
        let mask = 1 << (bit % 8);
        *byte = if on { *byte | mask } else { *byte & !mask };
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_given_once_and_the_first_never() {
        let mut page = Page::default();
        assert_eq!((page.give(), page.give(), page.give()), (Some(1), Some(2), Some(3)));
        page.set(2, true);
        assert_eq!(page.bytes()[0], 4);
        page.take(2);
        assert_eq!((page.bytes()[0], page.give()), (0, Some(2)));
        assert_eq!((4..EVENTS_MAX).filter(|bit| page.give() == Some(*bit)).count(), 32_764);
        assert_eq!(page.give(), None);
        page.take(77);
        page.take(5);
        assert_eq!((page.give(), page.give(), page.give()), (Some(5), Some(77), None));
    }
}
