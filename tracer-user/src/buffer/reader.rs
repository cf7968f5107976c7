//! Reading without consuming, across CPUs, in order of time.

use std::sync::Arc;

use super::{
    CpuBuffer, TraceBuffer,
    cpu::HeldPages,
    page::{Page, Place},
};

/// A record.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The CPU of the record.
    pub cpu: u32,
    /// Time of the trace clock.
    pub time: u64,
    /// The payload, padded to four bytes.
    pub payload: &'a [u8],
    /// Number of records of this CPU that were overwritten before the reader came to them.
    pub lost: u64,
}

/// Number of pages of a CPU that a reader holds at a time if it did not keep those from the start.
const PAGES: usize = 64;

/// A position in one CPU's buffer, and the pages while they are held.
#[derive(Clone, Debug)]
struct Cursor {
    cpu: u32,
    /// The number of the buffer.
    buffer: u64,
    pages: Arc<[Arc<Page>]>,
    /// Index of the page with the next record.
    page: usize,
    /// The position of the next record, and its time. `None` at the end.
    place: Place,
    time: Option<u64>,
    /// The numbers of the next record, and of the one after the last, among all records of the buffer.
    record: u64,
    end: u64,
    /// Number of inserted records when the pages were held last.
    inserted: u64,
    /// Records that were overwritten before the next one.
    lost: u64,
}

impl Cursor {
    fn new(cpu: u32, buffer: &CpuBuffer) -> Self {
        let (end, inserted) = (buffer.end(), buffer.inserted());
        let HeldPages { pages, record, mut place } = buffer.hold(0, usize::MAX);
        let mut page = 0;
        let time = settle(&pages, &mut page, &mut place, record < end);
        Self { cpu, buffer: buffer.number(), pages, page, place, time, record, end, inserted, lost: 0 }
    }

    /// Takes the next record.
    #[inline]
    fn advance(&mut self) -> Option<Entry<'_>> {
        let Self { cpu, pages, page, place, time, record, end, lost, .. } = self;
        let (at, payload, next) = pages.get(*page)?.record(*place)?;
        *place = next;
        *record += 1;
        *time = settle(pages, page, place, *record < *end);
        Some(Entry { cpu: *cpu, time: at, payload, lost: std::mem::take(lost) })
    }

    /// Whether it needs pages that are not held.
    fn is_short(&self) -> bool {
        self.time.is_none() && self.record < self.end
    }

    /// Holds some pages of the buffer again, from the next record on. Records that were overwritten or consumed
    /// meanwhile are skipped.
    fn hold(&mut self, buffer: &CpuBuffer, most: usize) {
        // Late records can have moved those from the position on. They are shown, too.
        let late = buffer.inserted() - std::mem::replace(&mut self.inserted, buffer.inserted());
        if self.record < self.end {
            self.end = self.end.saturating_add(late).min(buffer.end());
        }
        let before = self.time.filter(|_| late > 0);
        let HeldPages { pages, record, place } = buffer.hold(self.record, most);
        let all = pages.len() < most;
        (self.pages, self.page, self.place) = (pages, 0, place);
        if self.record < record {
            let first = record.min(self.end);
            self.lost += buffer.overwritten().min(first).saturating_sub(self.record);
            self.record = first;
        } else {
            for _ in record..self.record.min(self.end) {
                self.skip();
            }
        }
        self.find_time();
        // A record before the one that was next is shown already.
        while before.is_some() && self.time.is_some() && self.time < before {
            self.skip();
            self.record += 1;
            self.find_time();
        }
        if all && self.is_short() {
            self.finish();
        }
    }

    /// Moves behind a record.
    fn skip(&mut self) {
        if let Some((.., next)) = self.pages.get(self.page).and_then(|page| page.record(self.place)) {
            self.place = next;
        }
    }

    fn find_time(&mut self) {
        self.time = settle(&self.pages, &mut self.page, &mut self.place, self.record < self.end);
    }

    /// Ends, because the buffer has no more records.
    fn finish(&mut self) {
        (self.end, self.time) = (self.record, None);
    }
}

/// Moves to the next page if this one is read completely. Returns the time of the next record, if there is one.
#[inline]
fn settle(pages: &[Arc<Page>], page: &mut usize, place: &mut Place, is_more: bool) -> Option<u64> {
    if !is_more {
        return None;
    }
    loop {
        if let Some((time, ..)) = pages.get(*page)?.record(*place) {
            return Some(time);
        }
        *page += 1;
        *place = pages.get(*page).map_or_else(Place::default, |page| page.first());
    }
}

/// A snapshot of the buffers that is read in time order.
#[derive(Clone, Debug)]
pub struct Reader {
    cursors: Vec<Cursor>,
    /// Whether it holds only some of the pages.
    is_partial: bool,
}

impl Reader {
    /// Starts reading one CPU or all.
    pub fn new(buffer: &TraceBuffer, cpu: Option<u32>) -> Self {
        let cursors = buffer.select(cpu).map(|(number, buffer)| Cursor::new(number, buffer)).collect();
        Self { cursors, is_partial: false }
    }

    /// Bytes of the pages that it holds.
    pub fn held_bytes(&self) -> usize {
        let pages = self.cursors.iter().flat_map(|cursor| cursor.pages.iter());
        pages.map(|page| page.size().bytes()).sum()
    }

    /// Releases the pages and keeps the position. The reader must hold pages again before it continues.
    pub fn release(&mut self) {
        self.is_partial = true;
        self.cursors.iter_mut().for_each(|cursor| cursor.pages = Arc::default());
    }

    /// Holds some pages of these buffers again, from the position on. A CPU whose buffer is not among them has ended.
    pub fn hold(&mut self, buffers: &[&TraceBuffer]) {
        for cursor in self.cursors.iter_mut().filter(|cursor| cursor.record < cursor.end) {
            let mut found = buffers.iter().filter_map(|buffer| buffer.cpu(cursor.cpu));
            match found.find(|buffer| buffer.number() == cursor.buffer) {
                Some(buffer) => cursor.hold(buffer, PAGES),
                None => cursor.finish(),
            }
        }
    }

    /// Whether the next record may be in a page that is not held.
    pub fn is_short(&self) -> bool {
        self.is_partial && self.cursors.iter().any(Cursor::is_short)
    }

    /// The CPUs at their end whose last records were overwritten, and their numbers. Each is returned once.
    pub fn take_lost(&mut self) -> impl Iterator<Item = (u32, u64)> {
        let ended = self.cursors.iter_mut().filter(|cursor| cursor.record >= cursor.end);
        ended.map(|cursor| (cursor.cpu, std::mem::take(&mut cursor.lost))).filter(|(_, lost)| *lost > 0)
    }

    /// Time of the next record.
    pub fn next_time(&self) -> Option<u64> {
        self.cursors.iter().filter_map(|cursor| cursor.time).min()
    }

    /// The next record.
    pub fn advance(&mut self) -> Option<Entry<'_>> {
        let firsts = self.cursors.iter_mut().filter_map(|cursor| Some((cursor.time?, cursor)));
        let (_, oldest) = firsts.min_by_key(|(time, _)| *time)?;
        oldest.advance()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::PageSize;

    #[test]
    fn records_are_read_in_order_and_repeatedly() {
        let mut buffer = TraceBuffer::new(3, 100_000, PageSize::LEAST);
        for time in 0..2000_u64 {
            let cpu = (time * 7 % 5 % 3) as u32;
            assert!(buffer.cpu_mut(cpu).unwrap().push(time, &(time as u32).to_ne_bytes()));
        }
        let start = Reader::new(&buffer, None);
        for mut reader in [start.clone(), start] {
            for time in 0..2000_u64 {
                let entry = reader.advance().unwrap();
                assert_eq!((entry.time, entry.payload), (time, &(time as u32).to_ne_bytes()[..]));
            }
            assert!(reader.advance().is_none());
        }
        let mut one = Reader::new(&buffer, Some(1));
        while let Some(entry) = one.advance() {
            assert_eq!((entry.cpu, entry.time * 7 % 5 % 3), (1, 1));
        }
        assert_eq!(buffer.consume(None, u64::MAX, |cpu, _, time, _| (cpu, time)), Some((0, 0)));
        assert_eq!(buffer.consume(None, 0, |_, _, _, _| ()), None);
    }

    /// A buffer of one CPU with pages of 255 records, which overwrites from 511 records on.
    fn buffer() -> TraceBuffer {
        TraceBuffer::new(1, 1, PageSize::LEAST)
    }

    fn fill(buffer: &mut TraceBuffer, times: std::ops::Range<u64>) {
        let cpu = buffer.cpu_mut(0).unwrap();
        times.for_each(|time| assert!(cpu.push(time, &[time as u8; 12])));
    }

    /// The times of the next records, and how many were lost before each.
    fn next(reader: &mut Reader, count: usize) -> Vec<(u64, u64)> {
        (0..count).map_while(|_| reader.advance().map(|entry| (entry.time, entry.lost))).collect()
    }

    #[test]
    fn a_reader_without_pages_continues_where_it_was() {
        let mut buffer = buffer();
        fill(&mut buffer, 0..300);
        let mut reader = Reader::new(&buffer, None);
        assert_eq!(reader.held_bytes(), 2 * 4096);
        assert_eq!(next(&mut reader, 3), [(0, 0), (1, 0), (2, 0)]);
        let mut other = reader.clone();
        for reader in [&mut reader, &mut other] {
            reader.release();
            assert_eq!((reader.held_bytes(), reader.next_time()), (0, Some(3)));
        }
        // Younger records are not of this reader.
        fill(&mut buffer, 300..400);
        reader.hold(&[&buffer]);
        assert!(next(&mut reader, 1000).into_iter().eq((3..300).map(|time| (time, 0))));
        // The first page is overwritten.
        fill(&mut buffer, 400..520);
        other.hold(&[&buffer]);
        assert_eq!(next(&mut other, 2), [(255, 252), (256, 0)]);
        other.release();
        // All that is left, several times.
        for more in [520..1200, 1200..2000, 2000..3000] {
            fill(&mut buffer, more);
            other.hold(&[&buffer]);
            assert_eq!((next(&mut other, 1), other.is_short()), (vec![], false));
            other.release();
        }
        assert_eq!(other.take_lost().collect::<Vec<_>>(), [(0, 43)]);
        assert_eq!(other.take_lost().count(), 0);
    }

    #[test]
    fn a_reader_holds_only_some_pages_at_a_time() {
        let mut buffer = TraceBuffer::new(2, 1 << 20, PageSize::LEAST);
        fill(&mut buffer, 0..60_000);
        let mut reader = Reader::new(&buffer, None);
        assert!(!reader.is_short());
        let (mut all, mut times) = (Vec::new(), 0);
        while all.len() < 60_000 {
            reader.release();
            reader.hold(&[&buffer]);
            assert!(reader.held_bytes() <= PAGES * 4096);
            let some = next(&mut reader, 60_000);
            assert!(!some.is_empty() && (reader.is_short() || all.len() + some.len() == 60_000));
            all.extend(some);
            times += 1;
        }
        assert!(all.into_iter().eq((0..60_000).map(|time| (time, 0))) && times > 2);
        reader.release();
        reader.hold(&[&buffer]);
        assert_eq!((next(&mut reader, 1), reader.is_short()), (vec![], false));
    }

    #[test]
    fn a_buffer_without_records_has_ended() {
        let mut buffer = buffer();
        let mut reader = Reader::new(&buffer, None);
        reader.release();
        for more in [0..600, 600..1200] {
            fill(&mut buffer, more);
            reader.hold(&[&buffer]);
            assert_eq!((next(&mut reader, 1), reader.is_short()), (vec![], false));
        }
        assert_eq!(reader.take_lost().count(), 0);
    }

    #[test]
    fn consumed_records_are_skipped_and_not_lost() {
        let mut buffer = buffer();
        fill(&mut buffer, 0..400);
        let mut reader = Reader::new(&buffer, None);
        reader.release();
        let mut consume = |count: usize| {
            (0..count).for_each(|_| buffer.consume(None, u64::MAX, |_, _, _, _| ()).unwrap());
            reader.hold(&[&buffer]);
            let first = next(&mut reader, 1);
            reader.release();
            first
        };
        assert_eq!((consume(10), consume(290)), (vec![(10, 0)], vec![(300, 0)]));
        // Emptied.
        buffer.cpu_mut(0).unwrap().clear();
        fill(&mut buffer, 0..50);
        reader.hold(&[&buffer]);
        assert_eq!(next(&mut reader, 1), []);
    }

    #[test]
    fn a_late_record_does_not_confuse_a_reader_without_pages() {
        let mut buffer = buffer();
        fill(&mut buffer, 0..300);
        let mut reader = Reader::new(&buffer, None);
        assert_eq!(next(&mut reader, 290).len(), 290);
        reader.release();
        // It moves the records after it. Another one is among those that are not shown yet.
        assert!(buffer.cpu_mut(0).unwrap().insert(270, &[1; 40]));
        assert!(buffer.cpu_mut(0).unwrap().insert(295, &[1; 40]));
        reader.hold(&[&buffer]);
        let times = (290..296).chain(295..300);
        assert!(next(&mut reader, 100).into_iter().eq(times.map(|time| (time, 0))));
    }

    #[test]
    fn a_late_record_that_is_not_stored_makes_no_reader_wait() {
        for (length, overwrite) in [(12, false), (400, false), (5000, false), (5000, true)] {
            let mut buffer = buffer();
            buffer.cpu_mut(0).unwrap().set_overwrite(overwrite);
            let cpu = buffer.cpu_mut(0).unwrap();
            (0..510).for_each(|time| assert!(cpu.push(time, &[0; 12])));
            let mut reader = Reader::new(&buffer, None);
            assert_eq!(next(&mut reader, 300).len(), 300);
            reader.release();
            buffer.cpu_mut(0).unwrap().insert(400, &vec![1; length]);
            reader.hold(&[&buffer]);
            let rest = next(&mut reader, 1000);
            assert!(!rest.is_empty() && rest.len() <= 210 && !reader.is_short(), "{length} {overwrite}");
            reader.release();
            reader.hold(&[&buffer]);
            assert_eq!((next(&mut reader, 1), reader.is_short()), (vec![], false));
        }
    }

    #[test]
    fn a_reader_follows_its_buffer_into_a_snapshot() {
        let mut buffer = buffer();
        fill(&mut buffer, 0..300);
        let mut reader = Reader::new(&buffer, None);
        reader.release();
        let mut snapshot = buffer.empty_copy();
        buffer.swap(&mut snapshot, None);
        fill(&mut buffer, 1000..1010);
        let mut lost = reader.clone();
        reader.hold(&[&buffer, &snapshot]);
        assert!(next(&mut reader, 1000).into_iter().eq((0..300).map(|time| (time, 0))));
        lost.hold(&[&buffer]);
        assert_eq!((next(&mut lost, 1), lost.held_bytes()), (vec![], 0));
    }
}
