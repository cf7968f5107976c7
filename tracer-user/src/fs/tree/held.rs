//! The texts and the pages of records that open files hold between two reads.
//!
//! The bytes are charged to the payer that opened the file. If a charge exceeds a limit, the file holds nothing, and no
//! read fails: the next read makes the text again, as a read from a seq_file of the kernel does, and a reader of records
//! finds its pages again in the buffer ([`Lines::hold`]).

use super::open::part;
use crate::{
    engine::{
        Engine,
        quota::{Charge, Kind, Quotas},
        records::{Filled, LineContext, Lines},
    },
    event::InstanceId,
    fs::files::entry::Result,
};

use std::time::{Duration, Instant};

/// The payer that opened a file.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) quotas: Quotas,
    pub(super) payer: u32,
}

impl Holder {
    /// Charges bytes; `None` if that exceeds a limit.
    pub(super) fn charge(&self, bytes: usize) -> Option<Charge> {
        self.quotas.try_charge(self.payer, Kind::HeldBytes, bytes).ok()
    }
}

/// A text that one read makes and that serves the following ones, until its end is read.
#[derive(Debug, Default)]
pub(super) struct HeldText {
    held: Option<(Vec<u8>, Charge)>,
    /// The length of the text that was made last.
    length: Option<u64>,
}

impl HeldText {
    /// At most `size` bytes of the text from an offset. A read from the beginning makes it anew.
    pub(super) fn read(
        &mut self,
        holder: &Holder,
        (offset, size): (u64, usize),
        make: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        if offset == 0 {
            *self = Self::default();
        }
        if self.is_end(offset) {
            return Ok(Vec::new());
        }
        let (text, charge) = match self.held.take() {
            Some((text, charge)) => (text, Some(charge)),
            None => (make()?, None),
        };
        let part = part(&text, offset, size);
        self.length = Some(text.len() as u64);
        if !self.is_end(offset.saturating_add(part.len() as u64)) {
            let charge = charge.or_else(|| holder.charge(text.capacity()));
            self.held = charge.map(|charge| (text, charge));
        }
        Ok(part)
    }

    /// Whether the text that was made last ends before this offset.
    fn is_end(&self, offset: u64) -> bool {
        self.length.is_some_and(|length| offset >= length)
    }
}

/// The text of a file of the kernel. It is read in advance, for each queued read of its beginning.
#[derive(Debug, Default)]
pub(super) struct KernelText {
    read: Option<(Result<Vec<u8>>, Option<Charge>)>,
    /// The number of queued reads for which it was read.
    fresh: u32,
    /// The length of the text that was read last.
    length: Option<u64>,
}

impl KernelText {
    /// Whether the kernel's file must be read before a read at this offset.
    pub(super) fn is_needed(&self, offset: u64) -> bool {
        offset == 0 || (self.read.is_none() && self.length.is_none_or(|length| offset < length))
    }

    /// Stores the text for a queued read.
    pub(super) fn put(&mut self, holder: &Holder, text: Result<Vec<u8>>) {
        self.length = text.as_ref().ok().map(|text| text.len() as u64);
        let charge = holder.charge(text.as_ref().map_or(0, Vec::capacity));
        self.read = Some((text, charge));
        self.fresh += 1;
    }

    /// At most `size` bytes of the text from an offset. `read` reads the kernel's file, if it was not read in advance.
    pub(super) fn part(
        &mut self,
        holder: &Holder,
        (offset, size): (u64, usize),
        read: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let is_there = self.fresh > 0 || !self.is_needed(offset);
        if !is_there {
            self.put(holder, read());
        }
        self.fresh = self.fresh.saturating_sub(1);
        let part = match &self.read {
            Some((Ok(text), _)) => Ok(part(text, offset, size)),
            Some((Err(errno), _)) => Err(*errno),
            None => Ok(Vec::new()),
        };
        let end = offset.saturating_add(part.as_ref().map_or(0, Vec::len) as u64);
        let is_read = self.length.is_none_or(|length| end >= length);
        let is_charged = self.read.as_ref().is_some_and(|(_, charge)| charge.is_some());
        if self.fresh == 0 && (is_read || !is_charged) {
            self.read = None;
        }
        part
    }
}

/// The bytes of text that are made at a time: one read of most programs.
const PIECE: usize = 128 * 1024;
/// How long one call makes text.
const STEP: Duration = Duration::from_millis(10);

/// The text of records: the position of a reader that does not consume them.
#[derive(Debug)]
pub(super) struct RecordText {
    /// The position of the first record.
    first: Lines,
    /// The place where the last finished read ended.
    last: Option<Box<Cursor>>,
    /// Whether the reader paused recording (`pause-on-trace`).
    pub(super) paused: bool,
    /// For the pages. Without it, pages are held only during a read.
    charge: Option<Charge>,
}

/// A place in the text of records. A read that needs more time keeps its cursor: with a cursor of the file, a read of a
/// place further back would begin anew, and two such reads could keep each other from ending.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The position after the text that is made.
    now: Lines,
    /// Text from offset `start` on.
    made: Vec<u8>,
    start: u64,
}

/// The text that a read of records requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextSpan {
    pub(crate) offset: u64,
    pub(crate) size: usize,
    /// Whether a part of it, if it took long to make, is no answer.
    pub(crate) whole: bool,
}

impl RecordText {
    pub(super) fn new(mut first: Lines, paused: bool, holder: &Holder) -> Self {
        let charge = holder.charge(first.held_bytes());
        if charge.is_none() {
            first.release();
        }
        Self { first, last: None, paused, charge }
    }

    /// The cursor for a read at an offset, with its pages. `begun` is that of a read that needs more time.
    pub(super) fn begin(
        &mut self,
        (engine, instance): (&Engine, InstanceId),
        offset: u64,
        begun: Option<Box<Cursor>>,
    ) -> Box<Cursor> {
        let last = || self.last.take().filter(|last| last.start <= offset);
        let mut cursor = begun
            .or_else(last)
            .unwrap_or_else(|| Box::new(Cursor { now: self.first.clone(), made: Vec::new(), start: 0 }));
        if self.charge.is_none() {
            cursor.now.hold(&engine.instances, instance);
        }
        cursor
    }

    /// Reads text. The error of a read that needs more time is its cursor, with which the caller begins again.
    pub(super) fn read(
        &mut self,
        context: &LineContext,
        span: TextSpan,
        mut cursor: Box<Cursor>,
    ) -> std::result::Result<Vec<u8>, Box<Cursor>> {
        let text = cursor.read(context, span);
        if self.charge.is_none() {
            cursor.now.release();
        }
        match text {
            Some(text) => {
                self.last = Some(cursor);
                Ok(text)
            }
            None => Err(cursor),
        }
    }
}

impl Cursor {
    /// Reads text at an offset that is not before `start`; `None` if the read needs more time.
    fn read(&mut self, context: &LineContext, span: TextSpan) -> Option<Vec<u8>> {
        let TextSpan { offset, size, whole } = span;
        let since = Instant::now();
        // The offset can be any number. Text before it is made piece by piece and dropped. Only a seek back needs it.
        while offset > self.start {
            let left = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
            let filled = if self.made.is_empty() {
                self.now.fill(context, &mut self.made, left.min(PIECE))
            } else {
                Filled::More
            };
            self.drop_first(left);
            match filled {
                _ if offset == self.start => {}
                Filled::All => return Some(Vec::new()),
                Filled::Later => return None,
                Filled::More if since.elapsed() > STEP => return None,
                Filled::More => {}
            }
        }
        while self.made.len() < size {
            let piece = size.min(self.made.len().saturating_add(PIECE));
            let is_late = match self.now.fill(context, &mut self.made, piece) {
                Filled::All => break,
                Filled::Later => true,
                Filled::More => since.elapsed() > STEP,
            };
            if is_late && (whole || self.made.is_empty()) {
                return None;
            }
            if is_late {
                break;
            }
        }
        Some(self.take_first(size))
    }

    /// Drops at most `bytes` bytes from the beginning of the text.
    fn drop_first(&mut self, bytes: usize) {
        let bytes = bytes.min(self.made.len());
        // Without the memory of the whole text.
        self.made = self.made.split_off(bytes);
        self.start = self.start.saturating_add(bytes as u64);
    }

    /// Takes at most `bytes` bytes from the beginning of the text.
    fn take_first(&mut self, bytes: usize) -> Vec<u8> {
        let rest = self.made.split_off(bytes.min(self.made.len()));
        let first = std::mem::replace(&mut self.made, rest);
        self.start = self.start.saturating_add(first.len() as u64);
        first
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn holder() -> Holder {
        Holder { quotas: Quotas::default(), payer: 7 }
    }

    /// Charges all that the payer may hold.
    fn exhaust(holder: &Holder) -> Vec<Charge> {
        (0..20).rev().flat_map(|bits| std::iter::from_fn(move || holder.charge(1 << bits))).collect()
    }

    #[test]
    fn a_text_is_held_until_its_end_is_read() {
        let (holder, mut text) = (holder(), HeldText::default());
        let mut made = 0;
        let mut read = |text: &mut HeldText, offset: u64, size: usize| {
            text.read(&holder, (offset, size), || {
                made += 1;
                Ok(format!("{made}bcdef").into_bytes())
            })
            .map(|part| String::from_utf8(part).unwrap())
            .unwrap()
        };
        assert_eq!(read(&mut text, 0, 3), "1bc");
        assert!(holder.quotas.used(7, Kind::HeldBytes) >= 6);
        assert_eq!(read(&mut text, 3, 3), "def");
        assert_eq!(holder.quotas.used(7, Kind::HeldBytes), 0);
        assert_eq!([read(&mut text, 6, 3), read(&mut text, 60, 3)], ["", ""]);
        // A seek back, and a read from the beginning.
        assert_eq!([read(&mut text, 4, 1), read(&mut text, 0, 100)], ["e", "3bcdef"]);
        // Without a charge each read makes it.
        let all = exhaust(&holder);
        assert_eq!([read(&mut text, 0, 3), read(&mut text, 1, 1)], ["4bc", "b"]);
        assert_eq!(made, 5);
        drop(all);
        assert_eq!(text.read(&holder, (0, 1), || Err(Errno::NODEV)), Err(Errno::NODEV));
    }

    #[test]
    fn a_text_of_the_kernel_serves_each_read_for_which_it_was_read() {
        let (holder, mut text) = (holder(), KernelText::default());
        let unread = || panic!("it was read in advance");
        // Two reads of the beginning are queued, and the first one reads everything.
        assert!(text.is_needed(0) && text.is_needed(5));
        text.put(&holder, Ok(b"abc".to_vec()));
        text.put(&holder, Ok(b"abcd".to_vec()));
        for _ in 0..2 {
            assert_eq!(text.part(&holder, (0, 10), unread).unwrap(), b"abcd");
        }
        assert_eq!(holder.quotas.used(7, Kind::HeldBytes), 0);
        assert!(!text.is_needed(4) && text.is_needed(3) && text.is_needed(0));
        assert_eq!(text.part(&holder, (4, 10), unread).unwrap(), b"");
        // In parts, with and without a charge.
        assert_eq!(text.part(&holder, (0, 2), || Ok(b"xyz".to_vec())).unwrap(), b"xy");
        assert!(!text.is_needed(2));
        assert_eq!(text.part(&holder, (2, 2), unread).unwrap(), b"z");
        let all = exhaust(&holder);
        assert_eq!(text.part(&holder, (0, 2), || Ok(b"xyz".to_vec())).unwrap(), b"xy");
        assert!(text.is_needed(2));
        text.put(&holder, Ok(b"xyz".to_vec()));
        assert_eq!(text.part(&holder, (2, 2), unread).unwrap(), b"z");
        drop(all);
        assert_eq!(text.part(&holder, (0, 2), || Err(Errno::NODEV)), Err(Errno::NODEV));
        assert_eq!(holder.quotas.used(7, Kind::HeldBytes), 0);
    }
}
