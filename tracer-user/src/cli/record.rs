//! `tracer record`: prints the records of events as they happen.

use std::{
    error::Error as _,
    fs::File,
    io::{self, Write},
    ops::ControlFlow,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::Context;

use super::{args::RecordArgs, exec, style};
use crate::{
    api::{
        EventCounts, LineOptions, Progress, RecordSink, RecordStart, RecordView, RecordWriter, Recording,
        RecordingBuilder, Summary,
    },
    engine::confine::{self, Role},
    fs,
};

/// Size of a pipe on standard output: the largest that an unprivileged process may set by default.
const PIPE_BYTES: usize = 1 << 20;

pub(super) fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    let selected = builder(args).select()?;
    let mut output = Output::open(args)?;
    let mut recording = selected.attach()?;
    recording.begin(&mut output);
    stop_on_signals(&recording).context("cannot catch signals")?;
    let ready = args.ready_fd.map(|fd| File::options().write(true).open(format!("/proc/self/fd/{fd}")));
    let closer = fs::Closer::start_for(recording.event_count());
    // The command's process started before, with the caller's privileges.
    confine::confine(Role::Recorder);
    let started = recording.start();
    if let Some(ready) = ready {
        ready?.write_all(b"\n")?;
    }
    let status = match started {
        Ok(()) => drive(args, &mut recording, &mut output),
        Err(error) => match (args.command.first(), error.source().and_then(|cause| cause.downcast_ref())) {
            (Some(program), Some(cause)) => Ok(exec::cannot_run(program, cause)),
            _ => Err(error.into()),
        },
    };
    recording.stop_with(&mut output);
    let written = output.writer.flush();
    let events = recording.detach();
    match closer {
        Some(closer) => closer.close(events),
        None => drop(events),
    }
    match status.and_then(|status| Ok(written.map(|()| status)?)) {
        // The reader closed the output early: a failure without a message.
        Err(error) if super::is_broken_pipe(&error) => Ok(ExitCode::FAILURE),
        ended => ended,
    }
}

/// Lets SIGINT and SIGTERM end a recording in the normal way.
fn stop_on_signals(recording: &Recording) -> anyhow::Result<()> {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::low_level::pipe::register(signal, OwnedFd::from(recording.stopper()?))?;
    }
    Ok(())
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
fn drive(args: &RecordArgs, recording: &mut Recording, output: &mut Output) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    loop {
        let left = args.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(start.elapsed()));
        let progress = recording.poll(output, left)?;
        output.writer.flush()?;
        match progress {
            Progress::Exited(status) => return Ok(super::exit_code(status)),
            Progress::Stopped => return Ok(ExitCode::SUCCESS),
            Progress::Running => {}
        }
        if output.is_full() || args.limit.is_some_and(|limit| start.elapsed() >= limit) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// The output, limited to a number of records, and the summary at its end.
struct Output {
    writer: RecordWriter<Box<dyn Write>>,
    left: Option<u64>,
}

impl Output {
    fn open(args: &RecordArgs) -> anyhow::Result<Self> {
        let to: Box<dyn Write> = if let Some(path) = &args.output {
            // Records may be confidential. An existing file keeps its permissions.
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
            Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
        } else {
            let stdout = io::stdout();
            // A pipe of the usual 64 KiB makes writer and reader take turns. Other files have no such size.
            let _ = rustix::pipe::fcntl_setpipe_size(&stdout, PIPE_BYTES);
            Box::new(stdout)
        };
        let lines = LineOptions {
            header: !args.quiet,
            irq_info: !args.no_irq_info,
            tgid: args.tgid,
            raw: args.raw,
            hex: args.hex,
            bin: args.bin,
            fields: args.fields,
        };
        let writer = if args.json { RecordWriter::json(to) } else { RecordWriter::lines(to, lines) };
        Ok(Self { writer, left: args.count })
    }

    fn is_full(&self) -> bool {
        self.left == Some(0)
    }
}

impl RecordSink for Output {
    fn begin(&mut self, start: &RecordStart<'_>) {
        for event in start.events {
            for hook in event.hooks() {
                let name = format_args!("{}:{}", event.system(), event.name());
                tracing::info!(event = %name, point = ?hook.point(), why = %hook.reason(), "recording");
            }
        }
        self.writer.begin(start);
    }

    fn record(&mut self, record: &RecordView<'_>) -> ControlFlow<()> {
        match &mut self.left {
            Some(0) => return ControlFlow::Break(()),
            Some(left) => *left -= 1,
            None => {}
        }
        self.writer.record(record)?;
        if self.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn finish(&mut self, summary: &Summary) {
        self.writer.finish(summary);
        // The summary is printed even if the output cannot be written.
        print_counts(summary);
    }
}

fn print_counts(Summary { counts, missed_together, .. }: &Summary) {
    use std::fmt::Write as _;
    let mut total =
        EventCounts { event: "total".to_owned(), missed: *missed_together, ..EventCounts::default() };
    let mut text = String::new();
    let mut show = |count: &EventCounts| {
        let EventCounts { event, hits, filtered, recorded, dropped, missed } = count;
        let event = style::strong(event);
        let _ =
            write!(text, "{event}: hits={hits}, filtered={filtered}, recorded={recorded}, dropped={dropped}");
        if *missed > 0 {
            let _ = write!(text, ", missed={missed}");
        }
        text.push('\n');
    };
    for count in counts {
        total.hits += count.hits;
        total.filtered += count.filtered;
        total.recorded += count.recorded;
        total.dropped += count.dropped;
        total.missed += count.missed;
        if counts.len() <= 20 || count.hits > 0 {
            show(count);
        }
    }
    show(&total);
    // Standard error may be closed.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
