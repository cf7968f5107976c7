//! Measures how long it takes to define, enable, disable and delete events on many functions, in the kernel's tracefs
//! and in a mirror.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::bench::kernel_event::{EVENT, KernelEvent};
use crate::bench::plan::Plan;
use crate::bench::raw::{At, RawData};
use crate::bench::statistics::median;
use crate::bench::tool::Tool;
use crate::host::Tracefs;
use crate::mirror::{self, Mounted, set};

const TITLE: &str = "Many functions";
const FILE: &str = "dynamic_events";
/// Definitions with one function each.
const SINGLE: usize = 100;
/// If the kernel refuses this many at the start, it has no events on functions.
const REFUSED: usize = 50;
/// The measured steps, in order.
const STEPS: [&str; 4] = ["define", "enable", "disable", "delete"];

/// Measures, and returns the table; nothing if this kernel has no events on functions.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let root = Tracefs::find_or_mount()?.root().to_owned();
    let Some(functions) = functions(&root) else {
        eprintln!("this kernel has no events on functions");
        return Ok(String::new());
    };
    let mut table = format!(
        "\n### {TITLE}\n\nSeconds for each step (medians of the rounds). The kernel attaches its own events when they are \
         defined and detaches\nthem when they are deleted; the mirror does so when they are enabled and disabled.\n\n\
         | definitions | |"
    );
    for step in STEPS {
        let _ = write!(table, " {step} |");
    }
    table.push_str("\n|---|---|---:|---:|---:|---:|\n");
    let pattern = "[a-c]*_*";
    let entry = vec![format!("f:{EVENT} {pattern}")];
    let exit = vec![format!("f:{EVENT} {pattern}%return $retval:u64")];
    let single =
        functions.iter().enumerate().map(|(number, function)| format!("f:{EVENT}{number} {function}"));
    // Kernels before 6.9 have no arguments at returns, and some functions have no arguments.
    let of_return = |function: &str| format!("{function}%return first=$arg1 ret=$retval:u64");
    let with_arguments = functions
        .iter()
        .filter(|f| KernelEvent::define(FILE, &format!("f:{EVENT} {}", of_return(f))).is_ok());
    let returns: Vec<String> = with_arguments
        .enumerate()
        .map(|(number, function)| format!("f:{EVENT}{number} {}", of_return(function)))
        .collect();
    let count = returns.len();
    for (name, lines) in [
        (format!("`f {pattern}`"), entry),
        (format!("`f {pattern}%return $retval:u64`"), exit),
        (format!("{SINGLE} times `f FUNCTION`"), single.collect()),
        (format!("{count} times `f FUNCTION%return $arg1 $retval`"), returns),
    ] {
        if lines.is_empty() {
            continue;
        }
        for tool in [Tool::Tracefs, Tool::Tracer].into_iter().filter(|tool| plan.tools.contains(tool)) {
            let mut times: [Vec<f64>; STEPS.len()] = Default::default();
            for round in 0..plan.rounds {
                let steps = if tool == Tool::Tracefs {
                    steps(&root, &lines)?
                } else {
                    let mounted = Mounted::start("bench")?;
                    let steps = steps(mounted.dir(), &lines)?;
                    mounted.stop()?;
                    steps
                };
                eprintln!("{name} round {}: {} {steps:.3?} s", round + 1, tool.name());
                for (all, time) in times.iter_mut().zip(steps) {
                    all.push(time);
                }
            }
            let column = if tool == Tool::Tracefs { "kernel" } else { "mirror" };
            let _ = write!(table, "| {name} | {column} |");
            for (step, times) in STEPS.iter().zip(&times) {
                raw.keep(At { table: TITLE, row: &name, column }, step, "s", times);
                let _ = write!(table, " {:.2} |", median(times));
            }
            table.push('\n');
        }
    }
    Ok(table)
}

/// Functions whose events the kernel accepts; None if it has no such events.
fn functions(root: &Path) -> Option<Vec<String>> {
    let all = std::fs::read_to_string(root.join("available_filter_functions"));
    let Ok(all) = all else { return None };
    let own: Vec<&str> = all.lines().filter(|line| !line.contains(['[', '.', ' '])).collect();
    // Names with several functions are refused.
    let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for name in &own {
        if !seen.insert(*name) {
            twice.insert(*name);
        }
    }
    let (mut accepted, mut refused) = (Vec::new(), 0);
    for name in own.into_iter().filter(|name| name.starts_with('a') && !twice.contains(name)) {
        match KernelEvent::define(FILE, &format!("f:{EVENT} {name}")) {
            Ok(_defined) => accepted.push(name.to_owned()),
            Err(_) => refused += 1,
        }
        if accepted.len() == SINGLE || (accepted.is_empty() && refused == REFUSED) {
            break;
        }
    }
    (accepted.len() == SINGLE).then_some(accepted)
}

/// The seconds of each step.
fn steps(dir: &Path, lines: &[String]) -> Result<[f64; STEPS.len()]> {
    let group = EVENT.split_once('/').map(|(group, _)| group).context("a group")?;
    let append = |line: &str| {
        let written = mirror::write(dir, FILE, line.as_bytes(), true);
        written.map_err(std::io::Error::from_raw_os_error).with_context(|| line.to_owned())
    };
    let mut times = [0.0; STEPS.len()];
    let timed = |step: &dyn Fn() -> Result<()>| -> Result<f64> {
        let start = Instant::now();
        step()?;
        Ok(start.elapsed().as_secs_f64())
    };
    let enable = format!("events/{group}/enable");
    let delete = || {
        let names = lines.iter().filter_map(|line| line.split(' ').next()?.strip_prefix('f'));
        names.into_iter().map(|name| append(&format!("-{name}"))).fold(Ok(()), Result::and)
    };
    let measured = (|| -> Result<()> {
        times[0] = timed(&|| lines.iter().try_for_each(|line| append(line)))?;
        times[1] = timed(&|| set(dir, &enable, "1"))?;
        times[2] = timed(&|| set(dir, &enable, "0"))?;
        times[3] = timed(&delete)?;
        Ok(())
    })();
    if measured.is_err() {
        // Leaves no event behind in the kernel's tracefs.
        let _ = set(dir, &enable, "0");
        let _ = delete();
    }
    measured.map(|()| times)
}
