//! Measures how fast recorded hits become lines of text, and the memory that this takes.
//!
//! Each competitor is stopped while its buffers fill with a known number of hits. A reader of `trace` starts only
//! afterwards. The measured time starts when the competitor continues and ends at the last line.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};

use crate::bench::bpftrace::AttachedBpftrace;
use crate::bench::plan::Plan;
use crate::bench::process::{cpu_of, own_cpu};
use crate::bench::raw::{At, RawData};
use crate::bench::statistics::median;
use crate::bench::tool::{Active, Tool, buffer_arguments, end, mirror};
use crate::bench::tracepoint::{EVENTS, Event};
use crate::bench::victim::Victim;
use crate::host;
use crate::mirror::set;
use crate::workload::pin_to_cpu;

/// Number of hits to drain.
const HITS: usize = 100_000;

/// The result of one try.
struct Sample {
    lines: usize,
    seconds: f64,
    /// CPU seconds of the process that collects the records. For `trace` files they include the reader.
    cpu: f64,
    /// Peak resident bytes.
    memory: Option<u64>,
}

/// A competitor: a tool, or a reader of a mirror's `trace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Competitor {
    Tool(Tool),
    Mirror,
}

impl Competitor {
    fn name(self) -> &'static str {
        match self {
            Self::Tool(tool) => tool.name(),
            Self::Mirror => "mirror",
        }
    }
}

/// Measures, and returns both tables.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let mut table = format!(
        "\n### Draining and rendering\n\nThousands of lines a second (median of the rounds) when {HITS} hits are in the \
         buffers, and the\nnanoseconds on a CPU that a line takes the process that collects; for tracefs and \
         the mirror, reading `trace`,\nthe reader included.\n\n| event |"
    );
    let mirror = plan.tools.contains(&Tool::Tracer).then_some(Competitor::Mirror);
    let all: Vec<Competitor> = plan.tools.iter().map(|tool| Competitor::Tool(*tool)).chain(mirror).collect();
    for who in &all {
        let _ = write!(table, " {} | CPU |", who.name());
    }
    table.push_str("\n|---|");
    table.push_str(&"---:|---:|".repeat(all.len()));
    table.push('\n');
    let mut memory: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    let mut short = Vec::new();
    for event in EVENTS {
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
        let mut costs: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
        for round in 0..plan.rounds {
            for turn in 0..all.len() {
                let at = (turn + round) % all.len();
                let sample = match all[at] {
                    Competitor::Tool(tool) => once(tool, event)?,
                    Competitor::Mirror => mirror_once(event)?,
                };
                let rate = sample.lines as f64 / sample.seconds / 1e3;
                let cost = sample.cpu * 1e9 / sample.lines.max(1) as f64;
                let (event, name) = (event.name, all[at].name());
                eprintln!("{event} round {}: {name} {rate:.0} k/s, {cost:.0} ns of CPU", round + 1);
                rates[at].push(rate);
                costs[at].push(cost);
                memory[at].extend(sample.memory.map(|bytes| bytes as f64 / 1e6));
                if sample.lines < HITS {
                    short.push(format!("{name} {event} gave {} lines", sample.lines));
                }
            }
        }
        let _ = write!(table, "| {} |", event.name);
        for (who, (rates, costs)) in all.iter().zip(rates.iter().zip(&costs)) {
            let at = At { table: "Draining and rendering", row: event.name, column: who.name() };
            raw.keep(at, "rate", "1000 lines/s", rates);
            raw.keep(at, "CPU a line", "ns", costs);
            let _ = write!(table, " {:.0} | {:.0} |", median(rates), median(costs));
        }
        table.push('\n');
    }
    if !short.is_empty() {
        let _ = writeln!(table, "\nNot all hits arrived: {}.", short.join("; "));
    }
    table.push_str("\n### Resident memory\n\nPeak of the process in megabytes over the above.\n\n| | median | largest |\n|---|---:|---:|\n");
    for (tool, values) in all.iter().zip(&memory) {
        raw.keep(At { table: "Resident memory", row: tool.name(), column: "peak" }, "peak", "MB", values);
        if values.is_empty() {
            let _ = writeln!(table, "| {} | no process | |", tool.name());
        } else {
            let high = values.iter().copied().fold(0.0, f64::max);
            let _ = writeln!(table, "| {} | {:.1} | {high:.1} |", tool.name(), median(values));
        }
    }
    Ok(table)
}

fn once(tool: Tool, event: &Event) -> Result<Sample> {
    let mut victim = Victim::start(event.kind)?;
    let (filter, predicate) = event.own(&victim);
    // A switch and a call are one hit each.
    let hits = HITS;
    match tool {
        Tool::Tracefs => {
            let active = tool.start(event, &filter, &predicate)?;
            victim.calls(hits)?;
            let Active::Tracefs(oracle) = active else { unreachable!("tracefs starts tracefs") };
            oracle.tracing(false)?;
            let file = File::open(oracle.trace_path())?;
            let (start, before) = (Instant::now(), own_cpu());
            let lines = count(file, usize::MAX, |line| !line.starts_with(b"#"))?;
            let (seconds, cpu) = (start.elapsed().as_secs_f64(), own_cpu() - before);
            Ok(Sample { lines, seconds, cpu, memory: None })
        }
        Tool::Bpftrace(which) => {
            let AttachedBpftrace { child, output, mut errors } =
                which.attached(&event.bpftrace(&predicate))?;
            // It ends with the child.
            std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
            drained(child, output, &mut victim, hits)
        }
        Tool::Tracer => {
            let (ready, signal) = rustix::pipe::pipe()?;
            let mut child = Command::new(host::binary("tracer", "TRACER_BIN")?)
                .arg("record")
                .args(buffer_arguments())
                .args(["--ready-fd", &std::os::fd::AsRawFd::as_raw_fd(&signal).to_string()])
                .args(["-e", &format!("{} if {filter}", event.name)])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()?;
            drop(signal);
            rustix::io::read(&ready, &mut [0_u8; 1])?;
            let output = child.stdout.take().context("no output")?;
            drained(child, output, &mut victim, hits)
        }
    }
}

/// Reads `trace` of a mirror, in the same way as the kernel's.
fn mirror_once(event: &Event) -> Result<Sample> {
    let mut victim = Victim::start(event.kind)?;
    let (filter, _) = event.own(&victim);
    let Active::Mirror(mounted, dir) = mirror(event, &filter)? else {
        unreachable!("a mirror starts a mirror")
    };
    victim.calls(HITS)?;
    set(&dir, "tracing_on", "0")?;
    let file = File::open(dir.join("trace"))?;
    let (start, before) = (Instant::now(), own_cpu() + cpu_of(mounted.pid())?);
    let lines = count(file, usize::MAX, |line| !line.starts_with(b"#"))?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = own_cpu() + cpu_of(mounted.pid())? - before;
    let memory = host::resident(mounted.pid()).map(|(peak, _)| peak).ok();
    mounted.stop()?;
    Ok(Sample { lines, seconds, cpu, memory })
}

/// Stops the child, fills its buffers, continues it and times it.
fn drained(
    mut child: Child,
    output: impl Read + Send + 'static,
    victim: &mut Victim,
    hits: usize,
) -> Result<Sample> {
    let pid = Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::STOP)?;
    victim.calls(hits)?;
    // The victim is idle now, so its CPU is free for the reader of the pipe.
    let reader = std::thread::spawn(move || -> Result<(usize, Instant)> {
        pin_to_cpu(host::last_cpu()?)?;
        let lines = count(output, hits, |line| !line.starts_with(b"#"))?;
        Ok((lines, Instant::now()))
    });
    std::thread::sleep(Duration::from_millis(5));
    let (start, before) = (Instant::now(), cpu_of(child.id())?);
    rustix::process::kill_process(pid, Signal::CONT)?;
    // Lost hits never arrive, so the wait has a limit.
    let deadline = start + Duration::from_secs(5);
    while !reader.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let memory = host::resident(child.id()).map(|(peak, _)| peak).ok();
    let cpu = cpu_of(child.id())? - before;
    end(&mut child)?;
    let (lines, last) = match reader.join() {
        Ok(result) => result?,
        Err(_) => anyhow::bail!("the reader panicked"),
    };
    Ok(Sample { lines, seconds: (last - start).as_secs_f64(), cpu, memory })
}

/// Counts lines that are events, up to a limit or the end.
fn count(mut stream: impl Read, enough: usize, is_event: impl Fn(&[u8]) -> bool) -> Result<usize> {
    let mut buffer = vec![0_u8; 1 << 18];
    let (mut lines, mut fresh, mut comment) = (0, true, false);
    while lines < enough {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        for piece in buffer[..n].split_inclusive(|byte| *byte == b'\n') {
            if fresh {
                comment = !is_event(piece);
            }
            fresh = piece.ends_with(b"\n");
            lines += usize::from(fresh && !comment);
        }
    }
    Ok(lines)
}
