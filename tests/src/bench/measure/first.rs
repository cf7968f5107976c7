//! Measures the time from the start of the command to the first event on its output, while the victim makes calls.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::bench::plan::Plan;
use crate::bench::raw::{At, RawData};
use crate::bench::statistics::median;
use crate::bench::tool::{Tool, buffer_arguments, end};
use crate::bench::victim::{Kind, Victim};
use crate::host;
use crate::oracle::Oracle;

const EVENT: &str = "syscalls:sys_enter_getppid";

/// Microseconds between the victim's calls.
const PACE: u64 = 100;

/// Measures, and returns the table.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let mut victim = Victim::start(Kind::Getppid)?;
    victim.steady(PACE)?;
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); plan.tools.len()];
    for round in 0..plan.rounds {
        for turn in 0..plan.tools.len() {
            let at = (turn + round) % plan.tools.len();
            let millis = once(plan.tools[at], victim.pid())?;
            eprintln!("first event round {}: {} {millis:.1} ms", round + 1, plan.tools[at].name());
            times[at].push(millis);
        }
    }
    let mut table = format!(
        "\n### Time to the first event\n\nMilliseconds from starting the command to the first line of {EVENT} on its \
         output (for tracefs:\nfrom making an instance to the first line of `trace_pipe`). All make buffers of one size.\n\n| | median | smallest | largest |\n\
         |---|---:|---:|---:|\n"
    );
    for (tool, times) in plan.tools.iter().zip(&times) {
        let at = At { table: "Time to the first event", row: EVENT, column: tool.name() };
        raw.keep(at, "time to the first line", "ms", times);
        let low = times.iter().copied().fold(f64::INFINITY, f64::min);
        let high = times.iter().copied().fold(0.0, f64::max);
        let _ = writeln!(table, "| {} | {:.1} | {low:.1} | {high:.1} |", tool.name(), median(times));
    }
    Ok(table)
}

/// Milliseconds of one try.
fn once(tool: Tool, pid: u32) -> Result<f64> {
    let filter = format!("common_pid == {pid}");
    match tool {
        Tool::Tracefs => {
            let start = Instant::now();
            let oracle = Oracle::create("first")?;
            oracle.filter(EVENT, &filter)?;
            oracle.enable(EVENT, true)?;
            oracle.tracing(true)?;
            let mut line = String::new();
            let pipe = File::open(oracle.trace_path().with_file_name("trace_pipe"))?;
            BufReader::new(pipe).read_line(&mut line)?;
            Ok(millis(start))
        }
        Tool::Bpftrace(which) => {
            let script =
                format!("tracepoint:{EVENT} /tid == {pid}/ {{ printf(\"hit %d\\n\", args->__syscall_nr); }}");
            let start = Instant::now();
            let child = which.command(&script)?.stderr(Stdio::null()).spawn().context("bpftrace")?;
            until(child, start, |line| line.starts_with("hit"))
        }
        Tool::Tracer => {
            let start = Instant::now();
            let child = std::process::Command::new(host::binary("tracer", "TRACER_BIN")?)
                .args(["record", "-e", &format!("{EVENT} if {filter}")])
                .args(buffer_arguments())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .context("tracer")?;
            until(child, start, |line| line.contains("sys_getppid("))
        }
    }
}

fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Reads the child's output up to a matching line, then ends the child.
fn until(mut child: Child, start: Instant, is_event: impl Fn(&str) -> bool) -> Result<f64> {
    let mut output = BufReader::new(child.stdout.take().context("no output")?);
    let mut line = String::new();
    loop {
        line.clear();
        if output.read_line(&mut line)? == 0 {
            bail!("ended without an event: {}", child.wait()?);
        }
        if is_event(&line) {
            let time = millis(start);
            // The pipe may be full of unread output, which would block the child.
            drop(output);
            end(&mut child)?;
            return Ok(time);
        }
    }
}
