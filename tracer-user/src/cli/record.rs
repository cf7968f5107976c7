//! `tracer record`: prints the records of events as they happen.

use std::{
    fs::File,
    io::{BufWriter, Read, Write},
    os::unix::{fs::OpenOptionsExt, net::UnixStream},
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;

use super::{args::RecordArgs, exec, style};
use crate::{
    api::{Recording, RecordingBuilder},
    engine::{
        confine::{self, Role},
        facts::Facts,
        record::Count,
        records::ShownRecord,
    },
    fs,
    render::{
        LineWriter, TextBuffer, json,
        line::{self, BufferInfo, Stamp},
    },
};

/// Size of a pipe on standard output: the largest that an unprivileged process may set by default.
const PIPE_BYTES: usize = 1 << 20;

/// Bytes of text to write at once.
const BATCH: usize = 64 * 1024;

pub(super) fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    let facts = Arc::new(Facts::running()?);
    let builder = builder(args);
    let selection = builder.select(Arc::clone(&facts))?;
    let mut output = Output::open(args, &facts)?;
    let mut recording = builder.attach_selected(selection, Arc::clone(&facts))?;
    for hook in recording.recorder().hooks() {
        tracing::info!(event = %hook.format.full_name(), point = ?hook.point, why = %hook.reason, "recording");
    }
    let signals = Signals::install().context("cannot catch signals")?;
    recording.recorder().waiter().add(&signals.pipe)?;
    let ready = args.ready_fd.map(|fd| File::options().write(true).open(format!("/proc/self/fd/{fd}")));
    let closer = fs::Closer::start_for(recording.recorder().events());
    // The command's process started before, with the caller's privileges.
    confine::confine(Role::Recorder);
    let started = recording.go();
    if let Some(ready) = ready {
        ready?.write_all(b"\n")?;
    }
    let status = match (started, args.command.first()) {
        (Err(error), Some(program)) => Ok(exec::cannot_run(program, &error)),
        (started, _) => {
            started?;
            drive(args, &mut recording, &mut output, &signals, &facts)
        }
    };
    let mut recorder = recording.into_recorder();
    recorder.finish(|shown| output.show(shown, &facts));
    let written = output.flush();
    // The summary is printed even if the output cannot be written.
    summary(&recorder.counts(), recorder.missed_together());
    let events = recorder.end();
    match closer {
        Some(closer) => closer.close(events),
        None => drop(events),
    }
    match status.and_then(|status| written.map(|()| status)) {
        // The reader closed the output early: a failure without a message.
        Err(error) if super::is_broken_pipe(&error) => Ok(ExitCode::FAILURE),
        ended => ended,
    }
}

fn builder(args: &RecordArgs) -> RecordingBuilder {
    let mut builder = Recording::builder()
        .ring_bytes(args.buffer_size_kb * 1024)
        .own(args.own)
        .perf_tracepoints_only(args.tracepoints)
        .whole_system(args.all)
        .tgid(args.tgid);
    builder = args.events.iter().fold(builder, RecordingBuilder::event);
    builder = args.probes.iter().fold(builder, RecordingBuilder::probe);
    builder = args.programs.iter().fold(builder, RecordingBuilder::program);
    builder = args.pid.iter().fold(builder, |builder, pid| builder.process(*pid));
    if let Some(comm) = &args.comm {
        builder = builder.comm(comm);
    }
    if let Some((program, rest)) = args.command.split_first() {
        let mut command = Command::new(program);
        command.args(rest);
        builder = builder.command(command);
    }
    builder
}

/// Runs until the time limit, the count, the command's end or a signal ends it.
fn drive(
    args: &RecordArgs,
    recording: &mut Recording,
    output: &mut Output,
    signals: &Signals,
    facts: &Facts,
) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    loop {
        let left = args.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(start.elapsed()));
        recording.recorder().wait(left)?;
        recording.recorder().poll(|shown| output.show(shown, facts));
        output.flush()?;
        if let Some(status) = recording.command_status()? {
            return Ok(super::exit_code(status));
        }
        if output.full() || signals.received() || args.limit.is_some_and(|limit| start.elapsed() >= limit) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// The output and its options.
struct Output {
    to: Box<dyn Write>,
    text: TextBuffer,
    writer: LineWriter,
    json: bool,
    left: Option<u64>,
    failed: Option<std::io::Error>,
}

impl Output {
    fn open(args: &RecordArgs, facts: &Facts) -> anyhow::Result<Self> {
        let to: Box<dyn Write> = if let Some(path) = &args.output {
            // Records may be confidential. An existing file keeps its permissions.
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
            Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
        } else {
            let stdout = std::io::stdout();
            // A pipe of the usual 64 KiB makes writer and reader take turns. Other files have no such size.
            let _ = rustix::pipe::fcntl_setpipe_size(&stdout, PIPE_BYTES);
            Box::new(stdout)
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
        let mut text = TextBuffer::default();
        if !args.json && !args.quiet && !args.bin {
            let mut header = Vec::new();
            line::header(&mut header, &options, BufferInfo { entries: 0, written: 0, cpus: facts.cpus() });
            // A stream has no count of entries.
            for line in header.split_inclusive(|byte| *byte == b'\n') {
                if !line.starts_with(b"# entries-in-buffer") {
                    text.bytes(line);
                }
            }
        }
        Ok(Self {
            to: Box::new(BufWriter::new(to)),
            text,
            writer: LineWriter::new(options),
            json: args.json,
            left: args.count,
            failed: None,
        })
    }

    fn show(&mut self, shown: &ShownRecord<'_>, facts: &Facts) {
        match &mut self.left {
            Some(0) => return,
            Some(left) => *left -= 1,
            None => {}
        }
        let stamp = Stamp { cpu: shown.record.cpu, time: shown.record.time };
        let (printer, payload, tasks) = (shown.printer, shown.record.payload, shown.tasks);
        if self.json {
            let lazy_flag = self.writer.options().lazy_flag;
            self.text.with(|text| json::object(text, printer, payload, stamp, lazy_flag, tasks, facts));
        } else {
            self.writer.line(&mut self.text, printer, payload, stamp, tasks, facts);
        }
        if self.text.length() >= BATCH {
            self.write();
        }
    }

    fn write(&mut self) {
        if self.failed.is_none() {
            self.failed = self.to.write_all(self.text.text()).err();
        }
        self.text.truncate(0);
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

/// SIGINT and SIGTERM, which end a recording in the normal way.
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

    pub(super) fn received(&self) -> bool {
        matches!((&self.pipe).read(&mut [0; 8]), Ok(1..))
    }
}

/// Prints the counts of hits to standard error.
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
    // Standard error may be closed.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
