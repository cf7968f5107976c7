//! Histograms in the kernel: exact counts of this test's own calls, also on several CPUs. Where the kernel has
//! histograms, the table equals its `hist` file for the same hits.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Barrier};

use rustix::process::{getppid, getsid};
use rustix::thread::gettid;
use tracer_tests::host::{self, Tracefs};
use tracer_tests::oracle::table::cpu_once;
use tracer_user::api::{HistError, Histograms};
use tracer_user::engine::facts::Facts;
use tracer_user::kernel;

/// System call number of getppid(2).
#[cfg(target_arch = "x86_64")]
const GETPPID: u32 = 110;
#[cfg(target_arch = "aarch64")]
const GETPPID: u32 = 173;

/// System call number of getsid(2).
#[cfg(target_arch = "x86_64")]
const GETSID: u32 = 124;
#[cfg(target_arch = "aarch64")]
const GETSID: u32 = 156;

/// Starts a histogram that counts hits of this process too.
fn try_start(
    event: &str,
    command: &str,
    perf_tracepoints_only: bool,
    facts: &Arc<Facts>,
) -> Result<Histograms, HistError> {
    Histograms::builder()
        .histogram(event, command)
        .own(true)
        .perf_tracepoints_only(perf_tracepoints_only)
        .start_with(Arc::clone(facts))
}

fn start(event: &str, command: &str, perf_tracepoints_only: bool, facts: &Arc<Facts>) -> Histograms {
    try_start(event, command, perf_tracepoints_only, facts)
        .unwrap_or_else(|error| panic!("{event} {command}: {error}"))
}

fn text(histogram: &mut Histograms) -> String {
    String::from_utf8(histogram.text(false).unwrap()).unwrap()
}

/// The rows of a table.
fn rows(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with('{')).collect()
}

#[test]
fn every_hit_is_counted_once() {
    let _turn = crate::turn();
    if !host::root_or_skip() {
        return;
    }
    let _tracefs = Tracefs::find_or_mount().unwrap();
    let facts = Arc::new(Facts::running().unwrap());
    for tracepoint in [false, true] {
        let tid = gettid().as_raw_nonzero();
        let command = format!("keys=id:vals=id if common_pid == {tid} && id == {GETPPID}");
        let mut histogram = start("raw_syscalls:sys_enter", &command, tracepoint, &facts);
        for _ in 0..1234 {
            let _ = getppid();
        }
        let text = text(&mut histogram);
        let expected =
            format!("{{ id: {GETPPID:10} }} hitcount:       1234  id: {:10}", u64::from(GETPPID) * 1234);
        assert_eq!(rows(&text), [expected], "{:?}\n{text}", histogram.hooks().collect::<Vec<_>>());
        let json: serde_json::Value = serde_json::from_slice(&histogram.json(false).unwrap()).unwrap();
        let row = &json["rows"][0];
        assert_eq!((&row["key"]["id"], &row["hitcount"]), (&GETPPID.into(), &1234.into()), "{json}");
        assert_eq!((&json["event"], &json["dropped"]), (&"raw_syscalls:sys_enter".into(), &0.into()));
    }
}

/// Number of threads that count on all CPUs, and their name.
const THREADS: usize = 4;
const NAME: &str = "tracerhistcpu";

/// Threads on all CPUs hit shared keys and one key per thread.
#[test]
fn sums_are_exact_on_all_cpus() {
    let _turn = crate::turn();
    if !host::root_or_skip() {
        return;
    }
    // Ten million hits in total.
    let each = 10_000_000 / THREADS / host::part() as usize;
    let _tracefs = Tracefs::find_or_mount().unwrap();
    let facts = Arc::new(Facts::running().unwrap());
    // Only the hits of these threads: other processes make the same call.
    let of_us = format!("id == {GETPPID} && comm == \"{NAME}\"");

    let mut same = start("raw_syscalls:sys_enter", &format!("keys=id if {of_us}"), false, &facts);
    let mut own = start("raw_syscalls:sys_enter", &format!("keys=common_pid if {of_us}"), false, &facts);
    let barrier = Barrier::new(THREADS);
    let tids: Vec<i32> = std::thread::scope(|scope| {
        let one = || {
            barrier.wait();
            for _ in 0..each {
                let _ = getppid();
            }
            gettid().as_raw_nonzero().get()
        };
        let spawn = |_| std::thread::Builder::new().name(NAME.to_owned()).spawn_scoped(scope, one).unwrap();
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // The kernel counts the hits for which it ran no program: none before 7.0.
    let missed = [own.missed(), same.missed()].map(|missed| missed as usize);
    let may_lack = if kernel::version() < (7, 0) { [0; 2] } else { missed };
    let own = text(&mut own);
    assert_eq!(rows(&own).len(), THREADS);
    let mut lacking = 0;
    for tid in &tids {
        let row = format!("{{ common_pid: {tid:10} }} hitcount: ");
        let count = rows(&own).iter().find_map(|line| line.strip_prefix(&*row)?.trim().parse::<usize>().ok());
        let count = count.unwrap_or_else(|| panic!("{row}\n{own}"));
        lacking += each.checked_sub(count).unwrap_or_else(|| panic!("more than {each}: {own}"));
    }
    assert!(lacking <= may_lack[0], "{lacking} hits lack and {} were missed\n{own}", missed[0]);
    // A hit is dropped, and counted as such, while another CPU takes long to make the entry of its key, as if a
    // hypervisor stops that CPU then. No other thread has the keys above.
    let same = text(&mut same);
    let dropped = same.split_once("Dropped:").unwrap().1.trim().parse::<usize>().unwrap();
    let row = format!("{{ id: {GETPPID:10} }} hitcount: ");
    let count = rows(&same).iter().find_map(|line| line.strip_prefix(&*row)?.trim().parse::<usize>().ok());
    let both = count.unwrap_or_else(|| panic!("{row}\n{same}")) + dropped;
    let all = THREADS * each;
    assert!(rows(&same).len() == 1 && (all - may_lack[1]..=all).contains(&both), "{missed:?} missed\n{same}");
    println!("{all} hits on {} CPUs, {lacking} of them missed", facts.cpus());
}

/// A full table counts the hits that found no free entry.
#[test]
fn full_tables_count_drops() {
    let _turn = crate::turn();
    if !host::root_or_skip() {
        return;
    }
    let _tracefs = Tracefs::find_or_mount().unwrap();
    let facts = Arc::new(Facts::running().unwrap());
    let tid = gettid().as_raw_nonzero();
    let command = format!("keys=count:size=128 if common_pid == {tid} && count > 1000");
    let mut histogram = start("syscalls:sys_enter_write", &command, false, &facts);
    let null = fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    let bytes = vec![0; 2000];
    for length in 1001..1301 {
        rustix::io::write(&null, &bytes[..length]).unwrap();
    }
    let text = text(&mut histogram);
    assert!(text.ends_with("Totals:\n    Hits: 128\n    Entries: 128\n    Dropped: 172\n"), "{text}");
}

/// The kernel's own histogram, in an instance.
struct KernelHistogram {
    instance: PathBuf,
    event: PathBuf,
    command: String,
}

impl KernelHistogram {
    fn start(tracefs: &Path, event: &str, command: &str) -> Self {
        let instance = tracefs.join("instances/tracerhist2");
        let _ = fs::remove_dir(&instance);
        fs::create_dir(&instance).unwrap();
        let event = instance.join("events").join(event.replace(':', "/"));
        fs::write(event.join("trigger"), format!("hist:{command}")).unwrap();
        Self { instance, event, command: command.to_owned() }
    }

    fn text(&self) -> String {
        cpu_once(&fs::read_to_string(self.event.join("hist")).unwrap())
    }
}

impl Drop for KernelHistogram {
    fn drop(&mut self) {
        let _ = fs::write(self.event.join("trigger"), format!("!hist:{}", self.command));
        let _ = fs::remove_dir(&self.instance);
    }
}

/// The counted work: some system calls of this thread, and children.
fn workload(null: &fs::File) {
    let bytes = vec![0; 5000];
    for length in (0..3000).step_by(7) {
        rustix::io::write(null, &bytes[..length]).unwrap();
        let _ = getppid();
        if length % 2 == 0 {
            let _ = getsid(None);
        }
    }
    for name in ["true", "false"] {
        Command::new(name).status().unwrap();
    }
}

#[test]
fn tables_are_the_kernels() {
    let _turn = crate::turn();
    if !host::root_or_skip() {
        return;
    }
    let tracefs = Tracefs::find_or_mount().unwrap();
    if !tracefs.root().join("events/sched/sched_switch/hist").exists() {
        host::skip("own_hist", "this kernel has no histograms");
        return;
    }
    let facts = Arc::new(Facts::running().unwrap());
    let tid = gettid().as_raw_nonzero();
    let cases = [
        ("raw_syscalls:sys_enter", "keys=id:sort=id"),
        ("raw_syscalls:sys_enter", "keys=id.syscall:sort=id.descending"),
        ("raw_syscalls:sys_enter", "keys=id.hex,common_pid:sort=id"),
        ("raw_syscalls:sys_enter", "keys=common_pid.execname:vals=id"),
        ("raw_syscalls:sys_enter", "keys=id.buckets=10:vals=id:sort=id"),
        ("raw_syscalls:sys_enter", "keys=id.log2:vals=id.hex:sort=id"),
        ("raw_syscalls:sys_exit", "keys=ret.log2:sort=ret"),
        ("raw_syscalls:sys_exit", "keys=id:vals=ret:sort=id"),
        ("syscalls:sys_enter_write", "keys=count.log2:vals=count,fd:sort=count"),
        ("syscalls:sys_enter_write", "keys=count.buckets=100:vals=count:sort=count"),
        ("syscalls:sys_enter_write", "keys=count/7:vals=count"),
        ("syscalls:sys_enter_write", "keys=count/64,fd"),
        ("syscalls:sys_enter_write", "keys=count*3-count/2"),
        ("syscalls:sys_enter_write", "keys=-(count)"),
        ("syscalls:sys_enter_write", "keys=100000/count"),
        ("sched:sched_process_fork", "keys=parent_comm,child_pid:vals=parent_pid:sort=child_pid"),
        ("sched:sched_process_fork", "keys=common_cpu,parent_pid"),
        ("sched:sched_process_fork", "keys=comm_that_is_not_there"),
    ];
    let null = fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    let (mut compared, mut differences) = (0, Vec::new());
    for (event, command) in cases {
        // Only calls that the test itself does not make around the workload.
        let only = match event {
            "raw_syscalls:sys_enter" | "raw_syscalls:sys_exit" => {
                format!(" && (id == {GETPPID} || id == {GETSID})")
            }
            "syscalls:sys_enter_write" => format!(" && fd == {}", null.as_raw_fd()),
            _ => String::new(),
        };
        let command = format!("{command} if common_pid == {tid}{only}");
        for tracepoint in [false, true] {
            let Ok(mut ours) = try_start(event, &command, tracepoint, &facts) else {
                assert!(command.contains("not_there"), "{event} {command}");
                continue;
            };
            let theirs = KernelHistogram::start(tracefs.root(), event, &command);
            workload(&null);
            let (ours_text, theirs_text) = (text(&mut ours), theirs.text());
            drop(theirs);
            if sorted(&ours_text) != sorted(&theirs_text) {
                let hook = ours.hooks().collect::<Vec<_>>();
                differences.push(format!(
                    "{event} {command} {hook:?}\n--- ours\n{ours_text}\n--- theirs\n{theirs_text}"
                ));
            }
            compared += 1;
        }
    }
    assert!(
        differences.is_empty(),
        "{} of {compared}\n{}",
        differences.len(),
        differences[..differences.len().min(4)].join("\n")
    );
    println!("{compared} tables compared");
    assert!(compared >= 20);
}

/// The lines; rows with equal sort keys may have any order.
fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    if !text.contains(":sort=id") && !text.contains(":sort=count") {
        lines.sort_unstable();
    }
    lines
}
