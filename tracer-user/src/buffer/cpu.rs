//! One CPU's buffer: a queue of pages, with the counts of the file `stats`. A full buffer overwrites the oldest page
//! (`overwrite`) or drops new records.
//!
//! Readers that do not consume share the pages. Such a reader holds the pages that existed when it began, and a held
//! page is copied before it is written again. It can also remember only its position, and find the pages again.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    kinds::KindCounts,
    page::{Page, PageSize, Place},
};

/// Smallest number of pages of a buffer.
const LEAST_PAGES: usize = 2;

/// The counts in the file `stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Records in the buffer.
    pub entries: u64,
    /// Records overwritten by younger ones.
    pub overrun: u64,
    /// Bytes of records in the buffer.
    pub bytes: u64,
    /// Records dropped for lack of space.
    pub dropped: u64,
    /// Records consumed.
    pub read: u64,
}

/// Pages of a buffer, and where they are.
#[derive(Clone, Debug)]
pub(super) struct HeldPages {
    pub(super) pages: Arc<[Arc<Page>]>,
    /// The number of the first record among all records of the buffer, and its position in the first page.
    pub(super) record: u64,
    pub(super) place: Place,
}

/// A CPU's buffer.
#[derive(Debug)]
pub struct CpuBuffer {
    /// Its number, which no other buffer has.
    number: u64,
    pages: VecDeque<Arc<Page>>,
    /// Number of records that the buffer has got so far.
    pushed: u64,
    /// The number of the record after the last overwritten one.
    overwritten: u64,
    /// Number of records that were inserted before younger ones.
    inserted: u64,
    /// Position of the first record that is not consumed, in the first page.
    head: Place,
    /// Number of consumed records in the first page.
    consumed: u64,
    /// Requested bytes.
    requested: usize,
    page: PageSize,
    overwrite: bool,
    stats: Stats,
    /// Records overwritten since the last one that was consumed.
    lost: u64,
    kinds: KindCounts,
}

impl CpuBuffer {
    /// Creates an empty buffer of this many bytes, in pages of this size; it overwrites old records.
    pub fn new(bytes: usize, page: PageSize) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            pages: VecDeque::new(),
            pushed: 0,
            overwritten: 0,
            inserted: 0,
            head: Place::default(),
            consumed: 0,
            requested: bytes,
            page,
            overwrite: true,
            stats: Stats::default(),
            lost: 0,
            kinds: KindCounts::default(),
        }
    }

    /// Counts the kinds of records in pages that are added from now on.
    pub(super) fn count_kinds(&mut self, counts: &KindCounts) {
        self.kinds = counts.clone();
    }

    /// An empty buffer with the same settings.
    #[must_use]
    pub fn empty_copy(&self) -> Self {
        let kinds = self.kinds.clone();
        Self { overwrite: self.overwrite, kinds, ..Self::new(self.requested, self.page) }
    }

    /// An empty buffer of the same size and settings, in pages of this size.
    #[must_use]
    pub fn with_page(&self, page: PageSize) -> Self {
        Self { requested: self.size(), page, ..self.empty_copy() }
    }

    /// Bytes of records that the buffer can hold (`ring_buffer_size()`): the requested bytes, rounded up to pages.
    pub fn size(&self) -> usize {
        self.limit().saturating_mul(self.page.data())
    }

    /// Largest number of pages: as many as the bytes need, at least two.
    fn limit(&self) -> usize {
        self.requested.div_ceil(self.page.data()).max(LEAST_PAGES)
    }

    /// Resizes the buffer; drops the oldest records if it shrinks.
    pub fn resize(&mut self, bytes: usize) {
        self.requested = bytes;
        while self.pages.len() > self.limit() {
            self.overwrite_page();
        }
    }

    /// Sets whether a full buffer overwrites the oldest records or drops new ones.
    pub fn set_overwrite(&mut self, on: bool) {
        self.overwrite = on;
    }

    /// Inserts a record before the younger records of the last page that are not consumed. Returns false if it was
    /// dropped. The program of such a record was interrupted before it reserved space in the ring.
    pub fn insert(&mut self, time: u64, payload: &[u8]) -> bool {
        let (mut place, mut before) = (self.head, self.consumed);
        let pushed = self.pushed;
        if self.pages.len() > 1 {
            (place, before) = (self.pages.back().map_or_else(Place::default, |page| page.first()), 0);
        }
        let Some(page) = self.pages.back_mut() else { return self.push(time, payload) };
        while let Some((other, _, next)) = page.record(place)
            && other <= time
        {
            (place, before) = (next, before + 1);
        }
        let younger = Arc::make_mut(page).cut(place, before);
        self.stats.entries -= younger.len() as u64;
        self.pushed -= younger.len() as u64;
        let added = self.push(time, payload);
        for (time, payload) in younger {
            self.push(time, &payload);
        }
        // A full buffer drops records instead.
        self.inserted += self.pushed.saturating_sub(pushed);
        // The unread records of the first page may all have moved to the next page.
        let is_consumed = self.pages.front().is_some_and(|page| page.records() == self.consumed);
        if self.pages.len() > 1 && is_consumed {
            self.pages.pop_front();
            self.rewind();
        } else if self.consumed == 0 {
            self.rewind();
        }
        added
    }

    /// Adds a record. Returns false if it was dropped.
    pub fn push(&mut self, time: u64, payload: &[u8]) -> bool {
        let fits = self.pages.back_mut().is_some_and(|page| Arc::make_mut(page).push(time, payload));
        if !fits && !self.push_on_new_page(time, payload) {
            self.stats.dropped += 1;
            return false;
        }
        self.stats.entries += 1;
        self.pushed += 1;
        true
    }

    fn push_on_new_page(&mut self, time: u64, payload: &[u8]) -> bool {
        let mut page = Page::new(self.page, self.pushed, &self.kinds);
        if !page.push(time, payload) {
            return false;
        }
        if self.pages.len() >= self.limit() {
            if !self.overwrite {
                return false;
            }
            self.overwrite_page();
        }
        if self.pages.is_empty() {
            self.head = page.first();
        }
        self.pages.push_back(Arc::new(page));
        true
    }

    /// Counts records that were lost before they reached this buffer.
    pub fn add_dropped(&mut self, records: u64) {
        self.stats.dropped = self.stats.dropped.saturating_add(records);
    }

    /// Drops all records, because younger ones that did not reach this buffer have overwritten them.
    pub fn overwrite_all(&mut self) {
        while !self.pages.is_empty() {
            self.overwrite_page();
        }
    }

    /// Counts records that were overwritten before they reached this buffer.
    pub fn add_overwritten(&mut self, records: u64) {
        self.stats.overrun += records;
        self.lost += records;
    }

    /// Drops the oldest page.
    fn overwrite_page(&mut self) {
        if let Some(page) = self.pages.pop_front() {
            self.overwritten = page.number() + page.records();
            let records = page.records() - self.consumed;
            self.stats.entries -= records;
            self.stats.overrun += records;
            self.lost += records;
        }
        self.rewind();
    }

    /// Moves the start to the first record of the first page.
    fn rewind(&mut self) {
        self.consumed = 0;
        self.head = self.pages.front().map_or_else(Place::default, |page| page.first());
    }

    /// Copies the size and the overwrite mode of another buffer.
    pub fn fit(&mut self, other: &Self) {
        self.resize(other.requested);
        self.overwrite = other.overwrite;
    }

    /// Removes all records and resets the counts.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.rewind();
        self.stats = Stats::default();
        self.lost = 0;
    }

    /// Time of the oldest record.
    pub fn first_time(&self) -> Option<u64> {
        let (time, ..) = self.pages.front()?.record(self.head)?;
        Some(time)
    }

    /// Takes the oldest record. Passes `show` the number of records lost before it, its time and its payload.
    pub fn consume<T>(&mut self, show: impl FnOnce(u64, u64, &[u8]) -> T) -> Option<T> {
        let page = Arc::clone(self.pages.front()?);
        let (time, payload, next) = page.record(self.head)?;
        let lost = std::mem::take(&mut self.lost);
        self.consumed += 1;
        self.head = next;
        self.stats.entries -= 1;
        self.stats.read += 1;
        if self.consumed == page.records() {
            self.pages.pop_front();
            self.rewind();
        }
        Some(show(lost, time, payload))
    }

    /// Takes the oldest page, in the format of `trace_pipe_raw`.
    pub fn consume_page(&mut self) -> Option<Vec<u8>> {
        let page = self.pages.pop_front()?;
        let bytes = page.export(self.head, std::mem::take(&mut self.lost));
        let records = page.records() - self.consumed;
        self.stats.entries -= records;
        self.stats.read += records;
        self.rewind();
        Some(bytes)
    }

    /// Full pages in percent of the largest number of pages, for the comparison with `buffer_percent`.
    pub fn percent(&self) -> usize {
        self.pages.len().saturating_sub(1) * 100 / self.limit()
    }

    /// Bytes of memory that its pages use.
    pub fn taken(&self) -> usize {
        self.pages.len().saturating_mul(self.page.bytes())
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.stats.entries == 0
    }

    /// The counts.
    pub fn stats(&self) -> Stats {
        let used: usize = self.pages.iter().map(|page| page.used()).sum();
        Stats { bytes: used as u64, ..self.stats }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The number of the record after the last one, among all records of the buffer.
    pub(super) fn end(&self) -> u64 {
        self.pushed
    }

    pub(super) fn overwritten(&self) -> u64 {
        self.overwritten
    }

    pub(super) fn inserted(&self) -> u64 {
        self.inserted
    }

    /// At most `most` pages from the one with a record on, or from the first record that is not consumed, for a reader
    /// that does not consume.
    pub(super) fn hold(&self, record: u64, most: usize) -> HeldPages {
        let first = self.pages.partition_point(|page| page.number() <= record).saturating_sub(1);
        let pages = self.pages.iter().skip(first).take(most).cloned().collect();
        if first == 0 {
            let number = self.pages.front().map_or(self.pushed, |page| page.number());
            return HeldPages { pages, record: number + self.consumed, place: self.head };
        }
        let page = self.pages.get(first);
        let record = page.map_or(self.pushed, |page| page.number());
        HeldPages { pages, record, place: page.map_or_else(Place::default, |page| page.first()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer of two pages, each of which holds 255 records.
    fn small() -> CpuBuffer {
        CpuBuffer::new(1, PageSize::LEAST)
    }

    fn fill(buffer: &mut CpuBuffer, times: std::ops::Range<u64>) {
        for time in times {
            buffer.push(time, &[time as u8; 12]);
        }
    }

    #[test]
    fn the_oldest_page_is_overwritten() {
        let mut buffer = small();
        fill(&mut buffer, 0..511);
        let stats = buffer.stats();
        assert_eq!((stats.entries, stats.overrun, stats.dropped), (256, 255, 0));
        assert_eq!(buffer.consume(|lost, time, _| (lost, time)), Some((255, 255)));
        assert_eq!(buffer.consume(|lost, time, _| (lost, time)), Some((0, 256)));
    }

    #[test]
    fn without_overwriting_the_newest_records_are_dropped() {
        let mut buffer = small();
        buffer.set_overwrite(false);
        fill(&mut buffer, 0..600);
        let stats = buffer.stats();
        assert_eq!((stats.entries, stats.overrun, stats.dropped), (510, 0, 90));
        assert_eq!(buffer.first_time(), Some(0));
    }

    #[test]
    fn every_record_is_in_one_count() {
        let mut buffer = small();
        for (round, take) in [(300, 20), (700, 400), (5, 1000), (600, 3)] {
            fill(&mut buffer, 0..round);
            for _ in 0..take {
                buffer.consume(|_, _, _| ());
            }
        }
        let stats = buffer.stats();
        assert_eq!(stats.entries + stats.overrun + stats.read, 1605);
        // The numbers of records go on.
        assert_eq!((buffer.hold(0, 1).record, buffer.end()), (1605 - stats.entries, 1605));
        // The pages of a record.
        let held = buffer.hold(1604, 10);
        assert_eq!((held.pages.len(), held.record), (1, held.pages[0].number()));
    }

    #[test]
    fn a_record_of_a_program_that_was_interrupted_gets_its_place() {
        let mut buffer = small();
        let times = |buffer: &mut CpuBuffer| {
            std::iter::from_fn(|| buffer.consume(|_, time, payload| (time, payload.len())))
                .collect::<Vec<_>>()
        };
        for (time, length) in [(10, 4), (30, 8), (40, 12), (20, 16), (20, 20), (50, 24), (5, 28)] {
            assert!(buffer.insert(time, &vec![1; length]));
        }
        assert_eq!(buffer.stats().entries, 7);
        assert_eq!(times(&mut buffer), [(5, 28), (10, 4), (20, 16), (20, 20), (30, 8), (40, 12), (50, 24)]);
        // Not in front of consumed records, and not on a page before the last.
        fill(&mut buffer, 100..102);
        buffer.consume(|_, _, _| ());
        buffer.insert(50, &[2; 4]);
        assert_eq!(times(&mut buffer), [(100, 4), (101, 12)]);
        // If the page is full, the youngest records move to the next one.
        fill(&mut buffer, 0..255);
        assert!(buffer.insert(250, &[3; 12]));
        let stats = buffer.stats();
        assert_eq!((stats.entries, stats.dropped, stats.overrun), (256, 0, 0));
        let all = times(&mut buffer);
        assert!(all.windows(2).all(|two| two[0] <= two[1]), "{all:?}");
        // If all unread records of a page move to the next one, reading continues there.
        fill(&mut buffer, 0..254);
        for _ in 0..253 {
            buffer.consume(|_, _, _| ());
        }
        assert!(buffer.insert(250, &[4; 400]));
        assert_eq!(buffer.stats().entries, 2);
        assert_eq!(times(&mut buffer), [(250, 400), (253, 12)]);
        assert!(buffer.is_empty() && buffer.pages.is_empty());
    }

    #[test]
    fn a_reader_keeps_the_pages_it_saw() {
        let mut buffer = small();
        fill(&mut buffer, 0..3);
        let held = buffer.hold(0, 1);
        fill(&mut buffer, 3..2000);
        assert_eq!(held.pages[0].records(), 3);
    }

    #[test]
    fn every_size_is_accepted() {
        for (requested, size) in [(0, 2 * 4080), (4081 * 2, 3 * 4080), (usize::MAX, usize::MAX)] {
            let mut buffer = small();
            buffer.resize(requested);
            assert_eq!(buffer.size(), size, "{requested}");
            fill(&mut buffer, 0..1000);
            assert!(buffer.percent() <= 100 && buffer.taken() <= 4 * 4096);
        }
    }

    #[test]
    fn pages_are_consumed_whole() {
        let mut buffer = small();
        fill(&mut buffer, 0..300);
        buffer.consume(|_, _, _| ());
        let page = buffer.consume_page().unwrap();
        assert_eq!(page[8..16], (254 * 16_u64).to_ne_bytes());
        assert_eq!((buffer.stats().entries, buffer.stats().read), (45, 255));
        assert!(buffer.consume_page().is_some() && buffer.is_empty());
        assert_eq!(buffer.consume_page(), None);
    }
}
