//! Remaining privileges of the `tracer` processes after their setup, read from `/proc/PID/status` of every thread:
//! few capabilities, `no_new_privs`, and a seccomp filter. Programs that they start for the user keep the caller's
//! privileges.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, set, text};
use tracer_tests::tracer::Tracer;

/// Capabilities by their names in capabilities(7), with their bits (`include/uapi/linux/capability.h`).
const CAPABILITIES: [(&str, u64); 7] = [
    ("CAP_DAC_OVERRIDE", 1 << 1),
    ("CAP_DAC_READ_SEARCH", 1 << 2),
    ("CAP_SYS_PTRACE", 1 << 19),
    ("CAP_SYS_ADMIN", 1 << 21),
    ("CAP_SYSLOG", 1 << 34),
    ("CAP_PERFMON", 1 << 38),
    ("CAP_BPF", 1 << 39),
];

/// The processes of `SECURITY.md`: the name in `tracer doctor`, and the capabilities that each keeps.
const KEPT: [(&str, &[&str]); 8] = [
    ("mount", &["CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN", "CAP_SYSLOG", "CAP_SYS_PTRACE"]),
    ("closer", &[]),
    ("opener", &["CAP_DAC_READ_SEARCH"]),
    ("client memory", &["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"]),
    ("state file", &[]),
    ("record", &["CAP_BPF", "CAP_SYSLOG"]),
    ("hist", &["CAP_BPF", "CAP_SYSLOG"]),
    ("list", &[]),
];

/// The daemon's helpers: process name, name in `tracer doctor`, and the number at the start.
const HELPERS: [(&str, &str, usize); 4] = [
    ("tracer-closer", "closer", 1),
    ("tracer-memory", "client memory", 3),
    ("tracer-opener", "opener", 3),
    ("tracer-state", "state file", 2),
];

/// The bits of the named capabilities.
fn mask<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<u64> {
    names.into_iter().try_fold(0, |all, name| {
        let (_, bit) = CAPABILITIES.iter().find(|(other, _)| *other == name).context(name.to_owned())?;
        Ok(all | bit)
    })
}

/// The capability bits that a process of this role keeps.
fn mask_of(role: &str) -> Result<u64> {
    let (_, names) = KEPT.iter().find(|(name, _)| *name == role).context(role.to_owned())?;
    mask(names.iter().copied())
}

/// Time limit for previously started threads to end.
const SETTLING: Duration = Duration::from_secs(20);

/// The status of a thread.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    name: String,
    parent: u32,
    /// Inheritable, permitted, effective, bounding, ambient.
    sets: [u64; 5],
    no_new_privs: bool,
    filtered: bool,
}

impl Status {
    fn parse(text: &str) -> Result<Self> {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.map(str::trim).with_context(|| format!("no {key} in {text}"))
        };
        let mut sets = [0; 5];
        for (set, key) in sets.iter_mut().zip(["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]) {
            *set = u64::from_str_radix(value(key)?, 16)?;
        }
        Ok(Self {
            name: value("Name")?.to_owned(),
            parent: value("PPid")?.parse()?,
            sets,
            no_new_privs: value("NoNewPrivs")? == "1",
            filtered: value("Seccomp")? == "2",
        })
    }

    /// Whether the thread holds exactly these capabilities, can gain no others, and has a seccomp filter.
    fn is_confined(&self, mask: u64) -> bool {
        self.sets == [0, mask, mask, mask, 0] && self.no_new_privs && self.filtered
    }
}

/// Checks that root has all capabilities that any process keeps. Without one of them the masks would differ.
fn all_held() -> Result<()> {
    let own = Status::parse(&fs::read_to_string("/proc/self/status")?)?;
    let needed = mask(CAPABILITIES.iter().map(|(name, _)| *name))?;
    let [_, permitted, effective, bounding, _] = own.sets;
    ensure!(permitted & effective & bounding & needed == needed, "root lacks capabilities here: {own:#x?}");
    Ok(())
}

/// The threads of a process.
fn threads(pid: u32) -> Result<Vec<Status>> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid}"))? {
        // A thread may end during the loop.
        if let Ok(status) = fs::read_to_string(task?.path().join("status")) {
            all.push(Status::parse(&status)?);
        }
    }
    ensure!(!all.is_empty(), "process {pid} has no threads");
    Ok(all)
}

/// The running child processes of a process.
fn children(pid: u32) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(other) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Ok(status) = fs::read_to_string(format!("/proc/{other}/status"))
            && Status::parse(&status).is_ok_and(|status| status.parent == pid)
        {
            all.push(other);
        }
    }
    Ok(all)
}

/// Waits until every thread is confined to the role's capabilities. Older threads may take a moment to end, and a new
/// process a moment to confine itself.
fn confined(pid: u32, role: &str) -> Result<()> {
    let mask = mask_of(role)?;
    let start = Instant::now();
    loop {
        let threads = threads(pid)?;
        if threads.iter().all(|status| status.is_confined(mask)) {
            return Ok(());
        }
        let limit = host::patience(SETTLING);
        ensure!(start.elapsed() < limit, "process {pid}, {role}, wants {mask:#x}: {threads:#x?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks the daemon and all its helpers: none is missing and none is unknown.
fn all_confined(mounted: &Mounted) -> Result<()> {
    confined(mounted.pid(), "mount")?;
    let mut names = BTreeMap::<String, usize>::new();
    for helper in children(mounted.pid())? {
        let name = threads(helper)?.swap_remove(0).name;
        let known = HELPERS.iter().find(|(other, ..)| *other == name);
        let (_, role, _) = known.with_context(|| format!("an unknown process {name}"))?;
        confined(helper, role).with_context(|| name.clone())?;
        *names.entry(name).or_default() += 1;
    }
    let expected = HELPERS.map(|(name, _, count)| (name.to_owned(), count));
    ensure!(names == BTreeMap::from(expected), "processes of the daemon: {names:?}");
    Ok(())
}

#[test]
fn a_daemon_and_its_processes_keep_few_privileges() {
    if !host::root_or_skip() {
        return;
    }
    let test = || -> Result<()> {
        all_held()?;
        let mounted = Mounted::start("privileges")?;
        all_confined(&mounted)?;
        // Few and many enabled events add threads and descriptors; only this thread is traced.
        let dir = mounted.instance("kept")?;
        set(&dir, "set_event_pid", &std::process::id().to_string())?;
        set(&dir, "events/sched/sched_process_exit/enable", "1")?;
        all_confined(&mounted)?;
        set(&dir, "events/sched/enable", "1")?;
        set(&dir, "events/kmem/enable", "1")?;
        set(&dir, "events/block/enable", "1")?;
        set(&dir, "events/ext4/enable", "1")?;
        all_confined(&mounted)?;
        set(&dir, "trace_marker", "a mark")?;
        ensure!(text(&dir, "trace")?.contains("a mark"));
        // The end of the daemon needs no dropped privilege: the mount is removed and the helpers end.
        let (pid, at) = (mounted.pid(), mounted.dir().to_owned());
        let helpers = children(pid)?;
        let outcome = mounted.stop()?;
        ensure!(outcome.status.success() && outcome.stderr.is_empty(), "{outcome:?}");
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        ensure!(!mounts.contains(at.to_str().context("a path")?), "{} is mounted still", at.display());
        let start = Instant::now();
        while helpers.iter().any(|helper| fs::exists(format!("/proc/{helper}/exe")).unwrap_or(false)) {
            ensure!(start.elapsed() < SETTLING, "{helpers:?} outlive their daemon");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    };
    test().unwrap();
}

#[test]
fn listing_keeps_no_privileges() {
    if !host::root_or_skip() {
        return;
    }
    let test = || -> Result<()> {
        all_held()?;
        // The formats of all events exceed a pipe's capacity, so the confined process waits for its reader.
        let mut child = Command::new(host::binary("tracer", "TRACER_BIN")?)
            .args(["list", "--formats", "*"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let confined = confined(child.id(), "list");
        let mut text = String::new();
        let read = child.stdout.take().context("a pipe")?.read_to_string(&mut text);
        let output = child.wait_with_output()?;
        confined?;
        read?;
        ensure!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        ensure!(text.len() > 1 << 17 && text.contains("name: sched_switch\n"), "{} bytes", text.len());
        Ok(())
    };
    test().unwrap();
}

/// Checks the list; the other tests check that the processes hold exactly these capabilities.
#[test]
fn doctor_lists_the_privileges_of_each_process() {
    let test = || -> Result<()> {
        let mut listed = BTreeMap::new();
        for line in Tracer::new(["doctor", "--json"])?.run()?.success()?.json()? {
            if line["group"] != "kept" {
                continue;
            }
            let names = line["capabilities"].as_array().context("a list")?.iter();
            let names: Vec<&str> = names.filter_map(|kept| kept["name"].as_str()).collect();
            let process = line["process"].as_str().context("a process")?.to_owned();
            ensure!(listed.insert(process, mask(names)?).is_none(), "listed twice: {line}");
        }
        let expected = KEPT.iter().map(|(role, _)| Ok(((*role).to_owned(), mask_of(role)?)));
        let expected: BTreeMap<String, u64> = expected.collect::<Result<_>>()?;
        ensure!(listed == expected, "listed {listed:#x?}, expected {expected:#x?}");
        Ok(())
    };
    test().unwrap();
}

/// A command that prints the relevant lines of its own status.
const OWN_STATUS: [&str; 3] = ["grep", "^CapEff:\\|^CapBnd:\\|^NoNewPrivs:\\|^Seccomp:", "/proc/self/status"];

/// The same lines for a child of this process.
fn own_status() -> Result<String> {
    let output = std::process::Command::new(OWN_STATUS[0]).args(&OWN_STATUS[1..]).output()?;
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn recordings_and_histograms_keep_few_privileges_once_attached() {
    if !host::root_or_skip() {
        return;
    }
    let test = || -> Result<()> {
        all_held()?;
        let own = std::process::id().to_string();
        let few = ["record", "--pid", &own, "-e", "sched:sched_process_exit", "-o", "/dev/null"];
        let many =
            ["record", "--pid", &own, "-e", "sched:*", "-e", "kmem:*", "-e", "block:*", "-o", "/dev/null"];
        let filter = format!("common_pid=={own}");
        let hist = ["hist", "sched:sched_process_exit", "keys=common_pid", "if", &filter];
        let probe = ["hist", "--own", "sched:sched_process_exit", "keys=common_pid", "if", &filter];
        for command in [&few[..], &many, &hist, &probe] {
            let running = Tracer::new(command)?.start()?;
            confined(running.pid(), command[0]).with_context(|| format!("{command:?}"))?;
            for helper in children(running.pid())? {
                confined(helper, "closer").with_context(|| format!("a process of {command:?}"))?;
            }
            let outcome = running.stop()?;
            ensure!(outcome.status.success(), "{command:?}: {}", outcome.stderr);
            ensure!(!outcome.stderr.contains("WARN"), "{command:?}: {}", outcome.stderr);
        }
        Ok(())
    };
    test().unwrap();
}

#[test]
fn commands_keep_the_callers_privileges() {
    if !host::root_or_skip() {
        return;
    }
    let test = || -> Result<()> {
        let own = own_status()?;
        for words in [&["record", "-e", "sched:sched_process_exit", "--"][..], &["exec", "--"]] {
            let outcome = Tracer::new(words)?.args(OWN_STATUS).run()?;
            let shown = String::from_utf8(outcome.stdout)?;
            ensure!(shown.contains(&own), "{words:?}: {shown}, here {own}: {}", outcome.stderr);
        }
        Ok(())
    };
    test().unwrap();
}

#[test]
fn the_service_manager_receives_heartbeats() {
    if !host::root_or_skip() {
        return;
    }
    let test = || -> Result<()> {
        let dir = std::env::temp_dir().join(format!("tracer-watchdog-{}", std::process::id()));
        fs::create_dir(&dir)?;
        let (socket, at) = (dir.join("notify"), dir.join("mirror"));
        let manager = UnixDatagram::bind(&socket)?;
        manager.set_read_timeout(Some(SETTLING))?;
        let running = Tracer::new(["mount".as_ref(), at.as_os_str()])?
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", "400000")
            .start()?;
        let hear = || -> Result<String> {
            let mut said = [0; 64];
            let length = manager.recv(&mut said).context("the daemon says nothing")?;
            Ok(String::from_utf8_lossy(&said[..length]).into_owned())
        };
        ensure!(hear()? == "READY=1");
        confined(running.pid(), "mount")?;
        // Messages that arrived meanwhile would shorten the time of the next ones.
        manager.set_nonblocking(true)?;
        while manager.recv(&mut [0; 64]).is_ok() {}
        manager.set_nonblocking(false)?;
        let start = Instant::now();
        for _ in 0..6 {
            ensure!(hear()? == "WATCHDOG=1");
        }
        // The first message may arrive at once, each further one arrives after half of the watchdog interval.
        let took = start.elapsed();
        ensure!(took > Duration::from_millis(800), "six beats in {took:?}");
        let outcome = running.stop()?;
        ensure!(outcome.status.success() && outcome.stderr.is_empty(), "{outcome:?}");
        Ok(fs::remove_dir_all(dir)?)
    };
    test().unwrap();
}
