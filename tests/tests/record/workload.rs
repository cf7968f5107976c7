//! Checks the workload on the kernel: every part provokes its declared events, with the declared counts. The other
//! tests rely on this.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use tracer_tests::host;
use tracer_tests::oracle::Oracle;
use tracer_tests::workload::{Count, Job, PARTS, Part};

/// Rounds of each part.
const ROUNDS: u32 = 2;

/// Runs one part alone. Returns the declared events that this kernel has, with the declared and the observed counts.
fn observe(part: &Part) -> Result<Vec<(String, Count, u64)>> {
    let oracle = Oracle::create("workload")?;
    let known = oracle.tracefs().events()?;
    let provokes: Vec<_> = part.provokes().into_iter().filter(|p| known.contains(&p.event)).collect();
    let job = Job::start(&[part.name], ROUNDS)?;
    oracle.pids(&[job.pid()], true)?;
    for provoked in &provokes {
        oracle.enable(&provoked.event, true)?;
    }
    oracle.tracing(true)?;
    job.go()?;
    oracle.tracing(false)?;
    ensure!(oracle.lost()? == 0, "the oracle lost hits in {}", part.name);
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for (event, n) in oracle.trace()?.by_event() {
        *seen.entry(event).or_default() += n;
    }
    Ok(provokes
        .into_iter()
        .map(|p| {
            let name = p.event.split_once(':').map_or(p.event.as_str(), |(_, name)| name);
            let n = seen.get(name).copied().unwrap_or(0);
            (p.event, p.count, n)
        })
        .collect())
}

#[test]
fn every_part_causes_its_events() {
    if !host::root_or_skip() {
        return;
    }
    let rounds = u64::from(ROUNDS);
    let mut wrong = Vec::new();
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for part in PARTS {
        for (event, count, seen) in observe(part).unwrap() {
            let held = match count {
                Count::Exactly(n) => seen == n * rounds,
                // An action that a process performs once is not repeated in the second round.
                Count::AtLeast(n) => seen >= n,
            };
            if !held {
                wrong.push(format!("{}: {event}: {count:?} a round, {seen} in {rounds} rounds", part.name));
            }
            *kinds.entry(event).or_default() += seen;
        }
    }
    kinds.retain(|_, n| *n > 0);
    let calls = kinds.keys().filter(|event| event.starts_with("syscalls:")).count();
    println!("{} event types provoked, {} of them not syscalls", kinds.len(), kinds.len() - calls);
    assert!(wrong.is_empty(), "{} declarations do not hold:\n{}", wrong.len(), wrong.join("\n"));
    assert!(kinds.len() >= 100, "only {} event types provoked", kinds.len());
}
