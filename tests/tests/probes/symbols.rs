//! Functions with names that the compiler changed, names of several functions, and functions that must not be traced.
//! The kernel's own events and the mirror's accept, refuse and attach the same ones. On x86-64 only, where an offset
//! may miss an instruction.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{self, Answer, text};
use tracer_tests::probes::{Case, Pair};

/// Suffixes that a compiler gives to the parts and copies of a function.
const SUFFIXES: [&str; 4] = [".isra.0", ".constprop.0", ".part.0", ".cold"];

/// Number of names of each kind, on the host and in a virtual machine.
const NAMES: [usize; 2] = [12, 4];

/// Functions that kernels exclude from tracing, by various marks, and names of no function.
const FORBIDDEN: [&str; 8] = [
    "do_nmi",
    "exc_page_fault",
    "default_idle",
    "irqentry_enter",
    "ftrace_caller",
    "bpf_get_current_task",
    "kprobe_ftrace_handler",
    "no_such_function",
];

/// The kernel's functions: names, and the number of functions of each.
fn functions() -> Result<BTreeMap<String, usize>> {
    let mut all = BTreeMap::new();
    for line in std::fs::read_to_string("/proc/kallsyms")?.lines() {
        // ADDRESS KIND NAME[<TAB>[MODULE]]
        let mut words = line.split_ascii_whitespace().skip(1);
        if let (Some("t" | "T"), Some(name), None) = (words.next(), words.next(), words.next()) {
            *all.entry(name.to_owned()).or_default() += 1;
        }
    }
    Ok(all)
}

/// A sample at equal distances.
fn some(all: Vec<&String>) -> Vec<String> {
    let most = NAMES[usize::from(host::part() > 1)];
    let step = all.len().div_ceil(most).max(1);
    all.into_iter().step_by(step).cloned().collect()
}

/// The last entry of the error log, without its time.
fn said(dir: &std::path::Path) -> Result<String> {
    let log = text(dir, "error_log")?;
    let last = log.rfind("] trace").map_or("", |at| &log[at + 2..]);
    Ok(last.to_owned())
}

/// Writes a definition to both and compares; returns whether it was accepted.
fn define(pair: &Pair, line: &str, differences: &mut Vec<String>) -> Result<bool> {
    for dir in [pair.kernel(), pair.mirror()] {
        mirror::write(dir, "error_log", b"", false).map_err(std::io::Error::from_raw_os_error)?;
    }
    let answers: (Answer, Answer) = pair.define(Case { file: "dynamic_events", line });
    let logs = (said(pair.kernel())?, said(pair.mirror())?);
    if answers.0 != answers.1 || logs.0 != logs.1 {
        differences
            .push(format!("{line}\nkernel: {:?} {}\nours: {:?} {}", answers.0, logs.0, answers.1, logs.1));
    }
    Ok(answers == (Ok(()), Ok(())))
}

#[test]
fn names_are_accepted_and_refused_as_in_the_kernel() {
    let run = || -> Result<()> {
        let Some(pair) = Pair::if_available("symbols", "kprobe_events")? else { return Ok(()) };
        if !text(pair.kernel(), "README")?.contains("<argname>") {
            host::skip("own_probe_types", "the kernel's probes know no types");
            return Ok(());
        }
        let functions = functions()?;
        let mut names: Vec<String> = FORBIDDEN.map(str::to_owned).to_vec();
        for suffix in SUFFIXES {
            names.extend(some(functions.keys().filter(|name| name.ends_with(suffix)).collect()));
        }
        let several = functions.iter().filter(|(name, count)| **count > 1 && !name.contains('.'));
        names.extend(some(several.map(|(name, _)| name).collect()));
        let fprobes = text(pair.kernel(), "README")?.contains("f[:[<group>/]");
        let (mut taken, mut refused, mut differences) = (0, 0, Vec::new());
        for (at, name) in names.iter().enumerate() {
            for (form, letter, place) in [
                ("e", "p", ""),
                ("o", "p", "+2"),
                ("r", "r", ""),
                ("x", "p", "%return"),
                ("f", "f", ""),
                ("q", "f", "%return"),
            ] {
                if letter == "f" && !fprobes {
                    continue;
                }
                let event = format!("{form}{at}");
                let line = format!("{letter}:{}/{event} {name}{place}", pair.group());
                if !define(&pair, &line, &mut differences)? {
                    refused += 1;
                    continue;
                }
                taken += 1;
                let (kernel, ours) = pair.formats(&event)?;
                ensure!(kernel == ours, "{line}\n{kernel}\n{ours}");
                let file = format!("events/{}/{event}/enable", pair.group());
                let enabled = [pair.kernel(), pair.mirror()].map(|dir| {
                    let on = mirror::write(dir, &file, b"1", true);
                    (on, mirror::write(dir, &file, b"0", true))
                });
                if enabled[0] != enabled[1] {
                    let log = text(pair.mirror(), "error_log")?;
                    differences.push(format!("{line}: enable: {enabled:?}\n{log}"));
                }
            }
            let (kernel, ours) = pair.listings("dynamic_events")?;
            ensure!(kernel == ours, "{name}\n{kernel}\n{ours}");
            pair.clear()?;
        }
        eprintln!("{} names: {taken} definitions taken, {refused} refused", names.len());
        ensure!(differences.is_empty(), "{}", differences.join("\n\n"));
        ensure!(taken > 10 && refused > 10, "{taken} taken, {refused} refused");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}
