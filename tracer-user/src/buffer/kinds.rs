//! Counts the pages that hold records of each event that the kernel does not know.
//!
//! The engine keeps the id and the format of a deleted event as long as a page has its records. A page may be in a
//! buffer or in a snapshot, and a reader that does not consume may hold it after both. So each page counts itself, from
//! the first record of a kind until it is dropped. Kinds of the kernel's events are not counted.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use crate::event::DEFINED_IDS;

/// The number of pages with records of each kind. Clones share the counts. The default counts nothing.
#[derive(Clone, Debug, Default)]
pub struct KindCounts(Option<Arc<[AtomicU32]>>);

impl KindCounts {
    /// New counts.
    pub fn new() -> Self {
        Self(Some(DEFINED_IDS.map(|_| AtomicU32::new(0)).collect()))
    }

    /// The number of pages that have records of a kind.
    pub fn pages(&self, kind: u16) -> u32 {
        // A reader in another thread may have dropped a page just now.
        self.count(kind).map_or(0, |count| count.load(Ordering::Acquire))
    }

    fn count(&self, kind: u16) -> Option<&AtomicU32> {
        self.0.as_ref()?.get(usize::from(kind.checked_sub(DEFINED_IDS.start)?))
    }
}

/// The kinds of the records of one page, each of which is counted once.
#[derive(Debug, Default)]
pub(super) struct PageKinds {
    counts: KindCounts,
    /// Sorted.
    kinds: Vec<u16>,
}

impl PageKinds {
    /// The kinds of an empty page.
    pub(super) fn new(counts: &KindCounts) -> Self {
        Self { counts: counts.clone(), kinds: Vec::new() }
    }

    /// Adds the kind of a record, its first two bytes.
    #[inline]
    pub(super) fn add(&mut self, payload: &[u8]) {
        let Some(kind) = payload.first_chunk().map(|kind| u16::from_ne_bytes(*kind)) else { return };
        if kind >= DEFINED_IDS.start {
            self.add_defined(kind);
        }
    }

    fn add_defined(&mut self, kind: u16) {
        if let Some(count) = self.counts.count(kind)
            && let Err(place) = self.kinds.binary_search(&kind)
        {
            count.fetch_add(1, Ordering::Relaxed);
            self.kinds.insert(place, kind);
        }
    }
}

impl Clone for PageKinds {
    fn clone(&self) -> Self {
        for count in self.kinds.iter().filter_map(|kind| self.counts.count(*kind)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Self { counts: self.counts.clone(), kinds: self.kinds.clone() }
    }
}

impl Drop for PageKinds {
    fn drop(&mut self) {
        for count in self.kinds.iter().filter_map(|kind| self.counts.count(*kind)) {
            count.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{PageSize, Reader, TraceBuffer};

    const KIND: u16 = DEFINED_IDS.start + 7;

    fn record(kind: u16) -> [u8; 12] {
        let [low, high] = kind.to_ne_bytes();
        [low, high, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]
    }

    fn buffer(counts: &KindCounts) -> TraceBuffer {
        let mut buffer = TraceBuffer::new(1, 1, PageSize::LEAST);
        buffer.count_kinds(counts);
        buffer
    }

    fn fill(buffer: &mut TraceBuffer, kind: u16, records: u64) {
        let cpu = buffer.cpu_mut(0).unwrap();
        (0..records).for_each(|time| assert!(cpu.push(time, &record(kind))));
    }

    #[test]
    fn a_page_counts_each_kind_once() {
        let counts = KindCounts::new();
        let mut buffer = buffer(&counts);
        for kind in [KIND, 300, KIND, KIND + 1, KIND] {
            fill(&mut buffer, kind, 1);
        }
        assert_eq!([KIND - 1, KIND, KIND + 1, 300].map(|kind| counts.pages(kind)), [0, 1, 1, 0]);
        // 255 records fill a page.
        fill(&mut buffer, KIND, 255);
        assert_eq!(counts.pages(KIND), 2);
        buffer.cpu_mut(0).unwrap().clear();
        assert_eq!((counts.pages(KIND), counts.pages(KIND + 1)), (0, 0));
        // Short payloads, and kinds beyond the counts.
        let cpu = buffer.cpu_mut(0).unwrap();
        assert!(cpu.push(0, &[1]) && cpu.push(0, &record(DEFINED_IDS.end)) && cpu.push(0, &record(u16::MAX)));
        assert_eq!(KindCounts::default().pages(KIND), 0);
    }

    #[test]
    fn overwriting_consuming_and_inserting_are_counted() {
        let counts = KindCounts::new();
        let mut buffer = buffer(&counts);
        fill(&mut buffer, KIND, 255);
        fill(&mut buffer, 300, 255);
        assert_eq!(counts.pages(KIND), 1);
        fill(&mut buffer, 300, 1);
        assert_eq!(counts.pages(KIND), 0, "overwritten");
        let cpu = buffer.cpu_mut(0).unwrap();
        cpu.clear();
        assert!(cpu.push(10, &record(300)) && cpu.push(20, &record(300)) && cpu.insert(15, &record(KIND)));
        assert_eq!(counts.pages(KIND), 1);
        for _ in 0..3 {
            cpu.consume(|_, _, _| ());
        }
        assert_eq!(counts.pages(KIND), 0, "consumed");
        assert!(cpu.push(30, &record(KIND)) && cpu.consume_page().is_some());
        assert_eq!(counts.pages(KIND), 0, "consumed as a page");
    }

    #[test]
    fn snapshots_and_readers_keep_their_pages() {
        let counts = KindCounts::new();
        let mut buffer = buffer(&counts);
        fill(&mut buffer, KIND, 1);
        let mut snapshot = buffer.empty_copy();
        buffer.swap(&mut snapshot, None);
        assert_eq!(counts.pages(KIND), 1);
        fill(&mut buffer, KIND + 1, 1);
        let reader = Reader::new(&buffer, None);
        // The reader's page is copied before it changes.
        fill(&mut buffer, KIND + 1, 1);
        assert_eq!((counts.pages(KIND), counts.pages(KIND + 1)), (1, 2));
        drop(buffer);
        assert_eq!(counts.pages(KIND + 1), 1);
        drop(reader);
        assert_eq!((counts.pages(KIND), counts.pages(KIND + 1)), (1, 0));
        // The buffers of a snapshot have the same counts.
        fill(&mut snapshot, KIND + 2, 1);
        assert_eq!(counts.pages(KIND + 2), 1);
        drop(snapshot);
        assert_eq!((counts.pages(KIND), counts.pages(KIND + 2)), (0, 0));
    }

    #[test]
    fn another_page_size_keeps_the_counts() {
        let counts = KindCounts::new();
        let mut buffer = buffer(&counts);
        fill(&mut buffer, KIND, 1);
        let cpu = buffer.cpu_mut(0).unwrap();
        *cpu = cpu.with_page(PageSize::MOST);
        assert_eq!(counts.pages(KIND), 0);
        fill(&mut buffer, KIND, 1);
        assert_eq!(counts.pages(KIND), 1);
    }
}
