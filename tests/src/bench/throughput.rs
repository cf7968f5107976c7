//! How fast recorded hits become lines of text, and what memory it takes.
//!
//! Each competitor is stopped (the kernel's reader has not begun), its buffers are filled with a known number of
//! hits, and the time runs from letting it go on to the last line.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};

use super::cost::{EVENTS, Event};
use super::tool::{Active, Tool, attached, bpftrace, buffer_arguments, end};
use super::victim::Victim;
use super::{Plan, median};
use crate::host;
use crate::workload::pin_to_cpu;

/// Hits that are drained.
const HITS: usize = 100_000;

/// What one try gave.
struct Sample {
    lines: usize,
    seconds: f64,
    /// Peak resident bytes.
    memory: Option<u64>,
}

/// Measures and gives both tables.
pub(super) fn run(plan: &Plan) -> Result<String> {
    let mut table = format!(
        "\n### Draining and rendering\n\nThousands of lines a second (median of the rounds) when {HITS} hits lie in the \
         buffers; for tracefs, reading\n`trace`.\n\n| event |"
    );
    for tool in &plan.tools {
        let _ = write!(table, " {} |", tool.name());
    }
    table.push_str("\n|---|");
    table.push_str(&"---:|".repeat(plan.tools.len()));
    table.push('\n');
    let mut memory: Vec<Vec<f64>> = vec![Vec::new(); plan.tools.len()];
    let mut short = Vec::new();
    for event in EVENTS {
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); plan.tools.len()];
        for round in 0..plan.rounds {
            for turn in 0..plan.tools.len() {
                let at = (turn + round) % plan.tools.len();
                let sample = once(plan.tools[at], event)?;
                let rate = sample.lines as f64 / sample.seconds / 1e3;
                eprintln!("{} round {}: {} {rate:.0} k/s", event.name, round + 1, plan.tools[at].name());
                rates[at].push(rate);
                memory[at].extend(sample.memory.map(|bytes| bytes as f64 / 1e6));
                if sample.lines < HITS {
                    short.push(format!(
                        "{} {} gave {} lines",
                        plan.tools[at].name(),
                        event.name,
                        sample.lines
                    ));
                }
            }
        }
        let _ = write!(table, "| {} |", event.name);
        for rates in &rates {
            let _ = write!(table, " {:.0} |", median(rates));
        }
        table.push('\n');
    }
    if !short.is_empty() {
        let _ = writeln!(table, "\nNot all hits arrived: {}.", short.join("; "));
    }
    table.push_str("\n### Resident memory\n\nPeak of the process in megabytes over the above.\n\n| | median | largest |\n|---|---:|---:|\n");
    for (tool, values) in plan.tools.iter().zip(&memory) {
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
    // A switch hits once, a call once.
    let hits = HITS;
    match tool {
        Tool::Tracefs => {
            let active = tool.start(event, &filter, &predicate)?;
            victim.calls(hits)?;
            let Active::Tracefs(oracle) = active else { unreachable!("tracefs starts tracefs") };
            oracle.tracing(false)?;
            let file = File::open(oracle.trace_path())?;
            let start = Instant::now();
            let lines = count(file, usize::MAX, |line| !line.starts_with(b"#"))?;
            Ok(Sample { lines, seconds: start.elapsed().as_secs_f64(), memory: None })
        }
        Tool::Bpftrace => {
            let mut child = bpftrace(&event.bpftrace(&predicate)).stderr(Stdio::null()).spawn()?;
            let mut output = child.stdout.take().context("no output")?;
            output.read_exact(&mut [0_u8; 12])?;
            attached(child.id())?;
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

/// Stops the child, fills its buffers, lets it go and times it.
fn drained(mut child: Child, output: ChildStdout, victim: &mut Victim, hits: usize) -> Result<Sample> {
    let pid = Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::STOP)?;
    victim.calls(hits)?;
    // The victim does nothing now, so that its CPU is free for this side of the pipe.
    let reader = std::thread::spawn(move || -> Result<(usize, Instant)> {
        pin_to_cpu(host::last_cpu()?)?;
        let lines = count(output, hits, |line| !line.starts_with(b"#"))?;
        Ok((lines, Instant::now()))
    });
    std::thread::sleep(Duration::from_millis(5));
    let start = Instant::now();
    rustix::process::kill_process(pid, Signal::CONT)?;
    // Hits that were lost are waited for in vain.
    let deadline = start + Duration::from_secs(5);
    while !reader.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let memory = host::resident(child.id()).map(|(peak, _)| peak).ok();
    end(&mut child)?;
    let (lines, last) = match reader.join() {
        Ok(result) => result?,
        Err(_) => anyhow::bail!("the reader panicked"),
    };
    Ok(Sample { lines, seconds: (last - start).as_secs_f64(), memory })
}

/// Counts lines that are events, up to a number or the end.
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
