//! An open file: where its reader is.

use std::fs::File;

use rustix::io::Errno;

use super::{
    entry::{At, Entry, Result, Shows},
    whole::{Access, Outcome, Ready},
};
use crate::control::instance::{Lines, Mirror, Pages, Pipe, Seen, mark::Writer};

/// What a file has between two reads.
#[derive(Debug)]
enum Body {
    /// Nothing.
    Plain,
    /// Text, once it was made.
    Seq(Option<Vec<u8>>),
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

/// The text of histograms, and how far these had counted: when it was last read, and when anything was last asked of the file
/// (`struct hist_file_data`).
#[derive(Debug)]
struct Counted {
    made: Option<Vec<u8>>,
    read: Seen,
    asked: Seen,
}

/// The text of records, from their beginning and from where the reader is; what was made of it begins at `start`.
#[derive(Debug)]
struct Text {
    first: Lines,
    now: Lines,
    made: Vec<u8>,
    start: u64,
    paused: bool,
}

impl Text {
    fn read(&mut self, mirror: &mut Mirror, offset: u64, size: usize) -> Result<Vec<u8>> {
        if offset < self.start {
            (self.now, self.start) = (self.first.clone(), 0);
            self.made.clear();
        }
        let skip = usize::try_from(offset - self.start).map_err(|_| Errno::INVAL)?;
        while self.made.len() < skip + size && self.now.fill(mirror, &mut self.made, skip + size) {}
        let from = skip.min(self.made.len());
        let part = self.made[from..(skip + size).min(self.made.len())].to_vec();
        // What was read is read again only after a seek.
        self.made.drain(..from);
        self.start += from as u64;
        Ok(part)
    }
}

/// An open file.
pub(super) struct Open {
    pub(super) at: At,
    entry: &'static Entry,
    body: Body,
}

impl Open {
    /// Opens a file: what opening does by itself, and where reading begins.
    pub(super) fn new(mirror: &mut Mirror, entry: &'static Entry, at: At, access: Access) -> Result<Self> {
        if let Some(truncates) = entry.truncates.filter(|_| access.write && access.truncate) {
            truncates(mirror, at)?;
        }
        let body = match entry.shows {
            Shows::Seq(_) | Shows::Page(..) => Body::Seq(None),
            Shows::Hist(_) => Body::Hist(Counted {
                made: None,
                read: Seen::new(),
                asked: mirror.hist_seen(at.instance, at.index, false),
            }),
            Shows::Snapshot | Shows::Trace if access.read => {
                let snapshot = matches!(entry.shows, Shows::Snapshot);
                let paused = !snapshot
                    && mirror.get(at.instance).is_some_and(|state| state.options.is("pause-on-trace"));
                if paused {
                    mirror.pause(at.instance, true);
                }
                let first = Lines::new(mirror, at.instance, at.cpu, snapshot).ok_or(Errno::NODEV)?;
                let text = Text { now: first.clone(), first, made: Vec::new(), start: 0, paused };
                Body::Trace(Box::new(text))
            }
            Shows::Pipe => {
                mirror.take_pipe(at.instance, at.cpu)?;
                Body::Pipe(Pipe::new(mirror, at.instance, at.cpu))
            }
            Shows::RawPipe => Body::Raw(Pages::new(at.instance, at.cpu.unwrap_or_default(), false)),
            Shows::RawSnapshot => Body::Raw(Pages::new(at.instance, at.cpu.unwrap_or_default(), true)),
            Shows::UserEvents => Body::User { number: mirror.user_open(), writer: None },
            _ => Body::Plain,
        };
        mirror.hold(at.instance)?;
        Ok(Self { at, entry, body })
    }

    /// Whether the file is a stream, which has no positions.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.entry.shows, Shows::Pipe | Shows::RawPipe | Shows::RawSnapshot | Shows::UserEvents)
    }

    /// The number of its table of user events.
    pub(super) fn user_file(&self) -> Option<u64> {
        match self.body {
            Body::User { number, .. } => Some(number),
            _ => None,
        }
    }

    /// What is mapped of it, where it can be mapped.
    pub(super) fn page(&self, mirror: &Mirror) -> Option<Vec<u8>> {
        match self.entry.shows {
            Shows::Page(_, make) => Some(make(mirror)),
            _ => None,
        }
    }

    /// Whether what is read is pages.
    pub(super) fn has_pages(&self) -> bool {
        matches!(self.body, Body::Raw(_))
    }

    /// Reads.
    pub(super) fn read(&mut self, mirror: &mut Mirror, offset: u64, size: usize) -> Result<Outcome> {
        let data = |data| Ok(Outcome::Data(data));
        let waits = |found: Option<Vec<u8>>| Ok(found.map_or(Outcome::Wait, Outcome::Data));
        match (&mut self.body, self.entry.shows) {
            (Body::Trace(text), _) => data(text.read(mirror, offset, size)?),
            (Body::Pipe(pipe), _) => waits(pipe.read(mirror, size)),
            (Body::Raw(pages), _) => waits(pages.read(mirror, size)),
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
                    counted.read = mirror.hist_seen(self.at.instance, self.at.index, false);
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

    /// Writes, and says how much was taken.
    pub(super) fn write(&mut self, mirror: &mut Mirror, data: &[u8], who: u32) -> Result<usize> {
        if let Body::User { number, writer } = &mut self.body {
            return mirror.user_write(*number, data, Writer::again(who, writer));
        }
        let takes = self.entry.takes.ok_or(Errno::INVAL)?;
        takes(mirror, At { who, ..self.at }, data)
    }

    /// What it is ready for, as poll(2) asks it.
    pub(super) fn poll(&mut self, mirror: &mut Mirror, waits: bool) -> Ready {
        let at = self.at;
        let Body::Hist(counted) = &mut self.body else {
            return Ready { input: self.is_ready(mirror), news: false };
        };
        let now = mirror.hist_seen(at.instance, at.index, waits);
        let ready = Ready { input: counted.read != now, news: counted.asked != now };
        counted.asked = now;
        ready
    }

    /// Whether one who waits for it is to be woken.
    pub(super) fn is_awaited(&self, mirror: &mut Mirror) -> bool {
        match &self.body {
            Body::Hist(counted) => counted.asked != mirror.hist_seen(self.at.instance, self.at.index, true),
            _ => self.is_ready(mirror),
        }
    }

    /// Whether time alone tells when it is ready: nothing wakes us for a record.
    pub(super) fn needs_looking_at(&self) -> bool {
        !matches!(self.body, Body::Hist(_))
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
    pub(super) fn close(self, mirror: &mut Mirror) {
        match self.body {
            Body::Trace(text) if text.paused => mirror.pause(self.at.instance, false),
            Body::Pipe(_) => mirror.give_pipe(self.at.instance, self.at.cpu),
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
    text[from..from.saturating_add(size).min(text.len())].to_vec()
}
