//! Time limits: no client waits for another client's request. The tests cover mappings of streams, polls, marks, and
//! small requests during large requests.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::event::epoll;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::pipe::{SpliceFlags, splice};
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, names, set, text, write};
use tracer_tests::workload::pin_to_cpu;

use crate::timed::{Client, Timed, alone, largest, machine, soon};

/// Offset of the last page of a stream, whose size tells the kernel that the stream has no end.
const LAST: u64 = (1 << 62) - 4096;
/// Runs a function in a separate thread; `None` when it takes too long.
fn within<T: Send + 'static>(limit: Duration, act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, is_done) = channel();
    std::thread::spawn(move || done.send(act()));
    is_done.recv_timeout(limit).ok()
}

fn stream(dir: &Path) -> PathBuf {
    dir.join("per_cpu/cpu0/trace_pipe_raw")
}

/// Opens a stream, reads it by splice(2), and sends the mirror another request.
fn use_beside(dir: &Path) -> Result<usize> {
    let file = rustix::fs::open(stream(dir), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    ensure!(text(dir, "tracing_on")? == "1\n", "tracing is off");
    let (_reading, writing) = rustix::pipe::pipe()?;
    let mut pages = 0;
    loop {
        match splice(&file, None, &writing, None, 4096, SpliceFlags::NONBLOCK) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(pages),
            Ok(_) => pages += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

/// A client opens a stream. Before it reads, another client touches the first page of a mapping, which keeps that page
/// locked.
#[test]
fn a_page_that_a_mapping_waits_for_is_free_soon() {
    alone(|| {
        let mut mounted = Mounted::start("locked")?;
        let dir = mounted.dir().to_owned();
        let path = stream(&dir).to_string_lossy().into_owned();
        let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let mut toucher = Client::start(&["touch", &path, "0", "200"])?;
        std::thread::sleep(Duration::from_millis(400));
        let read = within(soon(), move || {
            let start = Instant::now();
            let (_reading, writing) = rustix::pipe::pipe()?;
            let read = splice(&file, None, &writing, None, 4096, SpliceFlags::NONBLOCK);
            anyhow::Ok((read, start.elapsed()))
        });
        if read.is_none() {
            // As below.
            let _ = unmount(&dir, UnmountFlags::DETACH | UnmountFlags::FORCE);
            mounted.kill();
        }
        let (read, took) = read.context("splice waits for the page of another client's mapping")??;
        ensure!(took < host::patience(Duration::from_secs(1)), "{took:?}");
        ensure!(read == Ok(0) || matches!(read, Err(Errno::AGAIN | Errno::INTR)), "{read:?}");
        ensure!(toucher.ended_by(soon())? == Some(libc::SIGBUS), "the mapping has a page");
        mounted.stop()?.success().map(drop)
    });
}

/// A page fault in a mapping of a stream becomes a read with the page locked, and no reader is visibly waiting. The
/// read must return the present data or an error.
#[test]
fn a_mapping_of_a_stream_blocks_no_client() {
    alone(|| {
        let mut mounted = Mounted::start("mapping")?;
        let dir = mounted.dir().to_owned();
        for offset in [LAST, 0, 4096] {
            let path = stream(&dir).to_string_lossy().into_owned();
            let mut client = Client::start(&["touch", &path, &offset.to_string(), "0"])?;
            std::thread::sleep(Duration::from_millis(200));
            let start = Instant::now();
            let (used, ended) = loop {
                let at = dir.clone();
                let used = within(soon(), move || use_beside(&at));
                let wait = host::patience(Duration::from_millis(500));
                let ended = if used.is_some() { client.ended_by(wait)? } else { None };
                // A slow client may access the page only after the stream was used.
                if used.is_none() || ended.is_some() || start.elapsed() > soon() {
                    break (used, ended);
                }
            };
            if used.is_none() || ended.is_none() {
                // A forced unmount returns an error to every waiting process, including the daemon.
                let _ = unmount(&dir, UnmountFlags::DETACH | UnmountFlags::FORCE);
                mounted.kill();
            }
            used.with_context(|| format!("the mirror hangs: a page at {offset} is touched"))??;
            ensure!(ended == Some(libc::SIGBUS), "touching {offset} ended by {ended:?}");
        }
        // A splice that waits for records completes when there are some.
        let path = stream(&dir);
        let spliced = std::thread::spawn(move || -> Result<usize> {
            let file = File::open(path)?;
            let (_reading, writing) = rustix::pipe::pipe()?;
            Ok(splice(&file, None, &writing, None, 4096, SpliceFlags::empty())?)
        });
        std::thread::sleep(Duration::from_millis(100));
        // A mark is a record of the CPU on which its writer runs.
        let marker = std::thread::spawn(move || -> Result<()> {
            pin_to_cpu(0)?;
            let start = Instant::now();
            while !spliced.is_finished() {
                ensure!(start.elapsed() < soon(), "splice waits although there are records");
                set(&dir, "trace_marker", "a mark")?;
            }
            let length = spliced.join().ok().context("splice")??;
            ensure!(length == 4096, "{length} bytes were spliced");
            Ok(())
        });
        marker.join().ok().context("the writer of marks")?
    });
}

/// From `/proc/PID`: anonymous memory in kilobytes, and CPU time in clock ticks.
fn used(pid: u32) -> Result<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    let memory = line.trim().trim_end_matches(" kB").parse()?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let mut words = stat.rsplit(')').next().context("no stat")?.split_whitespace().skip(11);
    let mut ticks = || words.next().context("no time")?.parse::<u64>().context("no number");
    Ok((memory, ticks()? + ticks()?))
}

/// Rounds of polls after which the daemon's memory is stable: 2 on the host, 3 on an emulated machine.
const ROUNDS: usize = 6;

#[test]
fn short_polls_leave_nothing() {
    let times = host::share(40_000).max(10_000);
    alone(|| {
        let mounted = Mounted::start("polls")?;
        let dir = mounted.dir();
        let pipe = File::open(dir.join("trace_pipe"))?;
        let poll = |times: u32| -> Result<()> {
            let waiter = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for _ in 0..times {
                // Behaves like poll(2) with a short timeout: the kernel requests a notification that no process waits
                // for any more.
                epoll::add(&waiter, &pipe, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
                epoll::delete(&waiter, &pipe)?;
            }
            Ok(())
        };
        // The heap keeps the memory of many simultaneous polls, so its size is stable after some rounds. A daemon
        // that remembered polls would keep 235 bytes for each in every round.
        let remembered = u64::from(times) * 235 / 1024;
        let (mut all, mut left) = (vec![used(mounted.pid())?.0], u64::MAX);
        while left > remembered / 8 {
            ensure!(all.len() <= ROUNDS, "rounds of {times} polls: {all:?} kB");
            poll(times)?;
            std::thread::sleep(host::patience(Duration::from_millis(100)));
            let (now, _) = used(mounted.pid())?;
            left = now.saturating_sub(all[all.len() - 1]);
            all.push(now);
        }
        // The daemon forgets a poll by itself and then stops checking.
        std::thread::sleep(Duration::from_millis(1500));
        let (_, start) = used(mounted.pid())?;
        std::thread::sleep(Duration::from_secs(2));
        let (_, end) = used(mounted.pid())?;
        println!("{times} polls a round: {all:?} kB; then {} ticks in 2 s", end - start);
        ensure!(end - start <= 4, "an idle daemon used {} ticks in 2 s", end - start);
        Ok(())
    });
}

#[test]
fn marks_and_small_requests_do_not_wait_for_many_events() {
    alone(|| {
        let mounted = Mounted::start("marks")?;
        let dir = mounted.dir().to_owned();
        set(&dir, "set_event_pid", &std::process::id().to_string())?;
        // Enables one event first, so that the daemon completes its one-time reads.
        set(&dir, "events/sched/sched_switch/enable", "1")?;
        let system = largest(&dir)?;
        let noise = machine()?;
        let mut marker = File::options().write(true).open(dir.join("trace_marker"))?;
        let marks = Timed::start(move || Ok(marker.write_all(b"a mark")?));
        let at = dir.clone();
        let reads = Timed::start(move || {
            ensure!(text(&at, "tracing_on")? == "1\n", "tracing is off");
            Ok(())
        });
        let start = Instant::now();
        for value in ["1", "0", "1", "0"] {
            set(&dir, "events/syscalls/enable", value)?;
            set(&dir, &format!("events/{system}/enable"), value)?;
        }
        let took = start.elapsed();
        let (_, machines, most) = noise.end()?;
        let (count, usual, longest) = marks.end()?;
        let (others, others_usual, others_longest) = reads.end()?;
        println!(
            "{took:?} for syscalls and {system}, twice on and off; {count} marks: {usual:?}, at most {longest:?}; {others} \
             reads: {others_usual:?}, at most {others_longest:?}; the machine alone: {machines:?}, at most {most:?}"
        );
        ensure!(usual <= host::patience(Duration::from_millis(10)) + machines, "marks take {usual:?}");
        // The maximum delay that a busy machine can excuse.
        let most = most.min(host::patience(Duration::from_millis(25)));
        ensure!(longest <= host::patience(Duration::from_millis(10)) + most, "a mark took {longest:?}");
        ensure!(
            others_longest <= host::patience(Duration::from_millis(50)) + 2 * most,
            "a read took {others_longest:?}"
        );
        // Every mark is in the trace or counted.
        let shown = text(&dir, "trace")?.lines().filter(|line| line.contains("a mark")).count();
        let gone = tracer_tests::mirror::stat(&dir, "overrun")?;
        ensure!(
            shown == count || (shown < count && gone > 0),
            "{shown} of {count} marks, {gone} records gone"
        );
        Ok(())
    });
}

/// The first marks of a daemon need a kernel symbol while the daemon still reads the kernel's facts. The marks must
/// not wait for that.
#[test]
fn the_first_marks_of_a_daemon_do_not_wait() {
    alone(|| {
        let mut first = Vec::new();
        for _ in 0..5 {
            let mounted = Mounted::start("first-mark")?;
            let mut marker = File::options().write(true).open(mounted.dir().join("trace_marker"))?;
            let start = Instant::now();
            marker.write_all(b"a mark")?;
            first.push(start.elapsed());
            drop(marker);
            mounted.stop()?.success()?;
        }
        first.sort_unstable();
        println!("the first marks of daemons took {first:?}");
        // A busy machine may delay some of them.
        ensure!(first[2] <= host::patience(Duration::from_millis(10)), "the first marks took {first:?}");
        Ok(())
    });
}

/// While the kernel closes a daemon's events, it holds a lock for some 30 ms per event. Reading a format or opening
/// an event needs that lock. Another daemon's requests that need neither must not wait for it.
#[test]
fn small_requests_do_not_wait_while_another_daemons_events_are_closed() {
    alone(|| {
        let closing = Mounted::start("closing")?;
        set(closing.dir(), "set_event_pid", &std::process::id().to_string())?;
        let systems = ["kmem", "block", "ext4", "net", "timer", "irq", "skb", "sock", "tcp", "writeback"];
        for system in systems {
            if closing.dir().join("events").join(system).exists() {
                set(closing.dir(), &format!("events/{system}/enable"), "1")?;
            }
        }
        let mounted = Mounted::start("beside")?;
        let dir = mounted.dir().to_owned();
        set(&dir, "set_event_pid", &std::process::id().to_string())?;
        closing.stop()?.success()?;
        let (noise, at) = (machine()?, dir.clone());
        let reads = Timed::start(move || {
            ensure!(text(&at, "tracing_on")? == "1\n", "tracing is off");
            Ok(())
        });
        let start = Instant::now();
        let mut times = Vec::new();
        for system in ["workqueue", "power", "signal", "task"] {
            for name in names(&dir.join("events").join(system))? {
                let event = format!("events/{system}/{name}");
                if !dir.join(&event).join("format").exists() {
                    continue;
                }
                let since = Instant::now();
                ensure!(text(&dir, &format!("{event}/format"))?.contains(&name), "{event}: no format");
                set(&dir, &format!("{event}/filter"), "common_pid == 0")?;
                set(&dir, &format!("{event}/enable"), "1")?;
                set(&dir, &format!("{event}/enable"), "0")?;
                times.push(since.elapsed());
            }
        }
        let took = start.elapsed();
        let (_, machines, most) = noise.end()?;
        let (count, usual, longest) = reads.end()?;
        times.sort_unstable();
        println!(
            "{} events in {took:?}, at most {:?}; {count} reads: {usual:?}, at most {longest:?}; the machine alone: \
             {machines:?}, at most {most:?}",
            times.len(),
            times[times.len() - 1]
        );
        let most = most.min(host::patience(Duration::from_millis(25)));
        ensure!(longest <= host::patience(Duration::from_millis(50)) + 2 * most, "a read took {longest:?}");
        mounted.stop()?.success().map(drop)
    });
}

/// A tracer holds a lock while it opens many perf events, and a process that closes perf events waits for it. Every
/// process can take this lock (flock(2) on a readable file), so no change of an event may wait for it.
#[test]
fn a_lock_that_every_process_can_hold_delays_no_change() {
    alone(|| {
        let mounted = Mounted::start("locked")?;
        let dir = mounted.dir();
        set(dir, "set_event_pid", &std::process::id().to_string())?;
        let mut events = vec!["events/sched/sched_switch".to_owned()];
        for (line, event) in
            [("e:locked/tracepoint sched.sched_waking", "tracepoint"), ("p:locked/kprobe vfs_read", "kprobe")]
        {
            // An open without append would delete the other definitions.
            let mut definitions = File::options().append(true).open(dir.join("dynamic_events"))?;
            let event = format!("events/locked/{event}");
            // The mirror also accepts a kprobe on a kernel where no program can be attached to functions.
            if definitions.write_all(line.as_bytes()).is_ok()
                && set(dir, &format!("{event}/enable"), "1").is_ok()
            {
                set(dir, &format!("{event}/enable"), "0")?;
                events.push(event);
            }
        }
        ensure!(events.len() > 1, "no dynamic event was taken");
        let longest = || -> Result<Duration> {
            let mut longest = Duration::ZERO;
            let mut change = |file: &str, text: &str| -> Result<()> {
                let start = Instant::now();
                set(dir, file, text)?;
                longest = longest.max(start.elapsed());
                Ok(())
            };
            for event in events.iter().cycle().take(3 * events.len()) {
                change(&format!("{event}/enable"), "1")?;
                change(&format!("{event}/enable"), "0")?;
            }
            // The program of a named histogram is attached to a perf tracepoint.
            let trigger = "events/sched/sched_wakeup/trigger";
            for _ in 0..3 {
                change(trigger, "hist:keys=common_pid:name=locked")?;
                change(trigger, "!hist:keys=common_pid:name=locked")?;
            }
            Ok(longest)
        };
        let alone = longest()?;
        let more = Duration::from_millis(if host::part() > 1 { 1000 } else { 250 });
        for how in [FlockOperation::NonBlockingLockShared, FlockOperation::NonBlockingLockExclusive] {
            let file = File::open("/sys/kernel/btf/vmlinux")?;
            // The closing process of another test may hold the lock briefly.
            while flock(&file, how).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let locked = longest()?;
            println!("{} events: {alone:?} at most, {locked:?} with {how:?}", events.len());
            ensure!(locked <= alone + more, "a change took {locked:?} with {how:?}, {alone:?} without");
        }
        mounted.stop()?.success().map(drop)
    });
}

/// Many polls of one instance's files cost one check of its rings, and the daemon then serves other requests.
#[test]
fn many_polls_block_no_client() {
    alone(|| {
        let mounted = Mounted::start("many-polls")?;
        let dir = mounted.dir().to_owned();
        set(&dir, "set_event_pid", &std::process::id().to_string())?;
        set(&dir, "events/syscalls/enable", "1")?;
        set(&dir, &format!("events/{}/enable", largest(&dir)?), "1")?;
        // The buffer never becomes full enough to end a poll.
        set(&dir, "buffer_percent", "100")?;
        let files: Vec<File> = (0..1000).map(|_| File::open(stream(&dir))).collect::<std::io::Result<_>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let polls = std::thread::spawn(move || -> Result<usize> {
            let mut rounds = 0;
            while !ends.load(Ordering::Relaxed) {
                // Polls again before the daemon forgets the poll, which happens after a second.
                let waiter = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                for file in &files {
                    epoll::add(&waiter, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
                }
                std::thread::sleep(Duration::from_millis(500));
                rounds += 1;
            }
            Ok(rounds)
        });
        std::thread::sleep(host::patience(Duration::from_millis(300)).min(Duration::from_secs(2)));
        let (noise, at) = (machine()?, dir.clone());
        let reads = Timed::start(move || {
            ensure!(text(&at, "tracing_on")? == "1\n", "tracing is off");
            Ok(())
        });
        std::thread::sleep(host::patience(Duration::from_secs(2)).min(Duration::from_secs(8)));
        let (count, usual, longest) = reads.end()?;
        let (_, machines, most) = noise.end()?;
        stop.store(true, Ordering::Relaxed);
        let rounds = polls.join().ok().context("the polls")??;
        println!(
            "{count} reads beside 1,000 polls, {rounds} times: {usual:?}, at most {longest:?}; the machine alone: \
             {machines:?}, at most {most:?}"
        );
        let slack = most.min(host::patience(Duration::from_millis(25)));
        ensure!(longest <= host::patience(Duration::from_millis(50)) + 2 * slack, "a read took {longest:?}");
        Ok(())
    });
}

/// The first synthetic event of a daemon needs the kernel's BTF. The kernel takes long to free the objects of an
/// instance with histograms. Neither may delay small requests.
#[test]
fn small_requests_do_not_wait_for_definitions_and_removed_instances() {
    alone(|| {
        let mounted = Mounted::start("steps")?;
        let dir = mounted.dir().to_owned();
        let (noise, at) = (machine()?, dir.clone());
        let reads = Timed::start(move || {
            ensure!(text(&at, "tracing_on")? == "1\n", "tracing is off");
            Ok(())
        });
        set(&dir, "synthetic_events", "allocated gfp_t flags; u64 bytes; char comm[16]")?;
        for _ in 0..3 {
            let instance = mounted.instance("gone")?;
            set(&instance, "set_event_pid", &std::process::id().to_string())?;
            set(&instance, "events/kmem/kmalloc/trigger", "hist:keys=call_site:vals=bytes_alloc")?;
            set(&instance, "events/sched/sched_switch/trigger", "hist:keys=next_pid")?;
            set(&instance, "events/raw_syscalls/sys_enter/trigger", "hist:keys=id:name=gone")?;
            std::fs::remove_dir(&instance)?;
        }
        let (count, usual, longest) = reads.end()?;
        let (_, machines, most) = noise.end()?;
        println!(
            "{count} reads: {usual:?}, at most {longest:?}; the machine alone: {machines:?}, at most {most:?}"
        );
        let slack = most.min(host::patience(Duration::from_millis(25)));
        ensure!(longest <= host::patience(Duration::from_millis(50)) + 2 * slack, "a read took {longest:?}");
        mounted.stop()?.success().map(drop)
    });
}

/// The daemon handles each client request as a separate step, and the uids take turns. Root's change therefore does
/// not wait for all clients' requests.
#[test]
fn a_change_does_not_wait_for_requests_of_other_clients() {
    alone(|| {
        let mounted = Mounted::start("requests")?;
        let dir = mounted.dir().to_owned();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755))?;
        std::fs::set_permissions(dir.join("user_events_data"), std::fs::Permissions::from_mode(0o666))?;
        set(&dir, "dynamic_events", "u:asked u32 a")?;
        let program = host::binary("tracer-user-attack", "TRACER_USER_ATTACK_BIN")?;
        let path = dir.to_str().context("a path")?;
        let mut clients = Vec::new();
        for number in 0..16 {
            let mut command = Command::new(&program);
            command.args(["flood", path, "100000000"]).uid(60_000 + number % 4).gid(60_000);
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            clients.push(Client(command.spawn()?));
        }
        std::thread::sleep(host::patience(Duration::from_millis(500)).min(Duration::from_secs(2)));
        let mut times = Vec::new();
        for round in 0..20 {
            let start = Instant::now();
            set(&dir, "events/user_events/asked/enable", if round % 2 == 0 { "1" } else { "0" })?;
            times.push(start.elapsed());
        }
        for client in &mut clients {
            ensure!(client.0.try_wait()?.is_none(), "a client ended");
        }
        times.sort_unstable();
        println!("changes beside 16 clients that ask all the time: {:?}, at most {:?}", times[10], times[19]);
        ensure!(times[19] <= host::patience(Duration::from_millis(250)), "{times:?}");
        drop(clients);
        mounted.stop()?.success().map(drop)
    });
}

#[test]
fn a_mark_is_visible_to_the_next_read_in_its_place() {
    alone(|| {
        let mounted = Mounted::start("place")?;
        let dir = mounted.instance("place")?;
        set(&dir, "set_event_pid", &rustix::thread::gettid().as_raw_nonzero().to_string())?;
        set(&dir, "events/syscalls/sys_enter_getpgid/enable", "1")?;
        for clock in ["local", "boot", "counter"] {
            set(&dir, "trace_clock", clock)?;
            for round in 0..50 {
                let _ = rustix::process::getpgid(None);
                set(&dir, "trace_marker", &format!("mark {round}"))?;
                let seen = text(&dir, "trace")?;
                let lines: Vec<&str> = seen.lines().filter(|line| !line.starts_with('#')).collect();
                ensure!(
                    lines.len() == 2 * (round + 1),
                    "{clock}: {} lines after {round}: {seen}",
                    lines.len()
                );
                let kinds = [
                    lines[2 * round].contains("sys_getpgid"),
                    lines[2 * round + 1].contains(&format!("mark {round}")),
                ];
                ensure!(kinds == [true, true], "{clock}: not in order: {seen}");
            }
        }
        // The mirror refuses the same writes as the kernel.
        let refused = |file: &str, value: &[u8]| tracer_tests::mirror::write(&dir, file, value, true).err();
        ensure!(refused("trace_marker_raw", b"123") == Some(libc::EINVAL), "raw data without a number");
        set(&dir, "tracing_on", "0")?;
        ensure!(refused("trace_marker", b"x") == Some(libc::EBADF), "a mark while recording is off");
        set(&dir, "tracing_on", "1")?;
        set(&dir, "options/markers", "0")?;
        ensure!(refused("trace_marker", b"x") == Some(libc::EINVAL), "a mark without the option");
        Ok(())
    });
}

/// A shell opens with `O_TRUNC` for each `>`. Such an open waits for no other request if the file has nothing to
/// empty. The first line that names a kernel function takes long, because the symbols are read for it.
#[test]
fn an_open_that_empties_nothing_waits_for_no_definition() {
    alone(|| {
        let mounted = Mounted::start("truncate")?;
        let dir = mounted.dir().to_owned();
        set(&dir, "trace_marker", "first")?;
        let (began, begins) = channel();
        let ended = Arc::new(AtomicBool::new(false));
        let (is_ended, place) = (Arc::clone(&ended), dir.clone());
        let opens = std::thread::spawn(move || -> Result<Duration> {
            let mut longest = Duration::ZERO;
            while !is_ended.load(Ordering::Acquire) {
                let start = Instant::now();
                File::options().write(true).truncate(true).open(place.join("trace_marker"))?;
                longest = longest.max(start.elapsed());
                let _ = began.send(());
            }
            Ok(longest)
        });
        begins.recv()?;
        let start = Instant::now();
        let defined = write(&dir, "kprobe_events", b"p:truncate/read vfs_read", true);
        let took = start.elapsed();
        ended.store(true, Ordering::Release);
        let longest = opens.join().map_err(|_| anyhow!("the opening thread panicked"))??;
        eprintln!("the definition took {took:?}, an open {longest:?} at most");
        ensure!(defined == Ok(()), "{defined:?}");
        ensure!(longest < took / 2, "an open took {longest:?} of the definition's {took:?}");
        Ok(())
    });
}
