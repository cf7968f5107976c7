//! An open file: where its reader is.

use std::{
    fs::File,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{
    engine::instance::{
        Filled, Lines, Marks, Mirror, Pages, Pipe, Seen,
        mark::{Mark, Writer},
    },
    event::EventId,
    fs::files::entry::{At, Entry, Names, Result, Shows},
    kernel::Error,
    lang::facts::Files,
};

/// What a file is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A read would not wait, or shows something new.
    pub input: bool,
    /// There is news since anything was last asked of the file.
    pub news: bool,
}

impl Ready {
    /// Whether it is ready for anything.
    pub fn any(self) -> bool {
        self.input || self.news
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// To be read.
    pub read: bool,
    /// To be written.
    pub write: bool,
    /// Emptied first.
    pub truncate: bool,
    /// Whose it is to be.
    pub uid: u32,
}

/// What a read comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// These bytes; none at the end.
    Data(Vec<u8>),
    /// Nothing yet.
    Wait,
}

/// What a file has between two reads.
#[derive(Debug)]
enum Body {
    /// Nothing.
    Plain,
    /// Text, once it was made.
    Seq(Option<Vec<u8>>),
    /// The text of a file of the kernel, and the number of reads that wait for exactly this text.
    Kernel { made: Option<Result<Vec<u8>>>, fresh: u32 },
    /// The same, of histograms.
    Hist(Counted),
    /// Records, from their beginning and from where the reader is: its text so far from `start` on.
    Trace(Box<Text>),
    /// Records that go.
    Pipe(Pipe),
    /// Pages that go.
    Raw(Pages),
    /// A table of user events, by its number; the `stat` file of whoever wrote last.
    User { number: u64, writer: Option<(u32, File)> },
}

impl Body {
    /// What a file has when it is opened.
    fn new(mirror: &mut Mirror, entry: &Entry, at: At, access: Access) -> Result<Self> {
        Ok(match entry.shows {
            Shows::Seq(_) | Shows::Page(..) => Self::Seq(None),
            Shows::Kernel(_) => Self::Kernel { made: None, fresh: 0 },
            Shows::Hist(_) => {
                let event = at.event()?;
                let asked = mirror.hist_seen(at.instance, event, false);
                Self::Hist(Counted { event, made: None, read: Seen::new(), asked })
            }
            Shows::Snapshot | Shows::Trace if access.read => {
                let snapshot = matches!(entry.shows, Shows::Snapshot);
                let paused = !snapshot
                    && mirror.get(at.instance).is_some_and(|state| state.options.is("pause-on-trace"));
                if paused {
                    mirror.pause(at.instance, true);
                }
                let first = Lines::new(mirror, at.instance, at.cpu(), snapshot).ok_or(Errno::NODEV)?;
                let text = Text { now: first.clone(), first, made: Vec::new(), start: 0, paused };
                Self::Trace(Box::new(text))
            }
            Shows::Pipe => {
                mirror.take_pipe(at.instance, at.cpu())?;
                Self::Pipe(Pipe::new(mirror, at.instance, at.cpu()))
            }
            Shows::RawPipe => Self::Raw(Pages::new(at.instance, at.cpu().unwrap_or_default(), false)),
            Shows::RawSnapshot => Self::Raw(Pages::new(at.instance, at.cpu().unwrap_or_default(), true)),
            Shows::UserEvents => Self::User { number: mirror.user_open(access.uid)?, writer: None },
            _ => Self::Plain,
        })
    }
}

/// The text of an event's histograms, and how far these had counted: when it was last read, and when anything was last asked of
/// the file (`struct hist_file_data`).
#[derive(Debug)]
struct Counted {
    event: EventId,
    made: Option<Vec<u8>>,
    read: Seen,
    asked: Seen,
}

/// Bytes of text that are made at a time in front of where somebody reads.
const PIECE: usize = 32 * 1024;

/// The text of records, from their beginning and from where the reader is; what was made of it begins at `start`.
#[derive(Debug)]
struct Text {
    first: Lines,
    now: Lines,
    made: Vec<u8>,
    start: u64,
    paused: bool,
}

/// How long text is made at a time.
const STEP: Duration = Duration::from_millis(10);
impl Text {
    /// None when more time is needed.
    fn read(&mut self, mirror: &mut Mirror, offset: u64, size: usize) -> Option<Vec<u8>> {
        let since = Instant::now();
        if offset < self.start {
            (self.now, self.start) = (self.first.clone(), 0);
            self.made.clear();
        }
        // Text in front of the offset, which may be any number, is made a piece at a time and dropped.
        while offset.saturating_sub(self.start) > self.made.len() as u64 {
            self.drop_first(self.made.len());
            match self.now.fill(mirror, &mut self.made, PIECE) {
                Filled::All if self.made.is_empty() => return Some(Vec::new()),
                Filled::Later => return None,
                Filled::All | Filled::More => {}
            }
            if since.elapsed() > STEP {
                return None;
            }
        }
        // What was read is read again only after a seek.
        self.drop_first(usize::try_from(offset.saturating_sub(self.start)).unwrap_or(usize::MAX));
        while self.made.len() < size {
            let piece = size.min(self.made.len().saturating_add(PIECE));
            match self.now.fill(mirror, &mut self.made, piece) {
                Filled::All => break,
                Filled::Later => return None,
                Filled::More => {}
            }
            if since.elapsed() > STEP {
                return None;
            }
        }
        Some(self.made.get(..size).unwrap_or(&self.made).to_vec())
    }

    /// Drops so many bytes of what was made, or all.
    fn drop_first(&mut self, bytes: usize) {
        let bytes = bytes.min(self.made.len());
        self.made.drain(..bytes);
        self.start = self.start.saturating_add(bytes as u64);
    }
}

/// An open file.
pub(in crate::fs) struct Open {
    pub(in crate::fs) at: At,
    entry: &'static Entry,
    body: Body,
}

impl Open {
    /// Opens a file: what opening does by itself, and where reading begins.
    pub(in crate::fs) fn new(
        mirror: &mut Mirror,
        entry: &'static Entry,
        at: At,
        access: Access,
    ) -> Result<Self> {
        if let Some(truncates) = entry.truncates.filter(|_| access.write && access.truncate) {
            truncates(mirror, at)?;
        }
        // Who maps it writes what others see: it is shown only, as by the kernel, which lets nobody map it to be written.
        if matches!(entry.shows, Shows::Page(..)) && access.write {
            return Err(Errno::ACCESS);
        }
        mirror.hold(at.instance)?;
        let body = Body::new(mirror, entry, at, access).inspect_err(|_| mirror.release(at.instance))?;
        Ok(Self { at, entry, body })
    }

    /// Whether the file is a stream, which has no positions.
    pub(in crate::fs) fn is_stream(&self) -> bool {
        matches!(self.entry.shows, Shows::Pipe | Shows::RawPipe | Shows::RawSnapshot | Shows::UserEvents)
    }

    /// Whether closing it changes nothing that others could see.
    pub(in crate::fs) fn closes_plainly(&self) -> bool {
        let paused = matches!(&self.body, Body::Trace(text) if text.paused);
        !paused && !matches!(self.body, Body::User { .. }) && self.entry.closes.is_none()
    }

    /// Where its writes go, where they are marks.
    pub(in crate::fs) fn marks(&self, mirror: &Mirror) -> Option<(Arc<Marks>, Mark)> {
        mirror.marks(self.at.instance).zip(self.entry.marks)
    }

    /// The number of its table of user events.
    pub(in crate::fs) fn user_file(&self) -> Option<u64> {
        match self.body {
            Body::User { number, .. } => Some(number),
            _ => None,
        }
    }

    /// What is mapped of it, where it can be mapped.
    pub(in crate::fs) fn page(&self, mirror: &Mirror) -> Option<Vec<u8>> {
        match self.entry.shows {
            Shows::Page(_, make) => Some(make(mirror)),
            _ => None,
        }
    }

    /// Whether what is read is pages.
    pub(in crate::fs) fn has_pages(&self) -> bool {
        matches!(self.body, Body::Raw(_))
    }

    /// The name of the kernel's file that must be read for a read at this offset.
    pub(in crate::fs) fn kernel_file(&self, offset: u64) -> Option<&'static str> {
        match &self.body {
            Body::Kernel { made, .. } if made.is_none() || offset == 0 => Some(self.entry.name),
            _ => None,
        }
    }

    /// Stores the text of that file for the next read.
    pub(in crate::fs) fn put_text(&mut self, text: std::result::Result<Option<String>, Error>) {
        if let (Shows::Kernel(make), Body::Kernel { made, fresh }) = (self.entry.shows, &mut self.body) {
            *made = Some(make(text));
            *fresh += 1;
        }
    }

    /// Reads; None when more time is needed.
    pub(in crate::fs) fn read(
        &mut self,
        mirror: &mut Mirror,
        offset: u64,
        size: usize,
    ) -> Result<Option<Outcome>> {
        let data = |data| Ok(Some(Outcome::Data(data)));
        let waits = |found: Option<Vec<u8>>| Ok(Some(found.map_or(Outcome::Wait, Outcome::Data)));
        match (&mut self.body, self.entry.shows) {
            (Body::Trace(text), _) => Ok(text.read(mirror, offset, size).map(Outcome::Data)),
            (Body::Pipe(pipe), _) => waits(pipe.read(mirror, size)),
            (Body::Raw(pages), _) => waits(pages.read(mirror, size)),
            (Body::Kernel { made, fresh }, Shows::Kernel(make)) => {
                let is_there = *fresh > 0 || (made.is_some() && offset > 0);
                *fresh = fresh.saturating_sub(1);
                if !is_there {
                    *made = Some(make(mirror.facts.tracefs.read(self.entry.name)));
                }
                match made {
                    Some(Ok(text)) => data(part(text, offset, size)),
                    Some(Err(errno)) => Err(*errno),
                    None => data(Vec::new()),
                }
            }
            (Body::Seq(made), shows @ (Shows::Seq(_) | Shows::Page(..))) => {
                if made.is_none() || offset == 0 {
                    *made = match shows {
                        Shows::Seq(make) => Some(make(mirror, self.at)?),
                        Shows::Page(make, _) => Some(make(mirror)?),
                        _ => None,
                    };
                }
                data(part(made.as_deref().unwrap_or_default(), offset, size))
            }
            (Body::Hist(counted), Shows::Hist(make)) => {
                if counted.made.is_none() || offset == 0 {
                    // First: what happens meanwhile is news.
                    counted.read = mirror.hist_seen(self.at.instance, counted.event, false);
                    counted.asked.clone_from(&counted.read);
                    counted.made = Some(make(mirror, self.at)?);
                }
                data(part(counted.made.as_deref().unwrap_or_default(), offset, size))
            }
            (_, Shows::Text(make)) => data(part(&make(mirror, self.at)?, offset, size)),
            (_, Shows::Once(make)) if offset == 0 => data(part(&make(mirror, self.at)?, 0, size)),
            (_, Shows::Once(_)) => data(Vec::new()),
            _ => Err(Errno::INVAL),
        }
    }

    /// What tells the files of users that a write names, and takes the write with them.
    pub(in crate::fs) fn names(&self) -> Option<Names> {
        self.entry.names
    }

    /// Writes, and says how much was taken. `files` are those that [`Open::names`] tells.
    pub(in crate::fs) fn write(
        &mut self,
        mirror: &mut Mirror,
        data: &[u8],
        who: u32,
        files: &Files,
    ) -> Result<usize> {
        if let Body::User { number, writer } = &mut self.body {
            return mirror.user_write(*number, data, Writer::again(who, writer));
        }
        if let Some(names) = self.entry.names {
            return (names.takes)(mirror, At { who, ..self.at }, data, files);
        }
        let takes = self.entry.takes.ok_or(Errno::INVAL)?;
        takes(mirror, At { who, ..self.at }, data)
    }

    /// What it is ready for, as poll(2) asks it.
    pub(in crate::fs) fn poll(&mut self, mirror: &mut Mirror, waits: bool) -> Ready {
        let at = self.at;
        let Body::Hist(counted) = &mut self.body else {
            return Ready { input: self.is_ready(mirror), news: false };
        };
        let now = mirror.hist_seen(at.instance, counted.event, waits);
        let ready = Ready { input: counted.read != now, news: counted.asked != now };
        counted.asked = now;
        ready
    }

    /// Whether one who waits for it is to be woken.
    pub(in crate::fs) fn is_awaited(&self, mirror: &mut Mirror) -> bool {
        match &self.body {
            Body::Hist(counted) => counted.asked != mirror.hist_seen(self.at.instance, counted.event, true),
            _ => self.is_ready(mirror),
        }
    }

    /// Whether time alone tells when it is ready: nothing wakes us for a record.
    pub(in crate::fs) fn needs_looking_at(&self) -> bool {
        !matches!(self.body, Body::Hist(_))
    }

    /// Whether its text may take long to be made; that is done beside the mirror's owner then, who must not be in a turn.
    pub(in crate::fs) fn takes_long(&self) -> bool {
        matches!(self.body, Body::Hist(_))
    }

    /// Whether a read would not wait.
    fn is_ready(&self, mirror: &mut Mirror) -> bool {
        match &self.body {
            // A pipe under the option `block` says always that it is ready.
            Body::Pipe(pipe) => {
                let blocks = mirror.get(self.at.instance).is_some_and(|state| state.options.is("block"));
                blocks || pipe.is_ready(mirror)
            }
            Body::Raw(pages) => pages.is_ready(mirror),
            _ => true,
        }
    }

    /// Closes it.
    pub(in crate::fs) fn close(self, mirror: &mut Mirror) {
        match self.body {
            Body::Trace(text) if text.paused => mirror.pause(self.at.instance, false),
            Body::Pipe(_) => mirror.give_pipe(self.at.instance, self.at.cpu()),
            Body::User { number, .. } => mirror.user_close(number),
            _ => {}
        }
        if let Some(closes) = self.entry.closes {
            closes(mirror, self.at);
        }
        mirror.release(self.at.instance);
    }
}

/// A part of a text.
fn part(text: &[u8], offset: u64, size: usize) -> Vec<u8> {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
    text.get(from..from.saturating_add(size).min(text.len())).unwrap_or_default().to_vec()
}
