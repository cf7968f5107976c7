//! Splits pages of the kernel's ring buffer, as read from `trace_pipe_raw`, into records.
//!
//! A page has a timestamp, a count of committed bytes, and the events one after the other. An event's header has the
//! time since the previous event and the length (`include/linux/ring_buffer.h`; `events/header_page` and
//! `events/header_event` of tracefs describe both). The page size is fixed when the kernel creates the buffer, and
//! reads must use it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// One record of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The CPU that recorded it.
    pub cpu: u32,
    /// Time of the trace clock; in nanoseconds when the clock counts them.
    pub time: u64,
    /// The payload that the event's format describes, padded to four bytes.
    pub payload: Vec<u8>,
}

/// The layout of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the events.
    data: usize,
    /// Bytes of a page, header and events.
    page: usize,
}

/// Bits of the commit word that are not part of the count: events were lost before this page, and their number is
/// stored.
const COMMIT_FLAGS: u64 = 3 << 30;
/// `RINGBUF_TYPE_PADDING`
const PADDING: u32 = 29;
/// `RINGBUF_TYPE_TIME_EXTEND`
const TIME_EXTEND: u32 = 30;
/// `RINGBUF_TYPE_TIME_STAMP`
const TIME_STAMP: u32 = 31;
/// Bits of time in the first word of an event's header.
const DELTA_BITS: u32 = 27;

impl Layout {
    /// The layout of a tracefs mount's buffers.
    ///
    /// # Errors
    /// When `events/header_page` cannot be read.
    pub fn of(tracefs: &Path) -> Result<Self> {
        let path = tracefs.join("events/header_page");
        // The file returns its text to the first read only, so the buffer must be large enough.
        let mut text = vec![0; 4096];
        let length = File::open(&path).and_then(|mut file| file.read(&mut text));
        let length = length.with_context(|| path.display().to_string())?;
        Self::parse(std::str::from_utf8(&text[..length])?)
    }

    /// Reads the text of `events/header_page`.
    ///
    /// # Errors
    /// When the field `data` is not described.
    pub fn parse(header_page: &str) -> Result<Self> {
        let line =
            header_page.lines().find(|line| line.contains(" data;")).context("header_page: no data")?;
        let number = |key: &str| -> Result<usize> {
            let value = line.split(';').find_map(|part| part.trim().strip_prefix(key));
            Ok(value.with_context(|| format!("header_page: no {key}"))?.trim().parse()?)
        };
        let data = number("offset:")?;
        Ok(Self { data, page: data + number("size:")? })
    }

    /// Reads and consumes all records of a CPU's buffer.
    ///
    /// # Errors
    /// When it cannot be read or its content is not a page.
    pub fn drain(&self, trace_pipe_raw: &Path, cpu: u32) -> Result<Vec<Record>> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut file: File = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(trace_pipe_raw)
            .with_context(|| trace_pipe_raw.display().to_string())?;
        let mut records = Vec::new();
        let mut page = vec![0; self.page];
        loop {
            match file.read(&mut page) {
                Ok(0) => return Ok(records),
                Ok(length) => self.records(&page[..length], cpu, &mut records)?,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(records),
                Err(error) => return Err(error).with_context(|| trace_pipe_raw.display().to_string()),
            }
        }
    }

    /// Splits one page into records.
    ///
    /// # Errors
    /// When the page's counts do not fit.
    pub fn records(&self, page: &[u8], cpu: u32, records: &mut Vec<Record>) -> Result<()> {
        let head: [u8; 8] = page.get(..8).context("a page without a time")?.try_into()?;
        let commit: [u8; 8] = page.get(8..16).context("a page without a count")?.try_into()?;
        let mut time = u64::from_ne_bytes(head);
        let committed = (u64::from_ne_bytes(commit) & 0xffff_ffff & !COMMIT_FLAGS) as usize;
        let events = page.get(self.data..self.data + committed).context("a page shorter than its events")?;
        let word = |at: usize| -> Result<u32> {
            Ok(u32::from_ne_bytes(events.get(at..at + 4).context("an event cut off")?.try_into()?))
        };
        let mut at = 0;
        while at < events.len() {
            let header = word(at)?;
            let (kind, delta) = (header & 31, u64::from(header >> 5));
            let (payload, next) = match kind {
                PADDING if delta == 0 => return Ok(()),
                PADDING => {
                    time += delta;
                    at += 4 + word(at + 4)? as usize;
                    continue;
                }
                TIME_EXTEND | TIME_STAMP => {
                    let stamp = (u64::from(word(at + 4)?) << DELTA_BITS) + delta;
                    // An absolute time lacks its five highest bits; they are taken from the page's timestamp.
                    time = if kind == TIME_STAMP { stamp | (time & (0x1f << 59)) } else { time + stamp };
                    at += 8;
                    continue;
                }
                0 => {
                    let length = word(at + 4)? as usize;
                    ensure!(length >= 4, "an event shorter than its length word");
                    (at + 8, at + 4 + length)
                }
                words => (at + 4, at + 4 + 4 * words as usize),
            };
            time += delta;
            let Some(payload) = events.get(payload..next) else { bail!("an event longer than its page") };
            records.push(Record { cpu, time, payload: payload.to_vec() });
            at = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

    #[test]
    fn a_page_of_every_kind_of_event() {
        let layout = Layout::parse(HEADER).unwrap();
        assert_eq!(layout, Layout { data: 16, page: 4096 });
        let mut events = Vec::new();
        for word in [
            2 | 10 << 5, // two words, 10 ns later
            0x1111_1111,
            0x2222_2222,
            PADDING | 5 << 5, // a discarded event of 8 bytes
            4,
            TIME_EXTEND | 1 << 5, // 1 + (2 << 27)
            2,
            3 << 5, // a length word of its own
            8,
            0x3333_3333,
            TIME_STAMP | 7 << 5,
            1,
            1, // one word, no time
            0x4444_4444,
            PADDING, // the rest
            0,
        ] {
            events.extend(u32::to_ne_bytes(word));
        }
        let mut page = 1000u64.to_ne_bytes().to_vec();
        page.extend((events.len() as u64 | 1 << 31).to_ne_bytes());
        page.extend(events);
        let mut records = Vec::new();
        layout.records(&page, 1, &mut records).unwrap();
        let seen: Vec<_> = records.iter().map(|r| (r.time, r.payload.len(), r.payload[0])).collect();
        assert_eq!(
            seen,
            [(1010, 8, 0x11), (1010 + 5 + 1 + (2 << 27) + 3, 4, 0x33), (7 + (1 << 27), 4, 0x44)]
        );
        assert!(layout.records(&page[..40], 1, &mut records).is_err());
    }
}
