//! `tracer hist` with several histograms, variables and synthetic events between them: tables of known calls, error
//! messages, watched tables, and the commands of `docs/guides/histograms.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::thread::gettid;
use tracer_tests::compare::times::{Offsets, RESOLUTION};
use tracer_tests::host::{self, Tracefs};
use tracer_tests::mirror;
use tracer_tests::oracle::{Line, Oracle, Trace};
use tracer_tests::tracer::Tracer;
use tracer_tests::workload::{getpgid, getpriority, getsid, terminal};

const PAGE: &str = include_str!("../../../docs/guides/histograms.md");

/// Arguments that no other process's calls have.
const OWN: i32 = (1 << 30) + (1 << 27);

const GETPGID: &str = "syscalls:sys_enter_getpgid";
const GETSID: &str = "syscalls:sys_enter_getsid";

/// `tracer hist` with these arguments.
fn hist(arguments: &[&str]) -> Result<Tracer> {
    Tracer::new(["hist"].iter().chain(arguments))
}

/// A filter that excludes other processes' hits.
fn own(field: &str) -> String {
    format!("{field} >= {OWN} && common_pid == {}", gettid().as_raw_nonzero())
}

/// The rows of all tables, including the lines below each row.
fn rows(text: &str) -> String {
    let tables = text.split("# event histogram\n").skip(1);
    tables
        .filter_map(|table| table.split_once("#\n\n")?.1.split_once("\nTotals:"))
        .map(|(rows, _)| rows)
        .collect()
}

#[test]
fn variables_pass_from_one_event_to_another() {
    host::as_root(|| {
        let (pgid, sid) = (own("pid"), own("pid"));
        let first = format!("keys=common_pid:a=pid-{OWN}");
        let second = "keys=common_pid:d=$a*2:onmatch(syscalls.sys_enter_getpgid).trace(histcli,$d,pid):onmax($d).save(pid)";
        let arguments = [
            "--synth",
            "histcli u64 v; u64 w",
            GETPGID,
            &first,
            "if",
            &pgid,
            GETSID,
            second,
            &format!("if {sid}"),
            "histcli",
            "keys=w.hex:vals=v:sort=w",
        ];
        let play = || {
            for (a, b) in [(3, 1), (4, 2), (8, 2)] {
                getpgid(OWN + a);
                getsid(OWN + b);
            }
            getsid(OWN + 9);
        };
        let expected = format!(
            "{{ w: {:x} }} hitcount:          1  v:          6\n{{ w: {:x} }} hitcount:          2  v:         24\n",
            OWN + 1,
            OWN + 2
        );
        let running = hist(&arguments)?.start()?;
        play();
        let outcome = running.stop()?.success()?;
        ensure!(rows(&outcome.text()) == expected, "{}{}", outcome.text(), outcome.stderr);
        ensure!(
            outcome.text().starts_with("# event: synthetic:histcli\n# event histogram\n"),
            "{}",
            outcome.text()
        );
        // All tables as JSON.
        let running = hist(&arguments)?.args(["--all", "--json"]).start()?;
        play();
        let tables = running.stop()?.success()?.json()?;
        let events: Vec<&str> = tables.iter().filter_map(|table| table["event"].as_str()).collect();
        ensure!(events == [GETPGID, GETSID, "synthetic:histcli"], "{events:?}");
        ensure!(tables[0]["rows"][0]["hitcount"] == 3, "{}", tables[0]);
        // A reference consumes the variable, so the fourth call does not find it.
        let (row, tid) = (&tables[1]["rows"][0], gettid().as_raw_nonzero().get());
        ensure!(row["hitcount"] == 3 && row["key"]["common_pid"] == tid, "{row}");
        ensure!(row["max"] == 16 && row["saved"]["pid"] == OWN + 2, "{row}");
        ensure!(tables[2]["hits"] == 3 && tables[2]["rows"][1]["values"]["v"] == 24, "{}", tables[2]);
        Ok(())
    });
}

/// Histograms of one event that need a private mirror, and events that are defined on the command line.
#[test]
fn snapshots_and_probes() {
    host::as_root(|| {
        let running =
            hist(&[GETPGID, "keys=common_pid:m=pid:onmax($m).snapshot()", "if", &own("pid")])?.start()?;
        for n in [1, 7, 3] {
            getpgid(OWN + n);
        }
        let text = running.stop()?.success()?.text();
        let expected =
            format!("\ttriggering value {{ onmax($m) }}: {:10}\ttriggered by event with key:", OWN + 7);
        ensure!(text.contains(&expected), "{text}");
        // As a number, a text has the value of its address.
        let command = "keys=next_comm.log2,next_pid:vals=next_comm:x=next_comm";
        hist(&["sched:sched_switch", command, "--for", "100ms"])?.run()?.success()?;
        let definition = "t:histcli/enter sys_enter nr=id";
        let which = format!("common_pid == {} && nr == {}", gettid().as_raw_nonzero(), libc::SYS_getpriority);
        let running = hist(&["-p", definition, "histcli:enter", "keys=nr", "if", &which])?.start()?;
        (0..5).for_each(|n| getpriority(OWN + n));
        let text = running.stop()?.success()?.text();
        let expected = format!("{{ nr: {:10} }} hitcount:          5\n", libc::SYS_getpriority);
        ensure!(rows(&text) == expected, "{text}{expected}");
        Ok(())
    });
}

/// The program's own hits are omitted unless they are requested.
#[test]
fn own_hits_are_counted_on_request() {
    host::as_root(|| {
        let only = "COMM == \"tracer\"";
        let mut arguments = vec!["--watch", "20ms", "--for", "300ms"];
        for event in ["syscalls:sys_enter_write", "syscalls:sys_exit_write"] {
            arguments.extend([event, "keys=common_pid", "if", only]);
        }
        for own in [false, true] {
            let running = hist(&arguments)?.args(if own { &["--own"] } else { &[] as &[&str] }).start()?;
            let row = format!("{{ common_pid: {:10} }} hitcount:", running.pid());
            let text = running.wait()?.success()?.text();
            let counted = text.contains(&row);
            ensure!(counted == own, "with own hits: {own}\n{text}");
        }
        Ok(())
    });
}

#[test]
fn errors_of_commands_and_definitions_are_shown() {
    host::as_root(|| {
        let cases: &[(&[&str], &str)] = &[
            (
                &[GETPGID, "keys=pidd"],
                "histogram of syscalls:sys_enter_getpgid: Couldn't find field\n  keys=pidd\n       ^^^^\n  did you \
                 mean `pid`?\n",
            ),
            (&["syscalls:sys_enter_getpgidd", "keys=pid"], "did you mean `syscalls:sys_enter_getpgid`?\n"),
            (
                &[GETPGID, "keys=pid", "nope:nope", "keys=pid"],
                "no event nope:nope; `tracer list` shows what there is\n",
            ),
            (
                &[GETPGID, "keys=pid:start=1", GETSID, "keys=pid:d=1-$strat"],
                "histogram of syscalls:sys_enter_getsid: Couldn't find variable\n  keys=pid:d=1-$strat\n                \
                 ^^^^^\nCouldn't find field\n  keys=pid:d=1-$strat\n               ^^^^^^\n  did you mean `$start`?\n",
            ),
            (
                &[GETPGID, "keys=pid:a=1:onmax($a).histcli($a)", "--own"],
                "histogram of syscalls:sys_enter_getpgid: Couldn't find synthetic event\n  \
                 keys=pid:a=1:onmax($a).histcli($a)\n                         ^\n  --synth 'histcli TYPE FIELD; ...' \
                 defines one\n",
            ),
            (
                &["--synth", "histcli u64 v; u64 w", GETPGID, "keys=pid:a=1:onmax($a).histcli($a)"],
                "  it is `histcli u64 v; u64 w`\n",
            ),
            (
                &["--synth", "histcli u64 v; u63 w", GETPGID, "keys=pid"],
                "histcli u64 v; u63 w: Invalid type\n",
            ),
            (
                &[GETPGID, "keys=pid", "if", "pidd > 1"],
                "Field not found\n  pidd > 1\n  ^^^^\n  did you mean `pid`?\n",
            ),
            (&[GETPGID, "keys=pid", GETSID], "no histogram after `syscalls:sys_enter_getsid`\n"),
            (&[GETPGID, "keys=pid", GETPGID, "keys=pid"], "Hist trigger already exists\n  keys=pid\n  ^\n"),
        ];
        for (arguments, expected) in cases {
            let outcome = hist(arguments)?.run()?;
            ensure!(outcome.status.code() == Some(1), "{arguments:?}: {}", outcome.status);
            ensure!(outcome.stderr.contains(expected), "{arguments:?}\n{}\n{expected}", outcome.stderr);
        }
        Ok(())
    });
}

/// On a terminal a table overwrites the previous one; elsewhere it follows it.
#[test]
fn tables_are_watched() {
    host::as_root(|| {
        let running =
            hist(&[GETPGID, "keys=pid", GETSID, "keys=pid", "--watch", "50ms", "--json", "--for", "1s"])?;
        let tables = running.run()?.success()?.json()?;
        ensure!(tables.len() >= 4 && tables.len() % 2 == 0, "{} tables", tables.len());
        let (mut master, slave) = terminal(7)?;
        let mut child = Command::new(host::binary("tracer", "TRACER_BIN")?)
            .args(["hist", GETPGID, "keys=pid", "--watch", "50ms", "--for", "1s"])
            .stdin(Stdio::null())
            .stdout(slave)
            .spawn()?;
        let mut text = Vec::new();
        // The read ends with an error once the other end is closed everywhere.
        let _ = master.read_to_end(&mut text);
        ensure!(child.wait()?.success());
        let text = String::from_utf8_lossy(&text).into_owned();
        let screens: Vec<&str> = text.split("\x1b[H").skip(1).collect();
        ensure!(screens.len() >= 2, "{text:?}");
        let (last, before) = screens.split_last().context("no screen")?;
        ensure!(last.contains("Dropped: 0"), "{last:?}");
        for screen in before {
            ensure!(
                screen.lines().count() <= 7 && screen.contains("lines more") && screen.ends_with("\x1b[J"),
                "{screen:?}"
            );
        }
        Ok(())
    });
}

/// Task name of the sleepers of the test below.
const SLEEPER: &str = "tracerhistsleep";

/// A copy of the sleep program under another name.
fn sleeper(dir: &Path) -> Result<PathBuf> {
    let path = dir.join(SLEEPER);
    let which = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|path| Path::new(path).exists());
    std::fs::copy(which.context("no sleep")?, &path)?;
    Ok(path)
}

/// Compares wake-up latencies in histograms with the times of the events' records.
#[test]
fn latencies_equal_the_differences_of_the_records() {
    host::as_root(|| {
        let dir = std::env::temp_dir().join(format!("tracer-histcli-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let sleeper = sleeper(&dir)?;
        let mounted = mirror::Mounted::start("histlat")?;
        let root = mounted.dir();
        let add = |file: &str, line: &str| {
            mirror::write(root, file, line.as_bytes(), true)
                .map_err(std::io::Error::from_raw_os_error)
                .context(line.to_owned())
        };
        add("synthetic_events", "histcli_lat u64 lat; u64 woken; pid_t pid")?;
        let (woken, switched) = ("events/sched/sched_waking", "events/sched/sched_switch");
        let (of_woken, of_switched) =
            (format!("comm == \"{SLEEPER}\""), format!("next_comm == \"{SLEEPER}\""));
        add(&format!("{woken}/trigger"), &format!("hist:keys=pid:ts0=common_timestamp.usecs if {of_woken}"))?;
        add(
            &format!("{switched}/trigger"),
            &format!(
                "hist:keys=next_pid:lat=common_timestamp.usecs-$ts0:onmatch(sched.sched_waking).histcli_lat($lat,$ts0,next_pid) if {of_switched}"
            ),
        )?;
        add("events/synthetic/histcli_lat/trigger", "hist:keys=pid:vals=lat")?;
        for (event, filter) in [(woken, &of_woken), (switched, &of_switched)] {
            mirror::set(root, &format!("{event}/filter"), filter)?;
            mirror::set(root, &format!("{event}/enable"), "1")?;
        }
        mirror::set(root, "events/synthetic/histcli_lat/enable", "1")?;
        let kernel = Oracle::create("histlat")?;
        for (event, filter) in [("sched:sched_waking", &of_woken), ("sched:sched_switch", &of_switched)] {
            kernel.filter(event, filter)?;
            kernel.enable(event, true)?;
        }
        kernel.tracing(true)?;
        let mut unreached = threads_of(mounted.pid())?;
        let enough = (40 / host::part()).max(8);
        let table = || mirror::text(root, "events/synthetic/histcli_lat/hist");
        let hits = || -> Result<u32> {
            let table = table()?;
            let hits = table.lines().find_map(|line| line.trim().strip_prefix("Hits: "));
            Ok(hits.with_context(|| table.clone())?.parse()?)
        };
        let mut naps = 0;
        while hits()? < enough {
            ensure!(naps < 4 * enough, "{} wake-ups in {naps} naps", hits()?);
            ensure!(Command::new(&sleeper).arg("0.01").status()?.success());
            naps += 1;
        }
        kernel.tracing(false)?;
        std::fs::remove_dir_all(&dir)?;
        let trace = Trace::parse(mirror::text(root, "trace")?.as_bytes());
        let recorded = latencies(&trace, &BTreeSet::new())?;
        let mut emitted = Vec::new();
        for line in trace.lines.iter().filter(|line| line.event() == "histcli_lat") {
            emitted.push((number(line, "pid")?, number(line, "woken")?, number(line, "lat")?));
        }
        // The mirror leaves out hits of its own threads, and some hosts run no programs in the context of threads of
        // process 1 (`docs/reference/limits.md`).
        unreached.extend(threads_of(mounted.pid())?);
        unreached.extend(threads_of(1)?);
        let expected = latencies(&kernel.trace()?, &unreached)?;
        // Either side misses a hit that occurs while a program runs on the same CPU.
        let lost = if host::counts_missed() {
            let stats = mirror::text(root, "per_cpu/cpu0/stats")?;
            let missed = stats.lines().find_map(|line| line.strip_prefix("missed events on all CPUs: "));
            missed.context("missed events")?.parse::<usize>()?
        } else {
            (naps / 8) as usize
        };
        ensure!(recorded.len() + lost >= expected.len(), "{lost} lost: {expected:?}\n{recorded:?}");
        ensure!(emitted.len().abs_diff(recorded.len()) <= lost, "{lost} lost: {emitted:?}\n{recorded:?}");
        // The record and the histogram read the clock one after the other, at each end of a latency and before the next
        // end.
        let (mut offsets, mut before, mut pairs) = (Offsets::default(), None, 0);
        for (pid, woken, latency) in &emitted {
            let of_pid = recorded.iter().filter(|(other, ..)| other == pid);
            let Some((_, from, to)) = of_pid.min_by_key(|(_, from, _)| from.abs_diff(*woken * 1000)) else {
                continue;
            };
            pairs += 1;
            for (record, histogram) in [(*from, *woken), (*to, woken + latency)] {
                let times = (record, histogram * 1000);
                if let Some(before) = before.replace(times) {
                    offsets.take(before, times);
                }
            }
        }
        ensure!(pairs + lost >= emitted.len(), "{emitted:?}\n{recorded:?}");
        ensure!(offsets.is_one_clock(RESOLUTION), "{offsets}: {emitted:?}\n{recorded:?}");
        // The table's sums equal the sums of the records.
        let table = table()?;
        let sum: u64 = emitted.iter().map(|(.., latency)| latency).sum();
        let mut shown = 0;
        for row in table.lines().filter(|line| line.starts_with("{ pid:")) {
            shown += row.rsplit(' ').next().context("no sum")?.parse::<u64>()?;
        }
        ensure!(shown == sum, "{shown} {sum}\n{table}");
        ensure!(table.contains(&format!("    Hits: {}\n", emitted.len())), "{table}");
        println!("{} wake-ups, {lost} hits lost, {offsets}", emitted.len());
        Ok(())
    });
}

/// The number of a field.
fn number(line: &Line, key: &str) -> Result<u64> {
    let value = line.text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok());
    value.with_context(|| format!("{key} of {line:?}"))
}

/// The threads of a process.
fn threads_of(pid: u32) -> Result<BTreeSet<i32>> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The wake-ups in a trace, without those in the context of some threads: the woken thread, and the times of its waking
/// and of the switch to it.
fn latencies(trace: &Trace, without: &BTreeSet<i32>) -> Result<Vec<(u64, u64, u64)>> {
    let (mut since, mut latencies) = (BTreeMap::new(), Vec::new());
    for line in &trace.lines {
        match line.event().as_str() {
            "sched_waking" => {
                since.insert(number(line, "pid")?, line);
            }
            "sched_switch" => {
                let pid = number(line, "next_pid")?;
                if let Some(waking) = since.remove(&pid)
                    && [waking, line].iter().all(|line| !without.contains(&line.pid))
                {
                    latencies.push((pid, waking.time, line.time));
                }
            }
            _ => {}
        }
    }
    Ok(latencies)
}

/// The commands of the page's `console tracer` blocks, each with the lines that follow it. Commands of `console
/// tracer FILE` blocks are included when the kernel's tracefs has that file.
fn commands(tracefs: &Path) -> Vec<(String, Vec<&'static str>)> {
    let mut commands: Vec<(String, Vec<&str>)> = Vec::new();
    let mut inside = false;
    for line in PAGE.lines() {
        if line.starts_with("```") {
            let wanted = line.strip_prefix("```console tracer");
            inside = wanted.is_some_and(|file| file.is_empty() || tracefs.join(file.trim_start()).exists());
        } else if inside {
            match (line.strip_prefix("# tracer "), line.strip_prefix("> "), commands.last_mut()) {
                (Some(command), ..) => commands.push((format!("tracer {command}"), Vec::new())),
                (_, Some(more), Some((command, _))) => command.extend(["\n", more]),
                (_, _, Some((_, expected))) => expected.push(line),
                _ => {}
            }
        }
    }
    commands
}

/// Whether the parts of a pattern appear in a line in this order; `...` matches any text.
fn matches(pattern: &str, line: &str) -> bool {
    let mut rest = line;
    pattern.split("...").filter(|part| !part.is_empty()).all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

#[test]
fn the_guides_examples_print_what_the_page_shows() {
    host::as_root(|| {
        let tracefs = Tracefs::find_or_mount()?;
        let tracer = host::binary("tracer", "TRACER_BIN")?;
        let dir = tracer.parent().context("no directory")?;
        let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
        let commands = commands(tracefs.root());
        ensure!(commands.len() >= 3, "{}", commands.len());
        for (command, expected) in &commands {
            let started = std::time::Instant::now();
            let output = Command::new("bash")
                .env("PATH", &path)
                .args(["-c", command])
                .stdin(Stdio::null())
                .output()?;
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            // The lines have the order of the page; the machine determines which other rows there are.
            let mut lines = said.lines();
            for pattern in expected {
                ensure!(lines.any(|line| matches(pattern, line)), "{command}\n{pattern}\n---\n{said}");
            }
            ensure!(started.elapsed() < Duration::from_secs(60), "{command}: {:?}", started.elapsed());
        }
        println!("{} commands", commands.len());
        Ok(())
    });
}
