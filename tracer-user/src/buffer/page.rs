//! One page of the kernel's ring buffer (`include/linux/ring_buffer.h`, `kernel/trace/ring_buffer.c`; described by
//! `events/header_page` and `events/header_event`). A page has a time, a number of bytes, and records. Each record
//! starts with a header word: five bits of type, and 27 bits of time since the previous record.

use super::kinds::{KindCounts, PageKinds};

/// Bytes before the records: `timestamp` and `commit`.
pub const HEAD: usize = 16;
/// Bits of time in a header word.
const DELTA_BITS: u32 = 27;
/// `RINGBUF_TYPE_DATA_TYPE_LEN_MAX`: payloads of up to this many words need no length word.
const SHORT_WORDS: usize = 28;
/// `RINGBUF_TYPE_TIME_EXTEND`: the time since the previous record, with 32 more bits in a second word.
const TIME_EXTEND: u32 = 30;
/// `RB_MISSED_EVENTS` and `RB_MISSED_STORED`: records were lost before this page, and their number is stored after the
/// last record.
const MISSED: u64 = 1 << 31;
const MISSED_STORED: u64 = 1 << 30;

/// Bytes of a page, header included: the smallest size, doubled up to seven times (`buffer_subbuf_size_kb`). No other
/// value can be constructed, so sizes computed from it stay in bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize(usize);

impl PageSize {
    /// The smallest size, which new buffers have.
    pub const LEAST: Self = Self(4096);
    /// The largest: 128 times the smallest.
    pub const MOST: Self = Self(Self::LEAST.0 << 7);

    /// The size of exactly this many bytes, if it exists.
    pub fn exactly(bytes: usize) -> Option<Self> {
        let fits = bytes.is_power_of_two() && (Self::LEAST.0..=Self::MOST.0).contains(&bytes);
        fits.then_some(Self(bytes))
    }

    /// The smallest size with at least this many bytes; `None` for 0 and for more than the largest size.
    pub fn holding(bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| (1..=Self::MOST.0).contains(bytes))?;
        Self::exactly(bytes.next_power_of_two().max(Self::LEAST.0))
    }

    /// All bytes.
    pub fn bytes(self) -> usize {
        self.0
    }

    /// Bytes after the header.
    pub fn data(self) -> usize {
        self.0 - HEAD
    }
}

/// A page. Records are appended. To insert a late record, the younger ones are removed and appended again.
#[derive(Clone, Debug)]
pub struct Page {
    bytes: Vec<u8>,
    size: PageSize,
    start: u64,
    last: u64,
    records: u64,
    /// The number of the first record among all records of the buffer.
    number: u64,
    kinds: PageKinds,
}

/// A position in a page: the offset of the next record's header, and the time before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    at: usize,
    time: u64,
}

impl Page {
    /// An empty page, which counts its kinds of records. `number` is that of its first record in the buffer.
    pub fn new(size: PageSize, number: u64, counts: &KindCounts) -> Self {
        Self { bytes: Vec::new(), size, start: 0, last: 0, records: 0, number, kinds: PageKinds::new(counts) }
    }

    /// The longest payload that fits a page of this size.
    pub fn longest(size: PageSize) -> usize {
        // A header word and a length word; the first record of a page needs no time extension.
        size.data() - 8
    }

    /// Adds a record. Returns false if it does not fit. A time before the last record's time is stored as the last
    /// record's time, because times in a page do not decrease.
    pub fn push(&mut self, time: u64, payload: &[u8]) -> bool {
        if payload.len() > Self::longest(self.size) {
            return false;
        }
        let padded = payload.len().next_multiple_of(4).max(4);
        let words = padded / 4;
        let time = if self.records == 0 { time } else { time.max(self.last) };
        let delta = if self.records == 0 { 0 } else { time - self.last };
        let extend = delta >> DELTA_BITS != 0;
        let long = words > SHORT_WORDS;
        let length = padded + 4 + if long { 4 } else { 0 } + if extend { 8 } else { 0 };
        if self.bytes.len() + length > self.size.data() {
            return false;
        }
        if self.records == 0 {
            self.start = time;
            // Most pages fill up, so one large allocation is cheaper than many.
            self.bytes.reserve_exact(self.size.data());
        }
        let mut word = |value: u32| self.bytes.extend_from_slice(&value.to_ne_bytes());
        let mut short = delta as u32;
        if extend {
            let mask = (1 << DELTA_BITS) - 1;
            word(TIME_EXTEND | ((delta & mask) as u32) << 5);
            word((delta >> DELTA_BITS) as u32);
            short = 0;
        }
        if long {
            word(short << 5);
            word(padded as u32 + 4);
        } else {
            word(words as u32 | short << 5);
        }
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(self.bytes.len() + padded - payload.len(), 0);
        self.last = time;
        self.records += 1;
        self.kinds.add(payload);
        true
    }

    /// Removes and returns the records from a position on; `records` is the number of records before it.
    pub fn cut(&mut self, from: Place, records: u64) -> Vec<(u64, Vec<u8>)> {
        let (mut place, mut cut) = (from, Vec::new());
        while let Some((time, payload, next)) = self.record(place) {
            cut.push((time, payload.to_vec()));
            place = next;
        }
        self.bytes.truncate(from.at);
        (self.last, self.records) = (from.time, records);
        cut
    }

    /// Number of records.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The number of its first record among all records of the buffer.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its size.
    pub fn size(&self) -> PageSize {
        self.size
    }

    /// Bytes of records, headers included.
    pub fn used(&self) -> usize {
        self.bytes.len()
    }

    /// Position of the first record.
    pub fn first(&self) -> Place {
        Place { at: 0, time: self.start }
    }

    /// The record at a position as time and payload (padded to four bytes), and the position after it.
    pub fn record(&self, place: Place) -> Option<(u64, &[u8], Place)> {
        let word = |at: usize| Some(u32::from_ne_bytes(*self.bytes.get(at..)?.first_chunk()?));
        let Place { mut at, mut time } = place;
        loop {
            let header = word(at)?;
            let (kind, delta) = (header & 31, u64::from(header >> 5));
            if kind == TIME_EXTEND {
                time = time.wrapping_add((u64::from(word(at + 4)?) << DELTA_BITS) + delta);
                at += 8;
                continue;
            }
            let (start, end) = if kind == 0 {
                (at + 8, at + 4 + word(at + 4)? as usize)
            } else {
                (at + 4, at + 4 + 4 * kind as usize)
            };
            time = time.wrapping_add(delta);
            return Some((time, self.bytes.get(start..end)?, Place { at: end, time }));
        }
    }

    /// The page in the kernel's format, from a position on. `lost` is the number of records to report as missing
    /// before it.
    pub fn export(&self, from: Place, lost: u64) -> Vec<u8> {
        let rest = self.bytes.get(from.at..).unwrap_or_default();
        // The time of a page is the base for the header of its first record.
        let mut page = Vec::with_capacity(self.size.bytes());
        page.extend_from_slice(&from.time.to_ne_bytes());
        let mut commit = rest.len() as u64;
        let stored = rest.len() + 8 <= self.size.data();
        if lost > 0 {
            commit |= MISSED | if stored { MISSED_STORED } else { 0 };
        }
        page.extend_from_slice(&commit.to_ne_bytes());
        page.extend_from_slice(rest);
        if lost > 0 && stored {
            page.extend_from_slice(&lost.to_ne_bytes());
        }
        page.resize(self.size.bytes(), 0);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Page {
        Page::new(PageSize::LEAST, 0, &KindCounts::default())
    }

    /// Everything that a page holds.
    fn read(page: &Page) -> Vec<(u64, Vec<u8>)> {
        page.clone().cut(page.first(), 0)
    }

    #[test]
    fn records_are_read_unchanged() {
        let mut page = empty();
        let written = [
            (1000, vec![1; 8]),
            (1000, vec![2; 4 * SHORT_WORDS]),
            (1001, vec![3; 4 * SHORT_WORDS + 4]),
            (1001 + (1 << DELTA_BITS), vec![4; 12]),
            (5_000_000_000_000, vec![5; 20]),
        ];
        for (time, payload) in &written {
            assert!(page.push(*time, payload));
        }
        assert_eq!(read(&page), written);
        assert_eq!(page.records(), 5);
    }

    #[test]
    fn payloads_are_padded_and_times_do_not_go_back() {
        let mut page = empty();
        assert!(page.push(50, &[9; 9]) && page.push(40, &[1]));
        assert_eq!(read(&page), [(50, [[9; 9].as_slice(), &[0; 3]].concat()), (50, vec![1, 0, 0, 0])]);
    }

    #[test]
    fn a_page_is_filled_to_its_last_byte_and_no_further() {
        let mut page = empty();
        // 4,080 bytes: 255 records of 16 bytes.
        let count = (0..1000).take_while(|time| page.push(*time, &[0; 12])).count();
        assert_eq!((count, page.used()), (255, 4080));
        let mut page = empty();
        assert!(page.push(1, &vec![7; Page::longest(PageSize::LEAST)]));
        assert!(!empty().push(1, &[0; 4090]));
    }

    #[test]
    fn pages_have_eight_sizes() {
        let exact = |bytes| PageSize::exactly(bytes).map(PageSize::bytes);
        let holding = |bytes| PageSize::holding(bytes).map(PageSize::bytes);
        assert_eq!(
            (0..20).filter(|bit| exact(1 << bit).is_some()).collect::<Vec<_>>(),
            [12, 13, 14, 15, 16, 17, 18, 19]
        );
        for none in [0, 1, 15, 16, 17, 4095, 4097, 12288, 1 << 20, usize::MAX] {
            assert_eq!(exact(none), None, "{none}");
        }
        assert_eq!([1, 4096, 4097, 8193].map(holding), [Some(4096), Some(4096), Some(8192), Some(16384)]);
        assert_eq!([0, (512 << 10) + 1, u64::MAX].map(holding), [None; 3]);
    }

    #[test]
    fn every_time_is_encoded() {
        let mut page = empty();
        for time in [u64::MAX, 0, u64::MAX - 1] {
            assert!(page.push(time, &[1; 4]));
        }
        let mut page = empty();
        for time in [0, u64::MAX, 7] {
            assert!(page.push(time, &[1; 4]));
        }
        assert_eq!(read(&page).len(), 3);
    }

    #[test]
    fn exported_pages_are_the_kernels() {
        let mut page = empty();
        page.push(100, &[1; 8]);
        page.push(107, &[2; 8]);
        let (_, _, second) = page.record(page.first()).unwrap();
        let whole = page.export(page.first(), 0);
        assert_eq!(whole.len(), 4096);
        assert_eq!(whole[..8], 100_u64.to_ne_bytes());
        assert_eq!(whole[8..16], 24_u64.to_ne_bytes());
        assert_eq!(whole[16..20], 2_u32.to_ne_bytes());
        assert_eq!(whole[28..32], (2 | 7_u32 << 5).to_ne_bytes());
        let rest = page.export(second, 3);
        assert_eq!(rest[..8], 100_u64.to_ne_bytes());
        assert_eq!(rest[8..16], (0x0c | MISSED | MISSED_STORED).to_ne_bytes());
        assert_eq!(rest[28..36], 3_u64.to_ne_bytes());
    }
}
