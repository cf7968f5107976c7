//! What a hit of a dynamic event costs: a uprobe on a function of the C library, and a probe of a tracepoint that the kernel's
//! tracefs offers only where it has fprobes.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tracer_user::lang::facts::{Facts, Machine};

use super::tool::{Active, Bpftrace, Tool, buffer_arguments};
use super::{Plan, median};
use crate::mirror;
use crate::oracle::Oracle;
use crate::tracer::Tracer;

/// Batches and calls a batch of one measurement.
const BATCHES: usize = 40;
const CALLS: u32 = 500;
/// How long a competitor has been at work before it is measured.
const SETTLE: Duration = Duration::from_millis(300);
/// The group of what is defined in the kernel.
const GROUP: &str = "tracer_bench";

/// A probe by everybody's words.
struct Subject {
    name: &'static str,
    /// For us.
    definition: String,
    /// For the kernel's `uprobe_events`; none where it has nothing like it.
    kernel: Option<String>,
    bpftrace: String,
}

/// What is measured.
fn subjects(thread: i32) -> Result<Vec<Subject>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let library = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
    let library = library.into_iter().find(|path| path.contains("/libc.so")).context("no C library")?;
    let offset =
        Machine::running(None, None).file_symbol(library.as_bytes(), "getpid").context("no getpid()")?;
    let register = if cfg!(target_arch = "aarch64") { "x0" } else { "di" };
    let uprobe = format!("p:{GROUP}/getpid {library}:{offset:#x} a=%{register}");
    Ok(vec![
        Subject {
            name: "uprobe on getpid(), one argument",
            definition: format!("{uprobe} if common_pid == {thread}"),
            kernel: Some(uprobe),
            bpftrace: format!("uprobe:{library}:getpid /tid == {thread}/ {{ printf(\"%lx\\n\", arg0); }}"),
        },
        Subject {
            name: "t: on sys_enter, one argument",
            definition: format!("t:{GROUP}/enter sys_enter id if common_pid == {thread}"),
            kernel: None,
            bpftrace: format!(
                "tracepoint:raw_syscalls:sys_enter /tid == {thread}/ {{ printf(\"%d\\n\", args->id); }}"
            ),
        },
    ])
}

/// Nanoseconds of one call, the median of the batches.
fn call() -> f64 {
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..CALLS {
            black_box(std::process::id());
        }
        batches.push(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    median(&batches)
}

fn start(tool: Tool, subject: &Subject, thread: i32) -> Result<Option<Active>> {
    Ok(Some(match tool {
        Tool::Tracefs => {
            let Some(line) = &subject.kernel else { return Ok(None) };
            let oracle = Oracle::create("bench")?;
            let defined = mirror::write(oracle.tracefs().root(), "uprobe_events", line.as_bytes(), true);
            defined.map_err(std::io::Error::from_raw_os_error).context("uprobe_events")?;
            oracle.filter(&format!("{GROUP}:getpid"), &format!("common_pid == {thread}"))?;
            oracle.enable(&format!("{GROUP}:getpid"), true)?;
            oracle.tracing(true)?;
            Active::Tracefs(Box::new(oracle))
        }
        Tool::Bpftrace => Active::Bpftrace(Bpftrace::start(&subject.bpftrace)?),
        Tool::Tracer => {
            let arguments = ["record", "-o", "/dev/null", "-p", &subject.definition];
            Active::Tracer(Tracer::new(arguments)?.args(buffer_arguments()).start()?)
        }
    }))
}

/// Measures all subjects and gives the table.
pub(super) fn run(plan: &Plan) -> Result<String> {
    let last = crate::host::last_cpu()?;
    let plan = plan.clone();
    let measured = std::thread::spawn(move || {
        crate::workload::pin_to_cpu(last)?;
        table(&plan)
    });
    measured.join().map_err(|_| anyhow::anyhow!("the measurement ended"))?
}

fn table(plan: &Plan) -> Result<String> {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let mut table = String::from(
        "\n### Added cost of a dynamic event's hit\n\nNanoseconds over the untraced call of getpid() (median of the rounds, \
         smallest and largest in parentheses); every hit is recorded.\n\n| probe | untraced |",
    );
    plan.tools.iter().for_each(|tool| {
        let _ = write!(table, " {} |", tool.name());
    });
    let _ = writeln!(
        table,
        " tracer to bpftrace | tracer to tracefs |\n|---|---:|{}",
        "---:|".repeat(plan.tools.len() + 2)
    );
    for subject in subjects(thread)? {
        let mut added = vec![Vec::new(); plan.tools.len()];
        let mut untraced = Vec::new();
        for round in 0..plan.rounds {
            for turn in 0..plan.tools.len() {
                let at = (turn + round) % plan.tools.len();
                let before = call();
                crate::workload::pin_to_cpu(0)?;
                let active = start(plan.tools[at], &subject, thread)?;
                crate::workload::pin_to_cpu(crate::host::last_cpu()?)?;
                let Some(active) = active else { continue };
                std::thread::sleep(SETTLE);
                let traced = call();
                active.stop()?;
                if plan.tools[at] == Tool::Tracefs {
                    let root = crate::host::Tracefs::find_or_mount()?;
                    let line = format!("-:{GROUP}/getpid");
                    let _ = mirror::write(root.root(), "uprobe_events", line.as_bytes(), true);
                }
                added[at].push(traced - before);
                untraced.push(before);
                eprintln!(
                    "{} round {}: {} {before:.0} -> {traced:.0} ns",
                    subject.name,
                    round + 1,
                    plan.tools[at].name()
                );
            }
        }
        let _ = write!(table, "| {} | {:.0} |", subject.name, median(&untraced));
        for values in &added {
            let (low, high) =
                values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
            let _ = match values.len() {
                0 => write!(table, " - |"),
                _ => write!(table, " {:.0} ({low:.0}..{high:.0}) |", median(values)),
            };
        }
        let of =
            |tool| plan.tools.iter().position(|other| *other == tool).map_or(0.0, |at| median(&added[at]));
        let ours = of(Tool::Tracer);
        for other in [Tool::Bpftrace, Tool::Tracefs] {
            let _ = match of(other) {
                other if other > 0.0 => write!(table, " {:.2} |", ours / other),
                _ => write!(table, " - |"),
            };
        }
        table.push('\n');
    }
    Ok(table)
}
