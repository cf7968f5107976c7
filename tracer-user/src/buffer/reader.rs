//! Reading without consuming, across CPUs, in order of time.

use std::sync::Arc;

use super::{
    CpuBuffer, TraceBuffer,
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
}

/// One CPU's pages at the start of reading.
#[derive(Clone, Debug)]
struct Cursor {
    cpu: u32,
    pages: Vec<Arc<Page>>,
    page: usize,
    place: Place,
}

impl Cursor {
    fn new(cpu: u32, buffer: &CpuBuffer) -> Self {
        let (pages, place) = buffer.pages();
        Self { cpu, pages, page: 0, place }
    }

    /// Moves to the next page if this one is read completely.
    fn settle(&mut self) {
        while let Some(page) = self.pages.get(self.page) {
            if page.record(self.place).is_some() {
                return;
            }
            self.page += 1;
            self.place = self.pages.get(self.page).map_or_else(Place::default, |page| page.first());
        }
    }

    fn time(&self) -> Option<u64> {
        let (time, ..) = self.pages.get(self.page)?.record(self.place)?;
        Some(time)
    }
}

/// A snapshot of the buffers that is read in time order.
#[derive(Clone, Debug)]
pub struct Reader {
    start: Vec<Cursor>,
    cursors: Vec<Cursor>,
}

impl Reader {
    /// Starts reading one CPU or all.
    pub fn new(buffer: &TraceBuffer, cpu: Option<u32>) -> Self {
        let start: Vec<_> = buffer.select(cpu).map(|(number, buffer)| Cursor::new(number, buffer)).collect();
        let mut reader = Self { cursors: start.clone(), start };
        reader.rewind();
        reader
    }

    /// Restarts reading.
    pub fn rewind(&mut self) {
        self.cursors.clone_from(&self.start);
        self.cursors.iter_mut().for_each(Cursor::settle);
    }

    /// Time of the next record.
    pub fn next_time(&self) -> Option<u64> {
        self.cursors.iter().filter_map(Cursor::time).min()
    }

    /// The next record.
    pub fn advance(&mut self) -> Option<Entry<'_>> {
        let mut oldest: Option<(u64, usize)> = None;
        for (index, cursor) in self.cursors.iter().enumerate() {
            if let Some(time) = cursor.time().filter(|time| oldest.is_none_or(|(best, _)| *time < best)) {
                oldest = Some((time, index));
            }
        }
        let cursor = self.cursors.get_mut(oldest?.1)?;
        let (page, place) = (cursor.page, cursor.place);
        let (_, _, next) = cursor.pages.get(page)?.record(place)?;
        cursor.place = next;
        cursor.settle();
        let cpu = cursor.cpu;
        let (time, payload, _) = cursor.pages.get(page)?.record(place)?;
        Some(Entry { cpu, time, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::PageSize;

    #[test]
    fn records_come_in_order_and_again() {
        let mut buffer = TraceBuffer::new(3, 100_000, PageSize::LEAST);
        for time in 0..2000_u64 {
            let cpu = (time * 7 % 5 % 3) as u32;
            assert!(buffer.cpu_mut(cpu).unwrap().push(time, &(time as u32).to_ne_bytes()));
        }
        let mut reader = Reader::new(&buffer, None);
        for _ in 0..2 {
            for time in 0..2000_u64 {
                let entry = reader.advance().unwrap();
                assert_eq!((entry.time, entry.payload), (time, &(time as u32).to_ne_bytes()[..]));
            }
            assert!(reader.advance().is_none());
            reader.rewind();
        }
        let mut one = Reader::new(&buffer, Some(1));
        while let Some(entry) = one.advance() {
            assert_eq!((entry.cpu, entry.time * 7 % 5 % 3), (1, 1));
        }
        assert_eq!(buffer.consume(None, u64::MAX, |cpu, _, time, _| (cpu, time)), Some((0, 0)));
        assert_eq!(buffer.consume(None, 0, |_, _, _, _| ()), None);
    }
}
