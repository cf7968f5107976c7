//! No client waits for another client's request. The tests cover mappings of streams, polls, marks, and small requests
//! during large requests. `./x bench --only delays` measures how long such requests take.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::epoll;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::pipe::{SpliceFlags, splice};
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, names, set, text};
use tracer_tests::oracle::Oracle;
use tracer_tests::workload::pin_to_cpu;

use crate::timed::{Client, Repeated, at_last, await_true, largest, soon, within};

/// Offset of the last page of a stream, whose size tells the kernel that the stream has no end.
const LAST: u64 = (1 << 62) - 4096;

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
    host::as_root(|| {
        let mut mounted = Mounted::start("locked")?;
        let dir = mounted.dir().to_owned();
        let path = stream(&dir).to_string_lossy().into_owned();
        let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let mut toucher = Client::start(&["touch", &path, "0", "0"])?;
        toucher.blocks()?;
        let read = within(soon(), move || {
            let (_reading, writing) = rustix::pipe::pipe()?;
            anyhow::Ok(splice(&file, None, &writing, None, 4096, SpliceFlags::NONBLOCK))
        });
        if read.is_none() {
            // As below.
            let _ = unmount(&dir, UnmountFlags::DETACH | UnmountFlags::FORCE);
            mounted.kill();
        }
        let read = read.context("splice waits for the page of another client's mapping")??;
        ensure!(read == Ok(0) || matches!(read, Err(Errno::AGAIN | Errno::INTR)), "{read:?}");
        ensure!(toucher.ended_by(soon())? == Some(libc::SIGBUS), "the mapping has a page");
        mounted.stop()?.success().map(drop)
    });
}

/// A page fault in a mapping of a stream becomes a read with the page locked, and no reader is visibly waiting. The
/// read must return the present data or an error.
#[test]
fn a_mapping_of_a_stream_blocks_no_client() {
    host::as_root(|| {
        let mut mounted = Mounted::start("mapping")?;
        let dir = mounted.dir().to_owned();
        for offset in [LAST, 0, 4096] {
            let path = stream(&dir).to_string_lossy().into_owned();
            let mut client = Client::start(&["touch", &path, &offset.to_string(), "0"])?;
            client.blocks()?;
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
    let times = 10_000_u32;
    host::as_root(|| {
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

/// Small requests, which must not wait for the large ones below: a read, a mark, and an open as by a shell's `>` of a
/// file that has nothing to empty.
const SMALL: [&str; 3] = ["read", "mark", "open"];

fn small(name: &'static str, dir: &Path) -> Result<Repeated> {
    let dir = dir.to_owned();
    Ok(match name {
        "read" => Repeated::start(name, move || {
            ensure!(text(&dir, "tracing_on")? == "1\n", "tracing is off");
            Ok(())
        }),
        "mark" => {
            let mut marker = File::options().append(true).open(dir.join("trace_marker"))?;
            Repeated::start(name, move || Ok(marker.write_all(b"a mark")?))
        }
        _ => Repeated::start(name, move || {
            File::options().write(true).truncate(true).open(dir.join("trace_marker"))?;
            Ok(())
        }),
    })
}

/// Number of answers to one kind of small request within one large request. A daemon that completes the large request
/// first gives at most the one answer that its client waits for then.
const ANSWERS: usize = 5;

/// Number of daemons that a case tries. The kernel may not run the threads with the small requests during a large
/// request, or only seldom.
const DAEMONS: usize = 20;

type Request = Box<dyn FnOnce() -> Result<()> + Send>;

/// Large requests to one daemon, one after the other.
struct Case {
    name: &'static str,
    /// Prepares a daemon, and returns the requests.
    requests: fn(&Mounted) -> Result<Vec<Request>>,
}

impl Case {
    fn check(&self) -> Result<()> {
        let mut most = BTreeMap::new();
        for daemon in 1..=DAEMONS {
            let mounted = Mounted::start("served")?;
            let requests = (self.requests)(&mounted)?;
            let all = SMALL.map(|name| small(name, mounted.dir()));
            let all = all.into_iter().collect::<Result<Vec<Repeated>>>()?;
            all.iter().try_for_each(|small| small.pass(1))?;
            for request in requests {
                let start = Instant::now();
                within(at_last(), request).context("a large request hangs")??;
                let span = (start, Instant::now());
                for small in &all {
                    let answers = most.entry(small.name()).or_default();
                    *answers = small.answered_within(span).max(*answers);
                }
            }
            let ended = all.into_iter().map(|small| Ok((small.name(), small.end()?)));
            let marks = ended.collect::<Result<BTreeMap<_, _>>>()?["mark"];
            // Every mark is in the trace or counted.
            let shown = text(mounted.dir(), "trace")?.lines().filter(|line| line.contains("a mark")).count();
            let gone = tracer_tests::mirror::stat(mounted.dir(), "overrun")?;
            ensure!(
                shown == marks || (shown < marks && gone > 0),
                "{shown} of {marks} marks, {gone} records gone"
            );
            mounted.stop()?.success()?;
            if most.values().all(|answers| *answers >= ANSWERS) {
                println!("{}: {most:?} answers within a large request, {daemon} daemons", self.name);
                return Ok(());
            }
        }
        bail!("at most {most:?} answers within a large request")
    }
}

fn writing(dir: &Path, file: &str, text: &'static str) -> Request {
    let (dir, file) = (dir.to_owned(), file.to_owned());
    Box::new(move || set(&dir, &file, text))
}

/// Enables and disables many events, which only this process may hit.
fn many_events(mounted: &Mounted) -> Result<Vec<Request>> {
    let dir = mounted.dir();
    set(dir, "set_event_pid", &std::process::id().to_string())?;
    let system = format!("events/{}/enable", largest(dir)?);
    Ok(["1", "0"]
        .into_iter()
        .flat_map(|value| ["events/syscalls/enable", &system].map(|file| writing(dir, file, value)))
        .collect())
}

/// Changes events while the kernel closes another daemon's events. The kernel holds a lock for some 30 ms per event,
/// which reading a format or opening an event needs, too. Requests that need neither must not wait for it.
fn events_beside_closing(mounted: &Mounted) -> Result<Vec<Request>> {
    let (dir, own) = (mounted.dir(), std::process::id().to_string());
    set(dir, "set_event_pid", &own)?;
    let closing = Mounted::start("closing")?;
    set(closing.dir(), "set_event_pid", &own)?;
    for system in ["kmem", "block", "ext4", "net", "timer", "irq", "skb", "sock", "tcp", "writeback"] {
        if closing.dir().join("events").join(system).exists() {
            set(closing.dir(), &format!("events/{system}/enable"), "1")?;
        }
    }
    closing.stop()?.success()?;
    let mut requests = Vec::new();
    for system in ["workqueue", "power", "signal", "task"] {
        for name in names(&dir.join("events").join(system))? {
            let event = format!("events/{system}/{name}");
            if !dir.join(&event).join("format").exists() {
                continue;
            }
            let format = dir.join(&event).join("format");
            requests.push(Box::new(move || {
                ensure!(std::fs::read_to_string(&format)?.contains(&name), "{}", format.display());
                Ok(())
            }) as Request);
            requests.push(writing(dir, &format!("{event}/filter"), "common_pid == 0"));
            requests.extend(["1", "0"].map(|value| writing(dir, &format!("{event}/enable"), value)));
        }
    }
    Ok(requests)
}

/// Makes and removes instances with histograms, whose objects the kernel frees slowly.
fn removed_instances(mounted: &Mounted) -> Vec<Request> {
    let dir = mounted.dir().join("instances/gone");
    let mut requests = Vec::new();
    for _ in 0..3 {
        let [made, removed] = [dir.clone(), dir.clone()];
        requests.push(Box::new(move || Ok(std::fs::create_dir(made)?)) as Request);
        requests.extend(
            [
                ("kmem/kmalloc", "hist:keys=call_site:vals=bytes_alloc"),
                ("sched/sched_switch", "hist:keys=next_pid"),
                ("raw_syscalls/sys_enter", "hist:keys=id:name=gone"),
            ]
            .map(|(event, line)| writing(&dir, &format!("events/{event}/trigger"), line)),
        );
        requests.push(Box::new(move || Ok(std::fs::remove_dir(removed)?)));
    }
    requests
}

const CASES: [Case; 5] = [
    Case { name: "many events", requests: many_events },
    Case { name: "events beside closing", requests: events_beside_closing },
    Case { name: "removed instances", requests: |mounted| Ok(removed_instances(mounted)) },
    // The first synthetic event of a daemon needs the kernel's BTF.
    Case {
        name: "a synthetic event",
        requests: |mounted| {
            let text = "allocated gfp_t flags; u64 bytes; char comm[16]";
            Ok(vec![writing(mounted.dir(), "synthetic_events", text)])
        },
    },
    // The first line of a daemon that names a kernel function takes long, because the symbols are read for it.
    Case {
        name: "a kprobe",
        requests: |mounted| Ok(vec![writing(mounted.dir(), "kprobe_events", "p:served/read vfs_read")]),
    },
];

#[test]
fn small_requests_are_served_during_large_ones() {
    host::as_root(|| CASES.iter().try_for_each(|case| case.check().with_context(|| case.name)));
}

/// The threads of a process.
fn threads(pid: u32) -> Result<Vec<u32>> {
    let names = names(Path::new(&format!("/proc/{pid}/task")))?;
    Ok(names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?)
}

/// A tracer holds a lock while it opens many perf events, and a process that closes perf events waits for it, up to two
/// seconds for each event. Every process can take this lock (flock(2) on a readable file), so no change of an event may
/// wait for it.
#[test]
fn a_lock_that_every_process_can_hold_delays_no_change() {
    host::as_root(|| {
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
        let mut changes = Vec::new();
        for event in events.iter().cycle().take(3 * events.len()) {
            changes.extend(["1", "0"].map(|value| (format!("{event}/enable"), value)));
        }
        // The program of a named histogram is attached to a perf tracepoint.
        for _ in 0..3 {
            let lines = ["hist:keys=common_pid:name=locked", "!hist:keys=common_pid:name=locked"];
            changes.extend(lines.map(|line| ("events/sched/sched_wakeup/trigger".to_owned(), line)));
        }
        // The kernel's tracefs counts how often the daemon's threads try to take the lock.
        let oracle = Oracle::create("locked")?;
        oracle.pids(&threads(mounted.pid())?, true)?;
        oracle.enable("syscalls:sys_enter_flock", true)?;
        let [mut most, mut waits] = [0; 2];
        for how in [FlockOperation::NonBlockingLockShared, FlockOperation::NonBlockingLockExclusive] {
            let file = File::open("/sys/kernel/btf/vmlinux")?;
            // The closing process of another test may hold the lock briefly.
            await_true("the lock", || Ok(flock(&file, how).is_ok()))?;
            for (file, text) in &changes {
                oracle.clear()?;
                oracle.tracing(true)?;
                set(dir, file, text)?;
                oracle.tracing(false)?;
                let trace = oracle.trace()?;
                // Opening threads try to share the lock (`LOCK_SH | LOCK_NB`), the closing one to have it alone.
                let (opening, closing): (Vec<_>, Vec<_>) =
                    trace.lines.iter().partition(|line| line.text.ends_with("5)"));
                for line in &opening {
                    // A thread that opens events tries ten times at once, and does not wait.
                    let tries = opening.iter().filter(|other| other.pid == line.pid).count();
                    ensure!(tries <= 10, "{text:?} to {file}: {tries} tries of {}", line.comm);
                    most = tries.max(most);
                }
                // The thread that closes events tries for two seconds, with pauses. A change that waits for it has all
                // these tries.
                ensure!(closing.len() < 400, "{text:?} to {file}: waits for the thread that closes events");
                waits = closing.len().max(waits);
            }
        }
        println!(
            "{} changes, at most {most} tries of a thread, {waits} of the closing one",
            2 * changes.len()
        );
        mounted.stop()?.success().map(drop)
    });
}

/// Many polls of one instance's files cost one check of its rings, and the daemon then serves other requests.
#[test]
fn many_polls_block_no_client() {
    host::as_root(|| {
        let mounted = Mounted::start("many-polls")?;
        let dir = mounted.dir().to_owned();
        set(&dir, "set_event_pid", &std::process::id().to_string())?;
        set(&dir, "events/syscalls/enable", "1")?;
        set(&dir, &format!("events/{}/enable", largest(&dir)?), "1")?;
        // The buffer never becomes full enough to end a poll.
        set(&dir, "buffer_percent", "100")?;
        let files: Vec<File> = (0..1000).map(|_| File::open(stream(&dir))).collect::<std::io::Result<_>>()?;
        let polls = Repeated::start("polls", move || {
            // Polls again before the daemon forgets the poll, which happens after a second.
            let waiter = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for file in &files {
                epoll::add(&waiter, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            }
            std::thread::sleep(Duration::from_millis(500));
            Ok(())
        });
        polls.pass(1)?;
        let read = small("read", &dir)?;
        read.pass(100)?;
        polls.pass(1)?;
        println!("{} reads beside {} times 1,000 polls", read.end()?, polls.end()?);
        Ok(())
    });
}

/// The daemon handles each client request as a separate step, and the uids take turns. Root's change therefore does
/// not wait for all clients' requests.
#[test]
fn a_change_does_not_wait_for_requests_of_other_clients() {
    host::as_root(|| {
        let mounted = Mounted::start("requests")?;
        let dir = mounted.dir().to_owned();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755))?;
        std::fs::set_permissions(dir.join("user_events_data"), std::fs::Permissions::from_mode(0o666))?;
        set(&dir, "dynamic_events", "u:asked u32 a")?;
        let path = dir.to_str().context("a path")?;
        let mut clients = Vec::new();
        for number in 0..16 {
            let mut command =
                host::binary_as(60_000 + number % 4, 60_000, "tracer-user-attack", "TRACER_USER_ATTACK_BIN")?;
            // The clients send more requests than the daemon answers during the test.
            command.args(["flood", path, "100000000"]);
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            clients.push(Client(command.spawn()?));
        }
        await_true("all clients register events", || {
            let all = names(&dir.join("events/user_events"))?;
            Ok(all.iter().filter(|name| name.starts_with("flood_")).count() >= 100)
        })?;
        for round in 0..20 {
            let (dir, value) = (dir.clone(), if round % 2 == 0 { "1" } else { "0" });
            let change = within(soon(), move || set(&dir, "events/user_events/asked/enable", value));
            change.with_context(|| format!("change {round} waits"))??;
        }
        for client in &mut clients {
            ensure!(client.0.try_wait()?.is_none(), "a client ended");
        }
        drop(clients);
        mounted.stop()?.success().map(drop)
    });
}
