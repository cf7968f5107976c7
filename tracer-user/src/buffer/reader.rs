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
    /// The position of the next record, and its time.
    place: Place,
    time: Option<u64>,
}

impl Cursor {
    fn new(cpu: u32, buffer: &CpuBuffer) -> Self {
        let (pages, mut place) = buffer.pages();
        let mut page = 0;
        let time = settle(&pages, &mut page, &mut place);
        Self { cpu, pages, page, place, time }
    }

    /// Takes the next record.
    #[inline]
    fn advance(&mut self) -> Option<Entry<'_>> {
        let Self { cpu, pages, page, place, time } = self;
        let (at, payload, next) = pages.get(*page)?.record(*place)?;
        *place = next;
        *time = settle(pages, page, place);
        Some(Entry { cpu: *cpu, time: at, payload })
    }
}

/// Moves to the next page if this one is read completely. Returns the time of the next record.
#[inline]
fn settle(pages: &[Arc<Page>], page: &mut usize, place: &mut Place) -> Option<u64> {
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
}

impl Reader {
    /// Starts reading one CPU or all.
    pub fn new(buffer: &TraceBuffer, cpu: Option<u32>) -> Self {
        Self { cursors: buffer.select(cpu).map(|(number, buffer)| Cursor::new(number, buffer)).collect() }
    }

    /// Time of the next record.
    pub fn next_time(&self) -> Option<u64> {
        self.cursors.iter().filter_map(|cursor| cursor.time).min()
    }

    /// The next record.
    pub fn advance(&mut self) -> Option<Entry<'_>> {
        let mut oldest: Option<(u64, usize)> = None;
        for (index, cursor) in self.cursors.iter().enumerate() {
            if let Some(time) = cursor.time.filter(|time| oldest.is_none_or(|(best, _)| *time < best)) {
                oldest = Some((time, index));
            }
        }
        self.cursors.get_mut(oldest?.1)?.advance()
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
}
