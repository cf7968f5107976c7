//! An open file: its entry, its instance, and its state between two requests, such as the position of a reader of
//! records.

use std::sync::Arc;

use rustix::io::Errno;

use super::held::{Cursor, HeldText, Holder, KernelText, RecordText, TextSpan};
use crate::{
    engine::{
        Client, Engine, HoldCommand, RecordCommand, Reply,
        histograms::{HistCommands, Seen},
        quota::Charge,
        records::{LineContext, Lines, Mark, Marks, Pages, Pipe},
    },
    event::EventId,
    fs::files::entry::{At, ClientEngine, Entry, FileNames, Make, ReadKind, Result, Update},
    kernel::Error,
    lang::facts::Files,
};

/// The readiness of a file, for poll(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A read returns at once, or returns new text (`POLLIN`).
    pub input: bool,
    /// Something changed since the last read or poll of the file (`POLLPRI`).
    pub news: bool,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// With `O_TRUNC`.
    pub truncate: bool,
    /// The payer of the caller.
    pub payer: u32,
}

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes; none at the end of the file.
    Data(Vec<u8>),
    /// There is nothing to read yet.
    Wait,
}

/// The state of an open file between two requests.
#[derive(Debug)]
enum Body {
    Plain,
    Seq(HeldText),
    Kernel(KernelText),
    Hist(Counted),
    /// The position of a reader that does not consume records.
    Trace(Box<RecordText>),
    /// The position of a reader that consumes records.
    Pipe(Pipe),
    /// The position of a reader of pages, and the charge for a part of a page that was not read.
    Raw(Pages, Option<Charge>),
    /// The number of a table of user events.
    User(u64),
}

impl Body {
    fn new(engine: &mut Engine, entry: &Entry, at: At, access: Access, holder: &Holder) -> Result<Self> {
        Ok(match entry.read_kind {
            ReadKind::Seq(_) | ReadKind::Page(..) => Self::Seq(HeldText::default()),
            ReadKind::Kernel(_) => Self::Kernel(KernelText::default()),
            ReadKind::Hist(_) => {
                let event = at.event()?;
                let asked = HistCommands::of(engine, at.instance).hits_seen(event, false);
                Self::Hist(Counted { event, made: HeldText::default(), read: Seen::new(), asked })
            }
            ReadKind::Snapshot | ReadKind::Trace if access.read => {
                let snapshot = matches!(entry.read_kind, ReadKind::Snapshot);
                let pauses = at.state(engine).is_ok_and(|state| state.options.is("pause-on-trace"));
                let paused = pauses && !snapshot;
                if paused {
                    ClientEngine::new(engine, at).execute(HoldCommand::Pause(true))?;
                }
                let first = Lines::new(engine, at.instance, at.cpu(), snapshot).ok_or(Errno::NODEV)?;
                Self::Trace(Box::new(RecordText::new(first, paused, holder)))
            }
            ReadKind::Pipe => {
                ClientEngine::new(engine, at).execute(HoldCommand::Pipe(at.cpu()))?;
                Self::Pipe(Pipe::new(&engine.instances, at.instance, at.cpu()))
            }
            ReadKind::RawPipe | ReadKind::RawSnapshot => {
                let snapshot = matches!(entry.read_kind, ReadKind::RawSnapshot);
                Self::Raw(Pages::new(at.instance, at.cpu().unwrap_or_default(), snapshot), None)
            }
            ReadKind::UserEvents => match ClientEngine::new(engine, at).execute(HoldCommand::UserEvents)? {
                Reply::UserEvents(number) => Self::User(number),
                _ => return Err(Errno::IO),
            },
            _ => Self::Plain,
        })
    }
}

/// The text of an event's histograms, and their counts at the last read and at the last read or poll (`struct
/// hist_file_data`, kernel/trace/trace_events_hist.c).
#[derive(Debug)]
struct Counted {
    event: EventId,
    made: HeldText,
    read: Seen,
    asked: Seen,
}

pub(crate) struct Open {
    pub(crate) at: At,
    entry: &'static Entry,
    body: Body,
    /// The payer of the bytes that it holds.
    holder: Holder,
}

impl Open {
    /// Opens a file. The position of a reader is set here. `EACCES` for an open for writing of a file that can be
    /// mapped, `ENODEV` if the instance or event is gone, `EBUSY` if another reader has the pipe.
    pub(crate) fn new(engine: &mut Engine, entry: &'static Entry, at: At, access: Access) -> Result<Self> {
        if let Some(truncates) = entry.truncates.filter(|_| access.write && access.truncate) {
            ClientEngine::new(engine, at).execute(truncates(at)?)?;
        }
        // A writable mapping would change what other programs see. The kernel refuses the mapping, the mirror the
        // open.
        if matches!(entry.read_kind, ReadKind::Page(..)) && access.write {
            return Err(Errno::ACCESS);
        }
        ClientEngine::new(engine, at).execute(HoldCommand::Instance)?;
        let holder = Holder { quotas: engine.quotas.clone(), payer: access.payer };
        let body = Body::new(engine, entry, at, access, &holder)
            .inspect_err(|_| _ = ClientEngine::new(engine, at).execute(HoldCommand::ReleaseInstance))?;
        Ok(Self { at, entry, body, holder })
    }

    /// Whether the file is a stream without positions.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(
            self.entry.read_kind,
            ReadKind::Pipe | ReadKind::RawPipe | ReadKind::RawSnapshot | ReadKind::UserEvents
        )
    }

    /// Whether closing the file has no other effect.
    pub(crate) fn closes_plainly(&self) -> bool {
        let paused = matches!(&self.body, Body::Trace(text) if text.paused);
        !paused && !matches!(self.body, Body::User(_)) && self.entry.closes.is_none()
    }

    /// The queue of marks that receives the writes, if they make marks.
    pub(crate) fn marks(&self, engine: &Engine) -> Option<(Arc<Marks>, Mark)> {
        engine.instances.marks(self.at.instance).zip(self.entry.marks)
    }

    /// The number of the file's table of user events, if it has one.
    pub(crate) fn user_file(&self) -> Option<u64> {
        let Body::User(number) = self.body else { return None };
        Some(number)
    }

    /// The page that a mapping shows, if the file can be mapped.
    pub(crate) fn page(&self, engine: &Engine) -> Option<Vec<u8>> {
        let ReadKind::Page(_, make) = self.entry.read_kind else { return None };
        Some(make(engine))
    }

    /// Whether reads return pages of records.
    pub(crate) fn has_pages(&self) -> bool {
        matches!(self.body, Body::Raw(..))
    }

    /// The path in tracefs of the kernel's file that must be read for a read at this offset.
    pub(crate) fn kernel_file(&self, engine: &Engine, offset: u64) -> Option<String> {
        let Body::Kernel(text) = &self.body else { return None };
        text.is_needed(offset).then(|| kernel_path(self.entry, self.at, engine))
    }

    /// Stores the text of the kernel's file for the next read.
    pub(crate) fn put_text(&mut self, text: std::result::Result<Option<String>, Error>) {
        if let (ReadKind::Kernel(make), Body::Kernel(kept)) = (self.entry.read_kind, &mut self.body) {
            kept.put(&self.holder, make(text));
        }
    }

    /// Reads from the file; `EINVAL` if it cannot be read.
    pub(crate) fn read(&mut self, engine: &mut Engine, offset: u64, size: usize) -> Result<Outcome> {
        let data = |data| Ok(Outcome::Data(data));
        let waits = |found: Option<Vec<u8>>| Ok(found.map_or(Outcome::Wait, Outcome::Data));
        let entry = self.entry;
        let Self { at, holder, .. } = self;
        let mut make_of = |make: Make| {
            match entry.updates {
                Some(Update::Records) => _ = engine.collect(at.instance),
                Some(Update::AllRecords) => engine.collect_all(),
                Some(Update::Pids) => engine.instances.refresh_pids(at.instance, &mut engine.attachments),
                None => {}
            }
            make(engine, *at)
        };
        match (&mut self.body, entry.read_kind) {
            (Body::Trace(text), _) => {
                let context = LineContext::of(engine, at.instance).ok_or(Errno::NODEV)?;
                let mut begun = None;
                loop {
                    let cursor = text.begin((engine, at.instance), offset, begun);
                    match text.read(&context, TextSpan { offset, size, whole: true }, cursor) {
                        Ok(found) => return data(found),
                        Err(cursor) => begun = Some(cursor),
                    }
                }
            }
            (Body::Pipe(pipe), _) => waits(pipe.read(engine, size)),
            (Body::Raw(pages, charge), _) => {
                let bytes = at.state(engine).map_or(0, |state| state.page().bytes());
                if size < bytes && charge.is_none() {
                    *charge = holder.charge(bytes);
                    if charge.is_none() && holder.payer != 0 {
                        return Err(Errno::NOMEM);
                    }
                }
                let found = pages.read(engine, size);
                if !pages.has_rest() {
                    *charge = None;
                }
                waits(found)
            }
            (Body::Kernel(text), ReadKind::Kernel(make)) => {
                let path = || kernel_path(entry, *at, engine);
                data(text.part(holder, (offset, size), || make(engine.facts.tracefs.read(&path())))?)
            }
            (Body::Seq(text), ReadKind::Seq(make)) => {
                data(text.read(holder, (offset, size), || make_of(make))?)
            }
            (Body::Seq(text), ReadKind::Page(make, _)) => {
                data(text.read(holder, (offset, size), || make(engine))?)
            }
            (Body::Hist(counted), ReadKind::Hist(make)) => {
                let Counted { event, made, read, asked } = counted;
                data(made.read(holder, (offset, size), || {
                    // The counts are taken first, so that hits during the read count as news.
                    *read = HistCommands::of(engine, at.instance).hits_seen(*event, false);
                    asked.clone_from(read);
                    make(engine, *at)
                })?)
            }
            (_, ReadKind::Text(make)) => data(part(&make_of(make)?, offset, size)),
            (_, ReadKind::Once(make)) if offset == 0 => data(part(&make_of(make)?, 0, size)),
            (_, ReadKind::Once(_)) => data(Vec::new()),
            _ => Err(Errno::INVAL),
        }
    }

    /// Whether a read makes text of records, which another thread can do ([`Open::read_text`]).
    pub(crate) fn makes_text(&self) -> bool {
        matches!(self.body, Body::Trace(_))
    }

    /// Begins to read text of records at an offset. `begun` is the cursor of a read that needs more time. `None` for
    /// other files.
    pub(crate) fn begin_text(
        &mut self,
        engine: &Engine,
        offset: u64,
        begun: Option<Box<Cursor>>,
    ) -> Option<Box<Cursor>> {
        let Body::Trace(text) = &mut self.body else { return None };
        Some(text.begin((engine, self.at.instance), offset, begun))
    }

    /// Reads text of records. The error of a read that needs more time is its cursor, to begin again with.
    pub(crate) fn read_text(
        &mut self,
        context: &LineContext,
        span: TextSpan,
        cursor: Box<Cursor>,
    ) -> std::result::Result<Vec<u8>, Box<Cursor>> {
        let Body::Trace(text) = &mut self.body else { return Ok(Vec::new()) };
        text.read(context, span, cursor)
    }

    /// The functions behind writes that name user files, if writes do.
    pub(crate) fn names(&self) -> Option<FileNames> {
        self.entry.names
    }

    /// Writes to the file and returns how many bytes were taken. `files` are the opened files that the data names
    /// ([`FileNames::wanted`]). `EINVAL` if the file cannot be written.
    pub(crate) fn write(
        &mut self,
        engine: &mut Engine,
        data: &[u8],
        client: Client,
        files: &Files,
    ) -> Result<usize> {
        let mut engine = ClientEngine::new(engine, At { client, ..self.at });
        if let Body::User(file) = self.body {
            return engine.execute(RecordCommand::UserEvent { file, record: data }).map(Reply::written);
        }
        if let Some(names) = self.entry.names {
            return (names.write)(&mut engine, data, files);
        }
        let write = self.entry.write.ok_or(Errno::INVAL)?;
        write(&mut engine, data)
    }

    /// Returns the readiness for poll(2); `waits` if the caller sleeps until the file is ready.
    pub(crate) fn poll(&mut self, engine: &mut Engine, waits: bool) -> Ready {
        let at = self.at;
        let Body::Hist(counted) = &mut self.body else {
            return Ready { input: self.is_ready(engine), news: false };
        };
        let now = HistCommands::of(engine, at.instance).hits_seen(counted.event, waits);
        let ready = Ready { input: counted.read != now, news: counted.asked != now };
        counted.asked = now;
        ready
    }

    /// Whether a thread that polls the file must be woken now.
    pub(crate) fn is_awaited(&self, engine: &mut Engine) -> bool {
        match &self.body {
            Body::Hist(counted) => {
                counted.asked != HistCommands::of(engine, self.at.instance).hits_seen(counted.event, true)
            }
            _ => self.is_ready(engine),
        }
    }

    /// Whether the file must be looked at regularly to learn when it is ready: records do not wake the daemon.
    pub(crate) fn needs_looking_at(&self) -> bool {
        !matches!(self.body, Body::Hist(_))
    }

    /// Whether its text can take long to make. Another thread makes it then, which is not possible in a turn.
    pub(crate) fn takes_long(&self) -> bool {
        matches!(self.body, Body::Hist(_))
    }

    /// Whether a read returns at once.
    fn is_ready(&self, engine: &mut Engine) -> bool {
        match &self.body {
            // Under the option `block`, a pipe is always ready.
            Body::Pipe(pipe) => {
                let blocks = self.at.state(engine).is_ok_and(|state| state.options.is("block"));
                blocks || pipe.is_ready(engine)
            }
            Body::Raw(pages, _) => pages.is_ready(&engine.instances),
            _ => true,
        }
    }

    pub(crate) fn close(self, engine: &mut Engine) {
        let mut engine = ClientEngine::new(engine, self.at);
        // The instance exists as long as the file is open.
        let mut release = |command| _ = engine.execute(command);
        match self.body {
            Body::Trace(text) if text.paused => release(HoldCommand::Pause(false)),
            Body::Pipe(_) => release(HoldCommand::ReleasePipe(self.at.cpu())),
            Body::User(file) => release(HoldCommand::ReleaseUserEvents(file)),
            _ => {}
        }
        if let Some(closes) = self.entry.closes {
            closes(&mut engine);
        }
        _ = engine.execute(HoldCommand::ReleaseInstance);
    }
}

/// At most `size` bytes of a text from an offset.
pub(super) fn part(text: &[u8], offset: u64, size: usize) -> Vec<u8> {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
    text.get(from..from.saturating_add(size).min(text.len())).unwrap_or_default().to_vec()
}

/// The path in tracefs of the kernel's file with the name of an entry, of the same event.
fn kernel_path(entry: &Entry, at: At, engine: &Engine) -> String {
    let Ok(event) = at.event() else { return entry.name.to_owned() };
    let events = engine.registry.events();
    let names = events.get(event).and_then(|known| Some((&events.system(known.system)?.name, &known.name)));
    // Of an event that is gone there is no file.
    let (system, name) = names.map_or(("", ""), |(system, name)| (system, name));
    format!("events/{system}/{name}/{}", entry.name)
}
