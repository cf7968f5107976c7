//! `tracer record`.

use std::{
    fs::File,
    io::{BufWriter, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{fs::OpenOptionsExt, net::UnixStream, process::ExitStatusExt},
    },
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::{args::RecordArgs, style};
use crate::{
    engine::{
        confine::{self, Role},
        facts::Facts,
        probes, programs,
        recorder::{Count, Options, Recorder, Shown},
        selection::{self, Selected},
    },
    fs,
    render::{
        json,
        line::{self, BufferInfo, Stamp},
    },
};

/// Bytes of text that are written at once.
const BATCH: usize = 64 * 1024;

pub(super) fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    let facts = Facts::running()?;
    let selected = select(args, &facts)?;
    let mut output = Output::open(args, &facts)?;
    let child = if args.command.is_empty() { None } else { Some(Held::start(&args.command)?) };
    let follow = child.as_ref().filter(|_| !args.all && args.pid.is_empty());
    let mut pids = threads_of(&args.pid)?;
    pids.extend(follow.map(|held| held.thread));
    let options = Options {
        ring_bytes: args.buffer_size_kb * 1024,
        only_pids: !pids.is_empty(),
        pids,
        own: args.own,
        tracepoints_only: args.tracepoints,
    };
    let mut recorder = Recorder::new(selected, &options, &facts)?;
    if args.tgid {
        recorder.want_groups();
    }
    let signals = Signals::install().context("cannot catch signals")?;
    recorder.waiter().add(&signals.pipe)?;
    let ready = args.ready_fd.map(|fd| File::options().write(true).open(format!("/proc/self/fd/{fd}")));
    let closer = fs::Closer::start_for(recorder.events());
    // The command was started before, with the caller's privileges.
    confine::confine(Role::Recorder);
    recorder.go();
    if let Some(ready) = ready {
        ready?.write_all(b"\n")?;
    }
    let mut child = child.map(Held::release).transpose()?;
    let status = drive(args, &mut recorder, &mut output, &signals, child.as_mut(), &facts);
    recorder.finish(|shown| output.show(shown, &facts));
    let written = output.flush();
    // Also where nobody reads any more, or nothing more can be written.
    summary(&recorder.counts(), recorder.missed_together());
    let events = recorder.end();
    match closer {
        Some(closer) => closer.close(events),
        None => drop(events),
    }
    match status.and_then(|status| written.map(|()| status)) {
        // Not all of it was read: no success, and nothing to tell a reader who went away.
        Err(error) if super::is_broken_pipe(&error) => Ok(ExitCode::FAILURE),
        ended => ended,
    }
}

/// Runs until the time, the count, the command or the user ends it.
fn drive(
    args: &RecordArgs,
    recorder: &mut Recorder,
    output: &mut Output,
    signals: &Signals,
    mut child: Option<&mut Child>,
    facts: &Facts,
) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    loop {
        let left = args.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(start.elapsed()));
        recorder.wait(left)?;
        recorder.poll(|shown| output.show(shown, facts));
        output.flush()?;
        if let Some(child) = child.as_mut()
            && let Some(status) = child.try_wait()?
        {
            let code = status.code().unwrap_or_else(|| status.signal().unwrap_or(0).saturating_add(128));
            return Ok(ExitCode::from(code as u8));
        }
        if output.full() || signals.came() || args.limit.is_some_and(|limit| start.elapsed() >= limit) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Resolves everything that was named before anything is attached.
fn select(args: &RecordArgs, facts: &Facts) -> anyhow::Result<Vec<Selected>> {
    let mut all: Vec<Selected> = Vec::new();
    let probed = probes::select(&args.probes, facts)?;
    let mut texts = args.events.clone();
    if !args.programs.is_empty() {
        (all, texts) = programs::select(&args.programs, &texts, probed.len(), facts)?;
        if let Some(comm) = &args.comm {
            for event in &mut all {
                event.filter = Some(selection::and_comm(event.filter.take(), comm));
            }
        }
    }
    for text in &texts {
        for mut event in selection::select(text, &facts.tracefs, facts)? {
            if let Some(comm) = &args.comm {
                event.filter = Some(selection::and_comm(event.filter, comm));
            }
            // Named twice: the later word counts, as a later write to a filter file would.
            match all.iter_mut().find(|other| other.format.id == event.format.id) {
                Some(other) => *other = event,
                None => all.push(event),
            }
        }
    }
    for mut event in probed {
        if let Some(comm) = &args.comm {
            event.filter = Some(selection::and_comm(event.filter, comm));
        }
        all.push(event);
    }
    Ok(all)
}

/// The threads of processes, by their ids.
fn threads_of(pids: &[u32]) -> anyhow::Result<Vec<u32>> {
    let mut threads = Vec::new();
    for pid in pids {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
            .with_context(|| format!("there is no process {pid}"))?;
        for task in tasks {
            threads.extend(task?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
    }
    Ok(threads)
}

/// Where lines go.
struct Output {
    to: Box<dyn Write>,
    text: Vec<u8>,
    options: line::Options,
    json: bool,
    left: Option<u64>,
    failed: Option<std::io::Error>,
}

impl Output {
    fn open(args: &RecordArgs, facts: &Facts) -> anyhow::Result<Self> {
        let to: Box<dyn Write> = match &args.output {
            Some(path) => {
                // What is recorded is for whoever may trace; a file that is there keeps its permissions.
                let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
                Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
            }
            None => Box::new(std::io::stdout()),
        };
        let options = line::Options {
            irq_info: !args.no_irq_info,
            print_tgid: args.tgid,
            raw: args.raw,
            hex: args.hex,
            bin: args.bin,
            fields: args.fields,
            ..line::Options::for_kernel(facts.version())
        };
        let mut text = Vec::with_capacity(2 * BATCH);
        if !args.json && !args.quiet && !args.bin {
            let mut header = Vec::new();
            line::header(&mut header, &options, BufferInfo { entries: 0, written: 0, cpus: facts.cpus() });
            // A stream has no entries to count yet.
            for line in header.split_inclusive(|byte| *byte == b'\n') {
                if !line.starts_with(b"# entries-in-buffer") {
                    text.extend_from_slice(line);
                }
            }
        }
        Ok(Self {
            to: Box::new(BufWriter::new(to)),
            text,
            options,
            json: args.json,
            left: args.count,
            failed: None,
        })
    }

    fn show(&mut self, shown: &Shown<'_>, facts: &Facts) {
        match &mut self.left {
            Some(0) => return,
            Some(left) => *left -= 1,
            None => {}
        }
        let stamp = Stamp { cpu: shown.record.cpu, time: shown.record.time };
        if self.json {
            json::object(
                &mut self.text,
                shown.printer,
                shown.record.payload,
                stamp,
                self.options.lazy_flag,
                shown.tasks,
                facts,
            );
        } else {
            line::line(
                &mut self.text,
                &self.options,
                shown.printer,
                shown.record.payload,
                stamp,
                shown.tasks,
                facts,
            );
        }
        if self.text.len() >= BATCH {
            self.write();
        }
    }

    fn write(&mut self) {
        if self.failed.is_none() {
            self.failed = self.to.write_all(&self.text).err();
        }
        self.text.clear();
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.write();
        match self.failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(self.to.flush()?),
        }
    }

    fn full(&self) -> bool {
        self.left == Some(0)
    }
}

/// SIGINT and SIGTERM end a recording as its own end would.
pub(super) struct Signals {
    pipe: UnixStream,
}

impl Signals {
    pub(super) fn install() -> std::io::Result<Self> {
        let (pipe, other) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::low_level::pipe::register(signal, other.try_clone()?)?;
        }
        Ok(Self { pipe })
    }

    pub(super) fn came(&self) -> bool {
        matches!((&self.pipe).read(&mut [0; 8]), Ok(1..))
    }
}

/// A command that waits to be let go.
struct Held {
    child: Child,
    thread: u32,
    go: OwnedFd,
}

impl Held {
    /// Starts this program again as the command's holder (`hold`).
    fn start(command: &[std::ffi::OsString]) -> anyhow::Result<Self> {
        let (mut told, tell) = std::io::pipe()?;
        let (wait, go) = std::io::pipe()?;
        // The holder inherits its two ends; ours close on exec as pipes made by std do.
        rustix::io::fcntl_setfd(&tell, rustix::io::FdFlags::empty())?;
        rustix::io::fcntl_setfd(&wait, rustix::io::FdFlags::empty())?;
        let child = Command::new("/proc/self/exe")
            .arg("hold")
            .arg(tell.as_raw_fd().to_string())
            .arg(wait.as_raw_fd().to_string())
            .arg("--")
            .args(command)
            .stdin(Stdio::inherit())
            .spawn()
            .context("cannot start the command")?;
        drop((tell, wait));
        let mut thread = [0; 4];
        if told.read_exact(&mut thread).is_err() {
            bail!("the command could not be started");
        }
        Ok(Self { child, thread: u32::from_ne_bytes(thread), go: go.into() })
    }

    /// Lets it become the command.
    fn release(self) -> anyhow::Result<Child> {
        File::from(self.go).write_all(b"\n")?;
        Ok(self.child)
    }
}

/// What became of the hits, on standard error.
fn summary(counts: &[Count], missed: u64) {
    use std::fmt::Write as _;
    let mut total = Count { event: "total".to_owned(), counters: tracer_abi::Counters::default(), missed };
    let mut text = String::new();
    let mut show = |count: &Count| {
        let c = count.counters;
        let _ = write!(
            text,
            "{}: hits={}, filtered={}, recorded={}, dropped={}",
            style::strong(&count.event),
            c.hits(),
            c.filtered,
            c.recorded,
            c.dropped
        );
        if count.missed > 0 {
            let _ = write!(text, ", missed={}", count.missed);
        }
        text.push('\n');
    };
    for count in counts {
        total.counters = total.counters.plus(count.counters);
        total.missed += count.missed;
        if counts.len() <= 20 || count.counters.hits() > 0 {
            show(count);
        }
    }
    show(&total);
    // Nobody may be there to read it.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
