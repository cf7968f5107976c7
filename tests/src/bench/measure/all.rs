//! Measures the time to enable and to disable all events, in an instance of tracefs and in a mirror. Every round
//! starts a new daemon, so that no program is loaded yet.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::bench::plan::Plan;
use crate::bench::raw::{At, RawData};
use crate::bench::statistics::{median, ratio};
use crate::bench::tool::Tool;
use crate::host;
use crate::mirror::{Mounted, set};
use crate::oracle::Oracle;

/// Time limit for the end of a daemon with all events enabled.
const END: Duration = Duration::from_secs(600);

/// The measured steps, in order.
const STEPS: [&str; 4] = ["on", "off", "on again", "off again"];

/// Measures, and returns the table.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let mut times: [Vec<Vec<f64>>; 2] = Default::default();
    let (mut ends, mut resident, mut loaded) = (Vec::new(), Vec::new(), (0, 0));
    for side in &mut times {
        *side = vec![Vec::new(); STEPS.len()];
    }
    let mut events = 0;
    let own = std::process::id().to_string();
    for round in 0..plan.rounds {
        for side in [round % 2, (round + 1) % 2] {
            let steps = if side == 0 {
                let oracle = Oracle::create("all")?;
                oracle.set("set_event_pid", &own)?;
                events = oracle.tracefs().events()?.len();
                steps(oracle.dir())?
            } else {
                let mounted = Mounted::start("all")?;
                set(mounted.dir(), "set_event_pid", &own)?;
                let steps = steps(mounted.dir())?;
                set(mounted.dir(), "events/enable", "1")?;
                resident.push(host::resident(mounted.pid())?.1 as f64 / f64::from(1 << 20));
                loaded = in_the_kernel(mounted.pid())?;
                let start = Instant::now();
                mounted.stop_within(END)?;
                ends.push(start.elapsed().as_secs_f64());
                steps
            };
            eprintln!("all events round {}: {} {steps:.3?} s", round + 1, ["tracefs", "tracer"][side]);
            for (all, time) in times[side].iter_mut().zip(steps) {
                all.push(time);
            }
        }
    }
    let mut table = format!(
        "\n### All {events} events\n\nSeconds that a write to `events/enable` takes. The mirror's daemon is new in every \
         round; it ends\nwith all events on in {:.1} s, and has {:.0} MiB then, and in the kernel {} programs, \
         which take {:.1} MiB\nwith their maps.\n\n| | {} | {} | ratio |\n|---|---:|---:|---:|\n",
        median(&ends),
        median(&resident),
        loaded.0,
        loaded.1 as f64 / f64::from(1 << 20),
        Tool::Tracefs.name(),
        Tool::Tracer.name()
    );
    raw.keep(At { table: "All events", row: "end of the daemon", column: "tracer" }, "time", "s", &ends);
    raw.keep(At { table: "All events", row: "memory", column: "tracer" }, "resident", "MiB", &resident);
    for (index, step) in STEPS.iter().enumerate() {
        let [kernel, ours] = [&times[0], &times[1]].map(|side| &side[index]);
        for (tool, values) in [(Tool::Tracefs, kernel), (Tool::Tracer, ours)] {
            raw.keep(At { table: "All events", row: step, column: tool.name() }, "time", "s", values);
        }
        let ratio = ratio(ours, kernel);
        let _ = writeln!(table, "| {step} | {:.3} | {:.3} | {ratio} |", median(kernel), median(ours));
    }
    Ok(table)
}

fn steps(dir: &Path) -> Result<[f64; 4]> {
    let mut times = [0.0; 4];
    for (time, value) in times.iter_mut().zip(["1", "0", "1", "0"]) {
        let start = Instant::now();
        set(dir, "events/enable", value)?;
        *time = start.elapsed().as_secs_f64();
    }
    Ok(times)
}

/// The number of BPF programs of which a process has descriptors, and the bytes of kernel memory of these programs
/// and of the process's maps.
fn in_the_kernel(pid: u32) -> Result<(usize, u64)> {
    let mut all: BTreeMap<(bool, u64), u64> = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // The process may close a descriptor during the loop.
        let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        let value =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
        if let Some(bytes) = value("memlock:") {
            let ids = [(true, value("prog_id:")), (false, value("map_id:"))];
            all.extend(ids.into_iter().filter_map(|(program, id)| Some(((program, id?), bytes))));
        }
    }
    Ok((all.keys().filter(|(program, _)| *program).count(), all.values().sum()))
}
