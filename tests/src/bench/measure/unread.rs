//! Measures unread records at full rate, in an instance of tracefs and of a mirror: the cost of a hit, the
//! CPU of the collector, and the fate of every record.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::bench::plan::Plan;
use crate::bench::process::cpu_of;
use crate::bench::raw::{At, RawData};
use crate::bench::statistics::median;
use crate::bench::tool::{Tool, instance};
use crate::bench::tracepoint::{EVENTS, Event};
use crate::bench::victim::Victim;
use crate::mirror::{set, stat};

const TITLE: &str = "Unread records";

/// Hits of one measurement.
const HITS: usize = 2_000_000;

/// Buffer of each CPU in KiB: the size that the kernel has after the boot.
const KIB: u32 = 1408;

/// How long the collector gets after the last hit, before its CPU time is read.
const COLLECT: Duration = Duration::from_millis(200);

/// One measurement.
struct Sample {
    /// Nanoseconds of a call.
    call: f64,
    /// CPU nanoseconds of the daemon for a call.
    collector: Option<f64>,
    kept: u64,
    overwritten: u64,
    dropped: u64,
}

/// Measures, and returns the table.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let mut table = format!(
        "\n### {TITLE}\n\n{HITS} hits one after the other, with buffers of {KIB} KiB for each CPU. Nanoseconds that a call \
         takes longer, and\nnanoseconds of a CPU that the daemon uses for each hit (medians of the rounds); the records of \
         all rounds.\n\n| event | | added | CPU | kept | overwritten | dropped |\n|---|---|---:|---:|---:|---:|---:|\n"
    );
    let tools: Vec<Tool> =
        [Tool::Tracefs, Tool::Tracer].into_iter().filter(|tool| plan.tools.contains(tool)).collect();
    for event in EVENTS {
        let mut samples: Vec<Vec<(f64, Sample)>> = tools.iter().map(|_| Vec::new()).collect();
        for round in 0..plan.rounds {
            for turn in 0..tools.len() {
                let at = (turn + round) % tools.len();
                let mut victim = Victim::start(event.kind)?;
                victim.calls(HITS / 20)?;
                let untraced = victim.calls(HITS / 4)?;
                let sample = once(tools[at], event, &mut victim)?;
                eprintln!(
                    "{} unread round {}: {} {untraced:.0} -> {:.0} ns",
                    event.name,
                    round + 1,
                    name(tools[at]),
                    sample.call
                );
                samples[at].push((untraced, sample));
            }
        }
        for (tool, samples) in tools.iter().zip(&samples) {
            let at = At { table: TITLE, row: event.name, column: name(*tool) };
            let added: Vec<f64> = samples.iter().map(|(untraced, sample)| sample.call - untraced).collect();
            let cpu: Vec<f64> = samples.iter().filter_map(|(_, sample)| sample.collector).collect();
            let sum = |of: fn(&Sample) -> u64| samples.iter().map(|(_, sample)| of(sample)).sum::<u64>();
            let (kept, overwritten, dropped) = (sum(|s| s.kept), sum(|s| s.overwritten), sum(|s| s.dropped));
            raw.keep(at, "added to a call", "ns", &added);
            raw.keep(at, "CPU of the daemon a call", "ns", &cpu);
            for (quantity, number) in [("kept", kept), ("overwritten", overwritten), ("dropped", dropped)] {
                raw.keep(at, quantity, "records of all rounds", &[number as f64]);
            }
            let cpu = if cpu.is_empty() { "no process".to_owned() } else { format!("{:.1}", median(&cpu)) };
            let _ = writeln!(
                table,
                "| {} | {} | {:.0} | {cpu} | {kept} | {overwritten} | {dropped} |",
                event.name,
                name(*tool),
                median(&added)
            );
        }
    }
    Ok(table)
}

fn name(tool: Tool) -> &'static str {
    if tool == Tool::Tracer { "mirror" } else { tool.name() }
}

/// Makes all hits, and counts the records.
fn once(tool: Tool, event: &Event, victim: &mut Victim) -> Result<Sample> {
    let (filter, _) = event.own(victim);
    let (active, dir) = instance(tool)?;
    set(&dir, "buffer_size_kb", &KIB.to_string())?;
    let files = format!("events/{}", event.name.replace(':', "/"));
    set(&dir, &format!("{files}/filter"), &filter)?;
    set(&dir, &format!("{files}/enable"), "1")?;
    set(&dir, "tracing_on", "1")?;
    std::thread::sleep(COLLECT);
    let process = active.process();
    let cpu = |pid: Option<u32>| pid.map(cpu_of).transpose();
    let before = cpu(process)?;
    let call = victim.calls(HITS)?;
    std::thread::sleep(COLLECT);
    let used = cpu(process)?.zip(before).map(|(now, before)| (now - before) * 1e9 / HITS as f64);
    set(&dir, "tracing_on", "0")?;
    let [kept, overwritten, dropped] = ["entries", "overrun", "dropped events"].map(|key| stat(&dir, key));
    let (kept, overwritten, dropped) = (kept?, overwritten?, dropped?);
    active.stop()?;
    let all = kept + overwritten + dropped;
    ensure!(all >= HITS as u64, "{all} of {HITS} hits are accounted for");
    Ok(Sample { call, collector: used, kept, overwritten, dropped })
}
