//! Compares filters with the kernel's. The same filter is set in an instance of the kernel's tracefs and in `tracer
//! record` during one run of the workload. The resulting lines must be equal, and every hit must be counted.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use tracer_tests::compare::{Comparison, Missed, RUNS, compare, family};
use tracer_tests::host;
use tracer_tests::oracle::{Oracle, Trace};
use tracer_tests::tracer::{Running, Tracer};
use tracer_tests::workload::Job;

/// Events that the workload provokes, and filters over every kind of their fields. A pattern `*x` on a char array is
/// used only where the text fills the array: the kernel compares the array's last bytes, and after a shorter text
/// these are the previous content of its ring buffer.
const FILTERS: &[(&str, &[&str])] = &[
    (
        "syscalls:sys_enter_lseek",
        &[
            "offset == 0x1234",
            "offset > 255",
            "offset >= 0x8000000000000000",
            "whence == 2 || whence == 5",
            "offset & 0x81 && whence != 0",
            "!(offset < 256) && (whence == 0 || whence == 4294967295)",
            "fd == 0xffffffff",
            "COMM == \"bar\"",
            "COMM ~ \"*ba*\" && offset == 7",
            "comm ~ \"[a-b]*\"",
            "__syscall_nr > 0 && offset <= 010",
        ],
    ),
    ("syscalls:sys_exit_lseek", &["ret == -9", "ret < 0", "ret >= 0", "ret != -9", "ret == -0x9"]),
    (
        "syscalls:sys_enter_openat",
        &[
            "filename.ustring ~ \"*/bash\"",
            "filename.ustring ~ \"*tracer-workload\"",
            "filename.ustring == \"/proc/self/oom_score_adj\"",
            "filename.ustring ~ \"*a*\" && filename.ustring != \"nothing\"",
            "filename.ustring ~ \"*/x y ?\" || filename.ustring ~ \"*/[A-Z]PPER\"",
            "dfd == 0xffffffffffffff9c || flags & 0x80000",
        ],
    ),
    // `*x` and `*x*` match bytes after the NUL too, which the event leaves unset in `newcomm`. Globs with `?` stop there.
    (
        "task:task_rename",
        &[
            "newcomm == \"bash\"",
            "newcomm ~ \"ba*\"",
            "oldcomm ~ \"*a*\" && newcomm ~ \"?*workload\"",
            "newcomm != 'bash'",
            "newcomm ~ \"?[a-z]*\"",
            "newcomm ~ \"?*letters\" || newcomm == \"x y z\"",
            "oom_score_adj >= 0",
            "oom_score_adj < -5",
        ],
    ),
    (
        "raw_syscalls:sys_enter",
        &[
            "id == 8",
            "id > 300 && id != 302",
            "id & 1",
            "id <= 1 || id == 257",
            "!(id != 8)",
            "common_pid == 1",
        ],
    ),
    (
        "raw_syscalls:sys_exit",
        &["ret == -9", "ret < 0 && ret > -10", "ret > 0x7fffffff", "id == 8 && ret == -9"],
    ),
    (
        "sched:sched_switch",
        &[
            "prev_comm ~ \"tracer*\"",
            "prev_comm ~ \"*workload\"",
            "prev_state == 1",
            "prev_state != 1 || next_prio < 100",
            "next_pid == 0",
            "prev_prio < 121 && prev_comm == \"tracer-workload\"",
        ],
    ),
    (
        "sched:sched_process_exec",
        &["filename ~ \"/proc/*\"", "filename == \"/proc/self/exe\"", "pid == old_pid"],
    ),
    ("sched:sched_process_fork", &["child_comm ~ \"tracer*\"", "parent_comm == \"nobody\"", "child_pid > 1"]),
    ("sched:sched_waking", &["target_cpu == 0", "target_cpu >= 1", "CPU == 0", "target_cpu & CPUS{1}"]),
    (
        "signal:signal_generate",
        &[
            "sig == 10",
            "sig >= 12 && code <= 0",
            "comm ~ \"tracer*\" && sig != 15",
            "code == -1 || result == 0",
        ],
    ),
    (
        "kmem:kmalloc",
        &["bytes_req > 100 && bytes_req <= 1000", "bytes_alloc == 64", "node < 0", "gfp_flags & 0x40"],
    ),
    ("kmem:mm_page_alloc", &["order > 0", "order == 0 && migratetype == 1", "migratetype != 1"]),
    ("kmem:kfree", &["ptr == 0", "ptr != 0", "call_site > 0xffffffff81000000"]),
    (
        "net:netif_rx_entry",
        &[
            "name == \"lo\"",
            "name ~ \"e*\"",
            "len > 100 && len < 3000",
            "protocol == 0x800",
            "mac_header_valid",
            "nr_frags == 0",
        ],
    ),
    (
        "sock:inet_sock_set_state",
        &[
            "newstate == 7",
            "oldstate == 7 && newstate == 2",
            "family == 2",
            "sport > 1024",
            "dport == 0",
            "protocol == 6",
        ],
    ),
    (
        "exceptions:page_fault_user",
        &["error_code == 6", "error_code & 2", "address > 0x7f0000000000", "ip < 0x1000"],
    ),
    (
        "filelock:flock_lock_inode",
        &["type == 1", "type == 2 || ret != 0", "fl_end == 0x7fffffffffffffff", "fl_start == 0"],
    ),
    ("oom:oom_score_adj_update", &["oom_score_adj == 10", "oom_score_adj != 10 && comm ~ \"tracer*\""]),
    ("skb:kfree_skb", &["protocol == 2048", "reason > 2", "reason == 3"]),
    ("icmp:icmp_send", &["type == 3", "code == 3 && type == 3", "ulen > 0", "sport == 0 || dport == 0"]),
    ("timer:hrtimer_start", &["expires > 0", "softexpires != expires", "mode == 0 || mode == 1"]),
    ("ext4:ext4_da_write_begin", &["pos == 0", "len == 10000", "pos < 5000 || len == 13"]),
];

/// Number of instances, and of `tracer` processes, that run at once.
const AT_ONCE: usize = 6;

/// One filter for each of several events. One instance and one `tracer record` apply them together.
type Column = Vec<(String, String)>;

/// The table's columns, without the events and filters that this kernel does not support.
fn columns() -> Result<Vec<Column>> {
    let oracle = Oracle::create("columns")?;
    let known = oracle.tracefs().events()?;
    let mut columns: Vec<Column> = Vec::new();
    for (event, filters) in FILTERS {
        if !known.iter().any(|name| name == event) {
            println!("{event}: not on this kernel");
            continue;
        }
        let mut at = 0;
        for filter in *filters {
            if let Err(error) = oracle.filter(event, filter) {
                println!("{event} if {filter}: the kernel takes it not ({error})");
                continue;
            }
            if at == columns.len() {
                columns.push(Column::new());
            }
            columns[at].push(((*event).to_owned(), (*filter).to_owned()));
            at += 1;
        }
    }
    Ok(columns)
}

/// The results of runs, by event and filter.
#[derive(Default)]
struct Tally {
    compared: BTreeMap<(String, String), (Comparison, Missed)>,
    dropped: u64,
    wrong: Vec<String>,
}

impl Tally {
    /// The shares of lines that the runs so far do not show to be small enough.
    fn unknown(&self) -> Vec<String> {
        let of = |((event, filter), (result, missed)): (&(String, String), &(Comparison, Missed))| {
            let unknown = result.unknown(missed);
            (!unknown.is_empty()).then(|| format!("{event} if {filter}: {}", unknown.join("; ")))
        };
        self.compared.iter().filter_map(of).collect()
    }

    /// The number of equal lines.
    fn matched(&self) -> u64 {
        self.compared.values().map(|(result, _)| result.lines()).sum()
    }
}

/// Compares the lines of one column, and adds the results.
fn check(column: &Column, theirs: &Trace, tracer: Running, pid: u32, tally: &mut Tally) -> Result<()> {
    let outcome = tracer.stop()?.success()?;
    let ours = outcome.trace();
    let counts = outcome.counts();
    let pids = family(pid, theirs);
    for (event, filter) in column {
        let name = event.split_once(':').map_or(event.as_str(), |(_, name)| name);
        let only = |trace: &Trace| {
            let lines = trace.lines.iter().filter(|line| line.event() == name).cloned().collect();
            Trace { lines, ..Trace::default() }
        };
        let (kernel, own) = (only(theirs), only(&ours));
        let result = compare(&kernel, &own, &pids);
        let Some(count) = counts.get(event) else {
            tally.wrong.push(format!("{event} if {filter}: no counts: {}", outcome.stderr));
            continue;
        };
        let missed = Missed::shared(count.missed);
        if !result.accounted_for(&missed) {
            tally.wrong.push(format!("{event} if {filter}: {} hits missed: {result}", count.missed));
        }
        let (all, all_missed) = tally.compared.entry((event.clone(), filter.clone())).or_default();
        all.add(result);
        all_missed.add(&missed);
        tally.dropped += count.filtered;
        if !count.add_up() || count.dropped != 0 || count.recorded != own.lines.len() as u64 {
            tally.wrong.push(format!("{event} if {filter}: {count:?}, {} lines", own.lines.len()));
        }
    }
    Ok(())
}

/// Runs the workload once under the filters of these columns.
fn run(batch: &[Column], tally: &mut Tally) -> Result<()> {
    let job = Job::start(&["all"], 1)?;
    let pid = job.pid();
    let mut sides = Vec::new();
    for column in batch {
        let oracle = Oracle::create("filters")?;
        oracle.set("buffer_size_kb", "4096")?;
        oracle.pids(&[pid], true)?;
        let mut record = Tracer::record()?.args(["--pid", &pid.to_string()]);
        for (event, filter) in column {
            oracle.filter(event, filter)?;
            oracle.enable(event, true)?;
            record = record.event(event, Some(filter));
        }
        // The trace's forks separate children from other processes.
        if !column.iter().any(|(event, _)| event == "sched:sched_process_fork") {
            oracle.enable("sched:sched_process_fork", true)?;
        }
        sides.push((column, oracle, record.start()?));
    }
    for (_, oracle, _) in &sides {
        oracle.tracing(true)?;
    }
    job.go()?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    for (column, oracle, tracer) in sides {
        oracle.tracing(false)?;
        ensure!(oracle.lost()? == 0, "the kernel lost hits");
        check(column, &oracle.trace()?, tracer, pid, tally)?;
    }
    Ok(())
}

#[test]
fn filters_match_the_hits_that_the_kernels_match() {
    if !host::root_or_skip() {
        return;
    }
    let (mut filters, mut matched, mut dropped, mut wrong) = (0, 0, 0, Vec::new());
    for batch in columns().unwrap_or_else(|error| panic!("{error:#}")).chunks(AT_ONCE) {
        let mut tally = Tally::default();
        for runs in 1.. {
            run(batch, &mut tally).unwrap_or_else(|error| panic!("{error:#}"));
            let unknown = tally.unknown();
            if unknown.is_empty() || !tally.wrong.is_empty() {
                break;
            }
            assert!(runs < RUNS, "not known after {runs} runs:\n{}", unknown.join("\n"));
            println!("after {runs} runs: {}", unknown.join("; "));
        }
        filters += tally.compared.len();
        matched += tally.matched();
        dropped += tally.dropped;
        wrong.extend(tally.wrong);
    }
    println!("{filters} filters: {matched} matching hits equal to the kernel's, {dropped} hits dropped");
    assert!(wrong.is_empty(), "{} filters go wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(filters >= 50, "only {filters} filters");
    assert!(matched > 0 && dropped > 0, "filters that match nothing or everything show nothing");
}
