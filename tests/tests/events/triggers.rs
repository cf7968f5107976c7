//! Triggers of a mounted mirror with known results: counts on two CPUs, snapshots, and the triggers of `trace_marker`.
//! `events::records` changes triggers under load.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted, set, stacks, text};
use tracer_tests::oracle::Oracle;
use tracer_tests::triggers::{GETPGID, GETSID};
use tracer_tests::workload::{getpgid, getsid};

use crate::run;

/// Runs a function on the first CPU and on the last CPU at the same time, `times` times on each.
fn on_two_cpus(times: u64, act: impl Fn(i32) + Sync) -> Result<()> {
    let last = host::last_cpu()?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = [0, last]
            .into_iter()
            .map(|cpu| {
                let act = &act;
                scope.spawn(move || -> Result<()> {
                    let mut set = rustix::thread::CpuSet::new();
                    set.set(cpu);
                    rustix::thread::sched_setaffinity(None, &set)?;
                    (0..times).for_each(|time| act(time as i32));
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker"))
    })
}

#[test]
fn counts_are_exact_on_two_cpus() {
    run(|| {
        let mounted = Mounted::start("counts")?;
        let dir = mounted.instance("counts")?;
        set(&dir, "buffer_size_kb", "32768")?;
        let hits = u64::from(host::share(40_000));
        let wanted = hits / 3;
        let trigger = format!("{GETPGID}/trigger");
        set(&dir, &trigger, &format!("stacktrace:{wanted}"))?;
        // The other trigger has its own count, and the event's program is replaced under load.
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            let reader = scope.spawn(|| {
                let mut changes = 0;
                while !stop.load(Ordering::Relaxed) {
                    set(&dir, &trigger, "traceon if pid == 123456789")?;
                    set(&dir, &trigger, "!traceon")?;
                    changes += 1;
                }
                anyhow::Ok(changes)
            });
            let done = on_two_cpus(hits, |_| getpgid(1));
            stop.store(true, Ordering::Relaxed);
            println!("{} changes of triggers meanwhile", reader.join().expect("the reader")?);
            done
        })?;
        ensure!(text(&dir, &trigger)? == "stacktrace:count=0\n", "{}", text(&dir, &trigger)?);
        let mut recorded = 0;
        for cpu in mirror::names(&dir.join("per_cpu"))? {
            let stats = text(&dir, &format!("per_cpu/{cpu}/stats"))?;
            let value = |key: &str| -> Result<u64> {
                let line = stats.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
                Ok(line.with_context(|| key.to_owned())?.parse()?)
            };
            recorded += value("entries")? + value("overrun")? + value("dropped events")?;
        }
        ensure!(recorded == wanted, "{recorded} stacks for a count of {wanted}");
        Ok(())
    });
}

#[test]
fn a_counted_trigger_disables_an_event_that_often() {
    run(|| {
        let mounted = Mounted::start("turns")?;
        let dir = mounted.instance("turns")?;
        // On two CPUs, one event disables a third event and another event enables it. A trigger counts only when it
        // changed the state.
        let third = "syscalls:sys_enter_getpriority";
        let count = 1_000_000;
        set(&dir, &format!("{GETPGID}/trigger"), &format!("disable_event:{third}:{count}"))?;
        set(&dir, &format!("{GETSID}/trigger"), &format!("enable_event:{third}:{count}"))?;
        on_two_cpus(
            u64::from(host::share(100_000)),
            |time| {
                if time % 2 == 0 { getpgid(1) } else { getsid(1) }
            },
        )?;
        let left = |event: &str| -> Result<i64> {
            let text = text(&dir, &format!("{event}/trigger"))?;
            Ok(text.trim().rsplit_once("count=").context("a count")?.1.parse()?)
        };
        let (off, on) = (count - left(GETPGID)?, count - left(GETSID)?);
        let is_on = text(&dir, "events/syscalls/sys_enter_getpriority/enable")? == "1*\n";
        println!("{on} times on, {off} times off");
        // The event was disabled at first, so each disabling follows an enabling.
        ensure!(on - off == i64::from(is_on), "{on} times on, {off} times off, on now: {is_on}");
        ensure!(on > 0, "no turn at all");
        Ok(())
    });
}

#[test]
fn a_snapshot_has_the_records_before_the_hit() {
    run(|| {
        let mounted = Mounted::start("snapshot")?;
        let dir = mounted.instance("snapshot")?;
        let trigger = format!("{GETSID}/trigger");
        // Set first, because shells call getpgid() as well.
        set(&dir, "set_event_pid", &rustix::thread::gettid().as_raw_nonzero().to_string())?;
        set(&dir, &format!("{GETPGID}/enable"), "1")?;
        set(&dir, &format!("{GETSID}/enable"), "1")?;
        set(&dir, &trigger, "snapshot:1 if pid == 3")?;
        ensure!(text(&dir, "snapshot")?.contains("# * Snapshot is allocated *"), "allocated");
        let arguments = |file: &str| -> Result<Vec<String>> { Ok(mirror::bodies(&text(&dir, file)?)) };
        for pid in 1..=5 {
            getpgid(pid);
            getsid(pid);
        }
        let (before, after) = (arguments("snapshot")?, arguments("trace")?);
        // A trigger with a condition needs the record, so the hit itself is in the snapshot.
        ensure!(
            before.len() == 6 && before[5].contains("pid: 3") || before[5].contains("pid: 0x3"),
            "{before:?}"
        );
        ensure!(after.len() == 4, "{after:?}");
        ensure!(text(&dir, &trigger)? == "snapshot:count=0 if pid == 3\n");
        // Without a condition the snapshot is taken before the hit is recorded.
        set(&dir, &trigger, "!snapshot")?;
        set(&dir, &trigger, "snapshot")?;
        set(&dir, "snapshot", "2")?;
        set(&dir, "trace", "")?;
        getpgid(6);
        getsid(6);
        ensure!(arguments("snapshot")?.len() == 1 && arguments("trace")?.len() == 1);
        // A snapshot is also taken while recording is off.
        set(&dir, "tracing_on", "0")?;
        getsid(7);
        // The previous content of the snapshot returns to the trace.
        ensure!(arguments("trace")?[0].contains("getpgid") && arguments("snapshot")?[0].contains("getsid"));
        Ok(())
    });
}

#[test]
fn marks_have_triggers() {
    run(|| {
        let mounted = Mounted::start("marks")?;
        let dir = mounted.instance("marks")?;
        let trigger = "events/ftrace/print/trigger";
        ensure!(text(&dir, trigger)?.starts_with("# Available triggers:\n"));
        let kernel = Oracle::create("marks")?;
        kernel.set("tracing_on", "1")?;
        let has_snapshot = kernel.get(trigger)?.contains(" snapshot");
        // Filters use the writer and its CPU.
        rustix::thread::set_name(c"marker")?;
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(0);
        rustix::thread::sched_setaffinity(None, &cpus)?;
        let shown = |dir: &Path, file: &str| -> Result<Vec<String>> { Ok(mirror::bodies(&text(dir, file)?)) };
        for (file, value) in [
            (trigger, "snapshot if buf ~ \"*snap*\""),
            (trigger, "traceoff:1 if buf == \"off\""),
            (trigger, "enable_event:syscalls:sys_enter_getsid if buf == \"sid\" && comm == \"marker\""),
            (trigger, "enable_event:syscalls:sys_enter_getpgid if comm != \"marker\" || CPU != 0"),
            ("trace_marker", "one"),
            ("trace_marker", "a snap\n"),
            ("trace_marker", "offish"),
            ("trace_marker", "sid"),
            ("trace_marker", "off"),
            ("trace_marker", "lost"),
            ("tracing_on", "1"),
            ("trace_marker", "off"),
            ("trace_marker", "two"),
        ] {
            let ours = mirror::write(&dir, file, value.as_bytes(), true);
            if has_snapshot {
                let theirs = mirror::write(kernel.dir(), file, value.as_bytes(), true);
                ensure!(ours == theirs, "{value:?} to {file}: {ours:?} and the kernel's {theirs:?}");
            }
        }
        if has_snapshot {
            for file in ["trace", "snapshot"] {
                let (ours, theirs) = (shown(&dir, file)?, shown(kernel.dir(), file)?);
                ensure!(ours == theirs, "{file}: {ours:?} and the kernel's {theirs:?}");
            }
            for file in [
                trigger,
                "events/syscalls/sys_enter_getsid/enable",
                "events/syscalls/sys_enter_getpgid/enable",
                "tracing_on",
            ] {
                ensure!(text(&dir, file)? == text(kernel.dir(), file)?, "{file}");
            }
        }
        let (before, after) = (shown(&dir, "snapshot")?, shown(&dir, "trace")?);
        ensure!(before.len() == 2 && before[1].ends_with("a snap"), "{before:?}");
        ensure!(after.len() == 5 && !after.iter().any(|line| line.contains("lost")), "{after:?}");
        ensure!(text(&dir, "events/syscalls/sys_enter_getsid/enable")? == "1*\n");
        ensure!(text(&dir, "events/syscalls/sys_enter_getpgid/enable")? == "0*\n");
        // The stack is the writer's.
        set(&dir, trigger, "stacktrace if buf == \"stack\"")?;
        set(&dir, "trace_marker", "stack")?;
        let stacks = stacks(&text(&dir, "trace")?);
        ensure!(stacks.len() == 1 && stacks[0].iter().any(|name| name == "ksys_write"), "{stacks:?}");
        Ok(())
    });
}
