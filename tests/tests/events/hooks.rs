//! The attach points of the mirror's events: many at once, one of many system calls, changes at raw tracepoints, and the
//! end of the daemon. `events::records` compares the records of the programs that system calls share.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use tracer_tests::host;
use tracer_tests::load::Load;
use tracer_tests::mirror::{Mounted, bodies, names, set, stat, text};
use tracer_tests::oracle::Oracle;
use tracer_tests::workload;

/// The number of a process's descriptors of a kind; 0 once the process is gone.
pub(crate) fn descriptors(pid: u32, kind: &str) -> usize {
    let Ok(all) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let links = all.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.to_string_lossy().contains(kind)).count()
}

/// A daemon's number of descriptors of a kind, after it has closed the descriptors that it used to verify plans.
pub(crate) fn settled(pid: u32, kind: &str) -> usize {
    let mut last = usize::MAX;
    for _ in 0..20 {
        let now = descriptors(pid, kind);
        if now == last {
            break;
        }
        last = now;
        std::thread::sleep(Duration::from_millis(500));
    }
    last
}

#[test]
fn one_of_many_system_calls_has_a_filter_and_triggers_of_its_own() {
    host::as_root(|| {
        let mounted = Mounted::start("one")?;
        let ours = mounted.instance("one")?;
        let oracle = Oracle::create("one")?;
        let both = [&ours as &Path, oracle.dir()];
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        for dir in both {
            set(dir, "tracing_on", "0")?;
            set(dir, "set_event_pid", &own)?;
            set(dir, "events/syscalls/enable", "1")?;
        }
        let mut seen = BTreeSet::new();
        let mut step = |file: &str, value: &str| -> Result<()> {
            for dir in both {
                set(dir, file, value)?;
                set(dir, "trace", "")?;
                set(dir, "tracing_on", "1")?;
            }
            for number in [0, 1, i32::MAX] {
                workload::getpgid(0);
                workload::getsid(number);
            }
            let [our, their] = both.map(|dir| {
                // Reading makes system calls as well.
                set(dir, "tracing_on", "0")?;
                let is_ours = |line: &String| line.contains("sys_getpgid") || line.contains("sys_getsid");
                Ok::<_, anyhow::Error>(bodies(&text(dir, "trace")?).into_iter().filter(is_ours).collect())
            });
            let (our, their): (Vec<String>, Vec<String>) = (our?, their?);
            ensure!(our == their, "after {value:?} to {file}: {our:#?}, the kernel {their:#?}");
            seen.insert(our);
            Ok(())
        };
        let event = |name: &str, file: &str| format!("events/syscalls/{name}/{file}");
        step(&event("sys_enter_getpgid", "filter"), "pid == 5")?;
        step(&event("sys_enter_getsid", "filter"), "pid > 0")?;
        step(&event("sys_exit_getsid", "filter"), "ret < 0")?;
        step(&event("sys_enter_getpgid", "filter"), "0")?;
        step(&event("sys_exit_getpgid", "trigger"), "disable_event:syscalls:sys_enter_getsid:1")?;
        step(&event("sys_exit_getpgid", "enable"), "0")?;
        step(&event("sys_enter_getsid", "enable"), "1")?;
        step(&event("sys_exit_getpgid", "trigger"), "!disable_event:syscalls:sys_enter_getsid:1")?;
        step(&event("sys_exit_getsid", "trigger"), "traceoff:1 if ret < 0")?;
        ensure!(seen.len() >= 6, "{seen:?}");
        Ok(())
    });
}

/// Joins predicates to a filter of nearly the largest length; `predicate` gets the index.
fn long(predicate: impl Fn(usize) -> String, joins: [&str; 2]) -> String {
    let mut filter = predicate(0);
    for index in 1.. {
        let more = format!(" {} {}", joins[index % 2], predicate(index));
        if filter.len() + more.len() > 3900 {
            break;
        }
        filter.push_str(&more);
    }
    filter
}

#[test]
fn the_longest_filters_change_at_raw_tracepoints_and_no_hit_is_lost() {
    let changes = if host::part() == 1 { 60 } else { 4 };
    host::as_root(|| {
        let mounted = Mounted::start("long")?;
        let dir = mounted.instance("long")?;
        set(&dir, "buffer_size_kb", "131072")?;
        let load = Load::new(|| {
            for _ in 0..20 {
                rustix::process::getpgid(None).unwrap();
            }
            std::thread::sleep(Duration::from_millis(if host::part() == 1 { 1 } else { 5 }));
        })?;
        let pid = load.pid().to_string();
        let call = libc::SYS_getpgid;
        // The filters accept the same calls with very different programs.
        let filters = [
            format!("id == {call}"),
            format!(
                "id == {call} && ({})",
                long(|n| format!("common_pid == {}", if n == 70 { &pid } else { "1" }), ["||", "||"])
            ),
            format!("id == {call} && !({})", long(|n| format!("COMM ~ \"*{n}?*\""), ["&&", "||"])),
        ];
        set(&dir, "set_event_pid", &pid)?;
        set(&dir, "events/raw_syscalls/sys_enter/filter", &filters[0])?;
        set(&dir, "events/raw_syscalls/sys_enter/enable", "1")?;
        set(&dir, "events/sched/sched_switch/enable", "1")?;
        set(&dir, "events/sched/sched_switch/filter", "next_prio == 500")?;
        let hooks = settled(mounted.pid(), "perf_event");
        let start = Instant::now();
        load.go()?;
        let switched = [
            long(|n| format!("prev_comm ~ \"*{n}?*\" && next_prio == 500"), ["||", "||"]),
            long(|n| format!("!(prev_pid != {n} || next_comm == \"{n}\" || prev_state & {n})"), ["&&", "||"]),
            long(|n| format!("COMM != \"{n}\" && next_prio == 500 && next_comm ~ \"{n}*\""), ["||", "||"]),
        ];
        for change in 0..changes {
            let file = "events/raw_syscalls/sys_enter/filter";
            set(&dir, file, &filters[change % filters.len()])?;
            if change < switched.len() {
                set(&dir, "events/sched/sched_switch/filter", &switched[change])?;
            }
        }
        let took = start.elapsed();
        let hits = 20 * load.stop()?;
        let moved = settled(mounted.pid(), "perf_event").saturating_sub(hooks);
        ensure!(moved == 0, "{moved} events are on perf tracepoints now");
        let lines = bodies(&text(&dir, "trace")?);
        let entries =
            lines.iter().filter(|line| line.starts_with(&format!("sys_enter: NR {call} "))).count() as u64;
        let dropped = stat(&dir, "dropped events")?;
        println!("{hits} hits, {changes} changes in {took:?}, {dropped} dropped");
        ensure!(entries + dropped == hits, "{entries} recorded, {dropped} dropped of {hits}");
        Ok(())
    });
}

#[test]
fn pointers_are_shown_as_the_kernel_shows_them() {
    host::as_root(|| {
        let mounted = Mounted::start("pointer")?;
        let ours = mounted.instance("pointer")?;
        let oracle = Oracle::create("pointer")?;
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        // The kernel's instance is enabled first and disabled last, so it records everything that the mirror records.
        for dir in [oracle.dir(), &ours] {
            set(dir, "tracing_on", "1")?;
            set(dir, "options/hash-ptr", "1")?;
            set(dir, "set_event_pid", &own)?;
            set(dir, "events/timer/hrtimer_start/enable", "1")?;
        }
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(2));
        }
        for dir in [&ours as &Path, oracle.dir()] {
            set(dir, "tracing_on", "0")?;
        }
        let [our, their] = [&ours as &Path, oracle.dir()].map(|dir| {
            let lines = bodies(&text(dir, "trace")?);
            let timer = |line: &String| Some(line.split_once("hrtimer=")?.1.split_once(' ')?.0.to_owned());
            Ok::<_, anyhow::Error>(lines.iter().filter_map(timer).collect::<BTreeSet<String>>())
        });
        let (our, their) = (our?, their?);
        println!("{our:?}");
        ensure!(!our.is_empty() && our.is_subset(&their), "{our:?}, the kernel {their:?}");
        Ok(())
    });
}

/// Processes that close the events of running and of ended daemons, and their parents.
fn all_closers() -> Result<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    for name in names(Path::new("/proc"))? {
        let Ok(pid) = name.parse() else { continue };
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        if read("cmdline").windows(12).any(|part| part == b"close-events") {
            let status = String::from_utf8_lossy(&read("status")).into_owned();
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t")?.parse().ok());
            found.push((pid, parent.unwrap_or(0)));
        }
    }
    Ok(found)
}

/// The closing processes whose daemon is gone.
fn closers() -> Result<BTreeSet<u32>> {
    let all = all_closers()?.into_iter();
    let is_daemon = |pid: u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|argument| argument == b"mount")
    };
    Ok(all.filter(|(_, parent)| !is_daemon(*parent)).map(|(pid, _)| pid).collect())
}

/// Enables the system with the most events, among the systems that do not take minutes to close. Returns the system
/// and its number of perf tracepoints.
fn turn_many_on(mounted: &Mounted) -> Result<(String, usize)> {
    let dir = mounted.dir();
    let mut systems = Vec::new();
    for system in names(&dir.join("events"))? {
        let count = std::fs::read_dir(dir.join("events").join(&system)).map_or(0, Iterator::count);
        if system != "syscalls" && count < 150 {
            systems.push((count, system));
        }
    }
    let (count, system) = systems.into_iter().max().context("no events")?;
    set(dir, "set_event_pid", &rustix::thread::gettid().as_raw_nonzero().to_string())?;
    set(dir, &format!("events/{system}/enable"), "1")?;
    let hooks = descriptors(mounted.pid(), "perf_event");
    ensure!(hooks > 32, "{count} events of {system}, {hooks} on perf tracepoints");
    Ok((system, hooks))
}

/// Waits until `closers` returns false.
fn gone(closers: impl Fn() -> Result<bool>, start: Instant) -> Result<()> {
    while closers()? {
        ensure!(start.elapsed() < Duration::from_secs(120), "nobody closes them");
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("and all were closed after {:?}", start.elapsed());
    Ok(())
}

/// Held by one test at a time: the tests below would see each other's processes.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_daemon_with_many_events_on_ends_at_once_and_leaves_no_program() {
    host::as_root(|| {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let before = closers()?;
        let mounted = Mounted::start("many")?;
        let (_, hooks) = turn_many_on(&mounted)?;
        let start = Instant::now();
        mounted.stop_within(Duration::from_secs(60))?;
        println!("{hooks} perf tracepoints: ended after {:?}", start.elapsed());
        let new: Vec<u32> = closers()?.difference(&before).copied().collect();
        for closer in &new {
            let left = descriptors(*closer, "bpf");
            ensure!(left == 0, "{left} programs and maps are left");
        }
        gone(|| Ok(closers()?.iter().any(|closer| new.contains(closer))), start)?;
        Ok(())
    });
}

/// The guard process of a daemon.
fn guard_of(daemon: u32) -> Result<u32> {
    let guards: Vec<u32> =
        all_closers()?.into_iter().filter(|(_, parent)| *parent == daemon).map(|(pid, _)| pid).collect();
    ensure!(guards.len() == 1, "guarded by {guards:?}");
    Ok(guards[0])
}

/// Waits until a guard holds at least this many perf events.
fn guarded(guard: u32, events: usize) -> Result<()> {
    let start = Instant::now();
    while descriptors(guard, "perf_event") < events {
        ensure!(start.elapsed() < Duration::from_secs(30), "few are guarded");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Waits until no thread of a daemon detaches disabled events. The descriptor of a link goes before the kernel has
/// detached it.
fn detached(daemon: u32) -> Result<()> {
    let start = Instant::now();
    let detaches = |thread: &String| {
        let comm = std::fs::read_to_string(format!("/proc/{daemon}/task/{thread}/comm")).unwrap_or_default();
        comm.trim_end() == "detach"
    };
    while names(Path::new(&format!("/proc/{daemon}/task")))?.iter().any(detaches) {
        ensure!(start.elapsed() < host::patience(Duration::from_secs(60)), "events are still detached");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Number of records of a file's end in a buffer, which is emptied before.
fn records_of_files(dir: &Path) -> Result<usize> {
    set(dir, "trace", "")?;
    let path = std::env::temp_dir().join("tracer-hooks-file");
    let file = File::create(&path)?;
    file.set_len(1 << 20)?;
    file.sync_all()?;
    std::fs::remove_file(&path)?;
    Ok(bodies(&text(dir, "trace")?).len())
}

#[test]
fn disabled_events_leave_their_hooks_and_keep_perf_events_for_the_next_time() {
    host::as_root(|| {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mounted = Mounted::start("off")?;
        let (dir, daemon) = (mounted.dir(), mounted.pid());
        // The mirror's own programs, and an event that stays enabled.
        set(dir, "events/sched/sched_process_exec/enable", "1")?;
        let links = settled(daemon, "bpf_link");
        let (system, _) = turn_many_on(&mounted)?;
        let guard = guard_of(daemon)?;
        let hooks = settled(daemon, "perf_event");
        guarded(guard, hooks / 2)?;
        let records = records_of_files(dir)?;
        // Another instance shares their links, and has a dispatcher of system calls.
        let other = mounted.instance("other")?;
        let enable = format!("events/{system}/enable");
        let call = "events/syscalls/sys_exit_getsid/enable";
        set(&other, &enable, "1")?;
        set(&other, call, "1")?;
        let start = Instant::now();
        set(dir, &enable, "0")?;
        set(&other, &enable, "0")?;
        set(&other, call, "0")?;
        // The guard may hold the link of the event that stays enabled.
        let left = || [daemon, guard].map(|pid| descriptors(pid, "bpf_link").saturating_sub(links));
        while left() != [0, 0] {
            ensure!(
                start.elapsed() < Duration::from_secs(60),
                "links stay in daemon and guard: {:?}",
                left()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        detached(daemon)?;
        // With the lock of a process that enables many events, perf events stay open for a while.
        let opening = File::open("/sys/kernel/btf/vmlinux").context("BTF")?;
        flock(&opening, FlockOperation::LockShared)?;
        let events = descriptors(daemon, "perf_event");
        println!("{hooks} hooks are free after {:?}, {events} perf events are open", start.elapsed());
        ensure!(records_of_files(dir)? == 0, "records of disabled events");
        set(dir, &enable, "1")?;
        // The thread that closes perf events may close one meanwhile.
        let opened = descriptors(daemon, "perf_event");
        ensure!(opened <= hooks + 1, "{opened} perf events for {hooks} hooks, {events} of them were open");
        guarded(guard, hooks / 2)?;
        let again = records_of_files(dir)?;
        println!("{records} records before, {again} after");
        ensure!(records > 0 || host::part() > 1, "no records of files");
        ensure!((records == 0) == (again == 0), "{records} records before, {again} after");
        drop(opening);
        mounted.stop()?;
        Ok(())
    });
}

#[test]
fn a_killed_daemon_with_many_events_ends_at_once_and_the_next_one_continues() {
    host::as_root(|| {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut mounted = Mounted::start("killed")?;
        let dir = mounted.dir().to_owned();
        let (system, hooks) = turn_many_on(&mounted)?;
        let daemon = mounted.pid();
        let guard = guard_of(daemon)?;
        guarded(guard, hooks / 2)?;
        let mut reader = std::process::Command::new("cat")
            .arg(dir.join("trace_pipe"))
            .stdout(std::process::Stdio::null())
            .spawn()?;
        let start = Instant::now();
        let fds = format!("/proc/{}/fd", reader.id());
        let has_opened = || -> Result<bool> {
            let mut links = std::fs::read_dir(&fds)?.flatten().map(|fd| std::fs::read_link(fd.path()));
            Ok(links.any(|link| link.is_ok_and(|link| link == dir.join("trace_pipe"))))
        };
        while !has_opened()? {
            ensure!(start.elapsed() < Duration::from_secs(30), "the reader does not open its file");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Holds the lock of a process that enables many events. The closing process then waits a while for each
        // event.
        let opening = File::open("/sys/kernel/btf/vmlinux").context("BTF")?;
        flock(&opening, FlockOperation::LockShared)?;
        let start = Instant::now();
        mounted.kill();
        println!("{hooks} perf tracepoints: gone after {:?}", start.elapsed());
        let left = descriptors(guard, "perf_event");
        ensure!(left > 0, "the daemon closed all by itself");
        drop(opening);
        let error = std::fs::metadata(dir.join("trace")).err().and_then(|error| error.raw_os_error());
        ensure!(error == Some(libc::ENOTCONN), "{error:?}");
        ensure!(!reader.wait()?.success(), "the reader ends");
        let next = Mounted::at(dir.clone())?;
        ensure!(Mounted::at(dir.clone()).is_err(), "two mirrors at one place");
        ensure!(text(&dir, "events/enable")? == "0\n", "a new mirror");
        let enable = format!("events/{system}/enable");
        ensure!(text(&dir, &enable)? == "0\n", "{enable} after a kill");
        set(&dir, &enable, "1")?;
        println!("and the next one had them on after {:?}", start.elapsed());
        next.stop_within(Duration::from_secs(60))?;
        gone(|| Ok(all_closers()?.iter().any(|(pid, _)| *pid == guard)), start)
    });
}
