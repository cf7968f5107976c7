//! All consumers of a tracepoint share one link: events of several instances, histograms, triggers and event probes.
//! The tests add and remove consumers during hits, and each consumer must take each of its hits once.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::load::Load;
use tracer_tests::mirror::{Mounted, bodies, may_lack, set, stat, text, write};
use tracer_tests::oracle::Oracle;
use tracer_tests::workload::getpgid;

use crate::hooks::{descriptors, settled};

#[test]
fn all_consumers_of_a_tracepoint_share_a_link_and_each_takes_its_own_hits() {
    host::as_root(|| {
        let event = "events/sched/sched_process_exec";
        let mounted = Mounted::start("chain")?;
        let top = mounted.dir();
        // Other tests execute programs too, so this program has its own name.
        let program = std::env::temp_dir().join("chainconsumer");
        std::fs::copy("/bin/true", &program)?;
        let only = "comm == \"chainconsumer\"";
        let execs = || -> Result<()> {
            for _ in 0..20 {
                std::process::Command::new(&program).status().context("true")?;
            }
            Ok(())
        };
        let recorded = |dir: &Path| Ok::<_, anyhow::Error>(bodies(&text(dir, "trace")?).len());
        // Enables the event for the first consumer, which drops all hits. The mirror verifies the event's plan with
        // it.
        set(top, &format!("{event}/filter"), "common_pid == 0")?;
        set(top, &format!("{event}/enable"), "1")?;
        let links = settled(mounted.pid(), "bpf_link");
        let others = [mounted.instance("one")?, mounted.instance("two")?];
        for other in &others {
            set(other, &format!("{event}/filter"), only)?;
            set(other, &format!("{event}/enable"), "1")?;
        }
        let hist = format!("hist:keys=common_pid if {only}");
        set(top, &format!("{event}/trigger"), &hist)?;
        ensure!(settled(mounted.pid(), "bpf_link") == links, "more links for more consumers");
        execs()?;
        let counts = [recorded(top)?, recorded(&others[0])?, recorded(&others[1])?];
        ensure!(counts == [0, 20, 20], "{counts:?} records");
        let counted = text(top, &format!("{event}/hist"))?;
        ensure!(counted.contains("Hits: 20\n"), "{counted}");
        // Removes one consumer and changes another.
        set(&others[0], &format!("{event}/enable"), "0")?;
        set(top, &format!("{event}/filter"), only)?;
        execs()?;
        let counts = [recorded(top)?, recorded(&others[0])?, recorded(&others[1])?];
        ensure!(counts == [20, 20, 40], "{counts:?} records after one left");
        // The link closes after the last consumer is removed.
        for dir in [top, &others[1]] {
            set(dir, &format!("{event}/enable"), "0")?;
        }
        set(top, &format!("{event}/trigger"), &format!("!{hist}"))?;
        let start = Instant::now();
        while descriptors(mounted.pid(), "bpf_link") >= links {
            ensure!(start.elapsed() < Duration::from_secs(30), "the link stays");
            std::thread::sleep(Duration::from_millis(100));
        }
        set(&others[0], &format!("{event}/enable"), "1")?;
        execs()?;
        ensure!(recorded(&others[0])? == 40, "the new link has no hits");
        mounted.stop()?;
        std::fs::remove_file(&program)?;
        Ok(())
    });
}

/// Writes a file without truncating it. Truncating `trigger` removes the triggers.
pub(crate) fn append(dir: &Path, file: &str, text: &str) -> Result<()> {
    write(dir, file, text.as_bytes(), true)
        .map_err(std::io::Error::from_raw_os_error)
        .with_context(|| format!("{text:?} to {file}: {}", self::text(dir, "error_log").unwrap_or_default()))
}

/// Added to the number of a hit. No process has such an id.
pub(crate) const FIRST: i32 = 1_000_000_000;

/// The hits of a thread, each with a number.
struct Hits {
    load: Load,
    begun: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
}

impl Hits {
    /// Creates a thread that calls `hit` with 1, 2, 3 ... once it is started.
    fn new(hit: impl Fn(u64) + Send + 'static) -> Result<Self> {
        let [begun, done] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let (begin, end) = (Arc::clone(&begun), Arc::clone(&done));
        let pause = Duration::from_micros(if host::part() == 1 { 200 } else { 2000 });
        let load = Load::new(move || {
            let number = begin.fetch_add(1, Ordering::SeqCst) + 1;
            hit(number);
            end.store(number, Ordering::SeqCst);
            std::thread::sleep(pause);
        })?;
        Ok(Self { load, begun, done })
    }

    /// The number of the first hit that has not started.
    fn next(&self) -> u64 {
        self.begun.load(Ordering::SeqCst) + 1
    }

    /// The number of the last hit that has ended.
    fn last(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Waits for this many further hits.
    fn pass(&self, count: u64) -> Result<()> {
        let (start, end) = (Instant::now(), self.next() + count);
        while self.last() < end {
            ensure!(start.elapsed() < host::patience(Duration::from_secs(30)), "the load stands still");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// A consumer that the test enables and disables.
struct Consumer {
    name: &'static str,
    dir: PathBuf,
    kind: Kind,
    shown: Shown,
    /// While it is enabled: the first hit that it must take.
    since: Option<u64>,
    /// For each time that it was enabled: the first and the last hit that it must have taken.
    due: Vec<(u64, u64)>,
    /// Number of records by hit. For histograms the test reads it before it disables the consumer.
    seen: BTreeMap<u64, u64>,
}

enum Kind {
    /// Lines of the instance's `trace`, by the event's directory.
    Lines(String),
    /// A trigger of an event that adds a stack trace after each line.
    Stacks(String, String),
    /// A histogram by number: the event's directory, and the trigger.
    Hist(String, String),
}

/// The form of a hit's number in a line.
#[derive(Clone, Copy)]
struct Shown {
    /// The text before the number.
    before: &'static str,
    radix: u32,
    /// The number that the line shows for hit 0.
    zero: u64,
}

impl Shown {
    fn number(self, line: &str) -> Option<u64> {
        let rest = line.split_once(self.before)?.1.trim_start();
        // Newer kernels print the prefix.
        let rest = rest.strip_prefix("0x").unwrap_or(rest);
        let end = rest.find(|character: char| !character.is_digit(self.radix)).unwrap_or(rest.len());
        u64::from_str_radix(rest.get(..end)?, self.radix).ok()?.checked_sub(self.zero)
    }
}

impl Consumer {
    fn new(name: &'static str, dir: &Path, kind: Kind, shown: Shown) -> Self {
        Self { name, dir: dir.to_owned(), kind, shown, since: None, due: Vec::new(), seen: BTreeMap::new() }
    }

    fn toggle(&mut self, hits: &Hits) -> Result<()> {
        let (file, on, off) = match &self.kind {
            Kind::Lines(event) => (format!("{event}/enable"), "1".to_owned(), "0".to_owned()),
            Kind::Stacks(event, trigger) | Kind::Hist(event, trigger) => {
                (format!("{event}/trigger"), trigger.clone(), format!("!{trigger}"))
            }
        };
        match self.since.take() {
            None => {
                append(&self.dir, &file, &on)?;
                self.since = Some(hits.next());
            }
            Some(since) => {
                self.due.push((since, hits.last()));
                if let Kind::Hist(event, _) = &self.kind {
                    for line in text(&self.dir, &format!("{event}/hist"))?.lines() {
                        let Some(number) = self.shown.number(line) else { continue };
                        let count =
                            line.split_once("hitcount:").context("no count")?.1.trim().parse::<u64>()?;
                        *self.seen.entry(number).or_default() += count;
                    }
                }
                append(&self.dir, &file, &off)?;
            }
        }
        Ok(())
    }

    /// Checks that the consumer took each due hit once that was not counted as missed, and no hit twice. Returns the number of due hits.
    fn check(&mut self) -> Result<usize> {
        if !matches!(self.kind, Kind::Hist(..)) {
            let is_of_stacks = matches!(self.kind, Kind::Stacks(..));
            let mut last = None;
            for line in text(&self.dir, "trace")?.lines() {
                let number = self.shown.number(line);
                let counted =
                    if is_of_stacks { last.filter(|_| line.contains("<stack trace>")) } else { number };
                if let Some(number) = counted {
                    *self.seen.entry(number).or_default() += 1;
                }
                last = number.or(last);
            }
        }
        let name = self.name;
        let twice: Vec<_> = self.seen.iter().filter(|(_, count)| **count != 1).take(5).collect();
        ensure!(twice.is_empty(), "{name}: taken more than once: {twice:?}");
        let mut due = 0;
        let mut may_lack = may_lack(&self.dir)?;
        for (first, last) in &self.due {
            let missing: Vec<u64> = (*first..=*last).filter(|hit| !self.seen.contains_key(hit)).collect();
            let (lacking, from, to) = (missing.len(), missing.first(), missing.last());
            let left = may_lack.checked_sub(lacking as u64);
            may_lack = left.with_context(|| {
                format!("{name}: on from {first} to {last}, {lacking} missing: {from:?} to {to:?}")
            })?;
            due += usize::try_from((last + 1).saturating_sub(*first))?;
        }
        Ok(due)
    }
}

fn decimal(before: &'static str) -> Shown {
    Shown { before, radix: 10, zero: 0 }
}

/// Enables and disables consumers in varying orders during hits. After each step it calls `refilter`, which sets
/// another filter that accepts the same hits.
fn play(hits: Hits, mut consumers: Vec<Consumer>, refilter: impl Fn(usize) -> Result<()>) -> Result<()> {
    let rounds = if host::part() == 1 { 12 } else { 3 };
    hits.load.go()?;
    hits.pass(5)?;
    let count = consumers.len();
    // Steps that are coprime to the number of consumers, so that each order reaches every consumer.
    let coprime: Vec<usize> = (1..count)
        .filter(|step| !(2..=*step).any(|d| step.is_multiple_of(d) && count.is_multiple_of(d)))
        .collect();
    for round in 0..rounds {
        let (on, off) = (coprime[round % coprime.len()], coprime[(round / 2 + 1) % coprime.len()]);
        for (turn, step) in [on, off].into_iter().enumerate() {
            for index in 0..count {
                let at = (round + turn + index * step) % count;
                consumers[at].toggle(&hits)?;
                refilter(round + index)?;
                hits.pass(10)?;
                // Removes some consumers while others are being added.
                if turn == 0 && index % 3 == 2 {
                    consumers[at].toggle(&hits)?;
                    hits.pass(5)?;
                    consumers[at].toggle(&hits)?;
                }
            }
        }
    }
    for consumer in consumers.iter_mut().filter(|consumer| consumer.since.is_some()) {
        consumer.toggle(&hits)?;
    }
    let all = hits.load.stop()?;
    for dir in consumers.iter().map(|consumer| &consumer.dir).collect::<BTreeSet<_>>() {
        ensure!(stat(dir, "overrun")? + stat(dir, "dropped events")? == 0, "hits were lost");
    }
    for consumer in &mut consumers {
        let due = consumer.check()?;
        println!("{}: {due} of {all} hits were due, {} were taken", consumer.name, consumer.seen.len());
        ensure!(due > 20 * rounds, "{}: only {due} hits were due", consumer.name);
    }
    Ok(())
}

#[test]
fn each_consumer_of_a_tracepoint_takes_each_hit_once_while_others_come_and_go() {
    host::as_root(|| {
        let mounted = Mounted::start("orders")?;
        let top = mounted.dir().to_owned();
        let (one, two) = (mounted.instance("one")?, mounted.instance("two")?);
        let event = "events/task/task_rename";
        let hits = Hits::new(|number| {
            let name = CString::new(format!("ch{number}")).unwrap_or_default();
            rustix::thread::set_name(&name).unwrap();
        })?;
        let only = format!("pid == {}", hits.load.pid());
        set(
            &top,
            "dynamic_events",
            &format!("e:chains/renamed task.task_rename to=$newcomm:string if {only}"),
        )?;
        for dir in [&top, &one, &two] {
            set(dir, "buffer_size_kb", "32768")?;
            set(dir, &format!("{event}/filter"), &only)?;
        }
        let lines = || Kind::Lines(event.to_owned());
        let hist =
            |size: u32| Kind::Hist(event.to_owned(), format!("hist:keys=newcomm:size={size} if {only}"));
        let (line, row) = (decimal(" newcomm=ch"), decimal("newcomm: ch"));
        let probe = Kind::Lines("events/chains/renamed".to_owned());
        let consumers = vec![
            Consumer::new("the event in the first instance", &top, lines(), line),
            Consumer::new("the event in the second instance", &one, lines(), line),
            Consumer::new("the event in the third instance", &two, lines(), line),
            Consumer::new("a histogram in the first instance", &top, hist(32768), row),
            Consumer::new("a histogram in the second instance", &one, hist(16384), row),
            Consumer::new("an event probe", &two, probe, decimal(" to=\"ch")),
        ];
        play(hits, consumers, |step| {
            let filter = if step % 2 == 0 { format!("{only} && newcomm != \"none\"") } else { only.clone() };
            set(&one, &format!("{event}/filter"), &filter)
        })
    });
}

#[test]
fn a_trigger_acts_once_at_each_hit_while_other_consumers_come_and_go() {
    host::as_root(|| {
        let mounted = Mounted::start("stacks")?;
        let top = mounted.dir().to_owned();
        let (one, two) = (mounted.instance("one")?, mounted.instance("two")?);
        let event = "events/task/task_rename";
        let hits = Hits::new(|number| {
            let name = CString::new(format!("ch{number}")).unwrap_or_default();
            rustix::thread::set_name(&name).unwrap();
        })?;
        let only = format!("pid == {}", hits.load.pid());
        for dir in [&top, &one, &two] {
            set(dir, "buffer_size_kb", "32768")?;
            set(dir, &format!("{event}/filter"), &only)?;
        }
        // A stack trace belongs to the line before it.
        set(&one, &format!("{event}/enable"), "1")?;
        let stacks = Kind::Stacks(event.to_owned(), format!("stacktrace if {only}"));
        let (lines, line) = (|| Kind::Lines(event.to_owned()), decimal(" newcomm=ch"));
        let consumers = vec![
            Consumer::new("a trigger in the second instance", &one, stacks, line),
            Consumer::new("the event in the first instance", &top, lines(), line),
            Consumer::new("the event in the third instance", &two, lines(), line),
        ];
        play(hits, consumers, |step| {
            let filter = if step % 2 == 0 { format!("{only} && newcomm != \"none\"") } else { only.clone() };
            set(&top, &format!("{event}/filter"), &filter)
        })
    });
}

#[test]
fn events_and_histograms_on_system_calls_share_a_link() {
    host::as_root(|| {
        let mounted = Mounted::start("sharedcalls")?;
        let (top, one) = (mounted.dir(), mounted.instance("one")?);
        let event = "events/syscalls/sys_enter_getpgid";
        let only = format!("common_pid == {}", rustix::thread::gettid().as_raw_nonzero());
        set(top, &format!("{event}/filter"), "common_pid == 0")?;
        set(top, &format!("{event}/enable"), "1")?;
        let links = settled(mounted.pid(), "bpf_link");
        for dir in [top, &one] {
            for keys in ["pid", "common_pid,pid"] {
                append(dir, &format!("{event}/trigger"), &format!("hist:keys={keys} if {only}"))?;
            }
        }
        ensure!(settled(mounted.pid(), "bpf_link") == links, "more links for histograms on system calls");
        for _ in 0..20 {
            getpgid(FIRST);
        }
        for dir in [top, &one] {
            let counted = text(dir, &format!("{event}/hist"))?;
            ensure!(counted.matches("Hits: 20\n").count() == 2, "{counted}");
        }
        // A stack has a known number of frames of programs only behind a link of its own.
        append(&one, &format!("{event}/trigger"), &format!("hist:keys=common_stacktrace if {only}"))?;
        ensure!(settled(mounted.pid(), "bpf_link") == links + 1, "no link for stacks");
        mounted.stop().map(drop)
    });
}

#[test]
fn each_consumer_of_system_calls_takes_each_call_once_while_others_come_and_go() {
    host::as_root(|| {
        let mounted = Mounted::start("calls")?;
        let top = mounted.dir().to_owned();
        let (one, two) = (mounted.instance("one")?, mounted.instance("two")?);
        let hits = Hits::new(|number| {
            getpgid(FIRST + i32::try_from(number).unwrap_or(0));
        })?;
        let pid = hits.load.pid().to_string();
        for dir in [&top, &one, &two] {
            set(dir, "buffer_size_kb", "32768")?;
            set(dir, "set_event_pid", &pid)?;
        }
        let [call, raw] = ["events/syscalls/sys_enter_getpgid", "events/raw_syscalls/sys_enter"];
        for dir in [&top, &one] {
            set(dir, &format!("{raw}/filter"), &format!("id == {}", libc::SYS_getpgid))?;
        }
        let zero = u64::from(FIRST.cast_unsigned());
        let shown = |before, radix| Shown { before, radix, zero };
        let called = || (Kind::Lines(call.to_owned()), shown(": sys_getpgid(pid: ", 16));
        let number = libc::SYS_getpgid;
        let entered: &'static str = Box::leak(format!(": NR {number} (").into_boxed_str());
        let entered = || (Kind::Lines(raw.to_owned()), shown(entered, 16));
        let hist = |keys: &str| Kind::Hist(call.to_owned(), format!("hist:keys={keys}:size=32768"));
        let of = |name, dir: &Path, (kind, shown)| Consumer::new(name, dir, kind, shown);
        let consumers = vec![
            of("the call in the first instance", &top, called()),
            of("the call in the second instance", &one, called()),
            of("the call in the third instance", &two, called()),
            of("all calls in the first instance", &top, entered()),
            of("all calls in the second instance", &one, entered()),
            of("a histogram in the second instance", &one, (hist("pid"), shown("{ pid: ", 10))),
            of("a histogram in the third instance", &two, (hist("pid"), shown("{ pid: ", 10))),
            // A dispatcher has one entry for each call.
            of(
                "another histogram in the third instance",
                &two,
                (hist("common_pid,pid"), shown(", pid: ", 10)),
            ),
        ];
        play(hits, consumers, |step| {
            let filter = if step % 2 == 0 { "pid > 0" } else { "0" };
            set(&one, &format!("{call}/filter"), filter)
        })
    });
}

/// Returns the orders of records in instance `two`. Instance `one` has a histogram that emits a synthetic event for
/// each hit. `two` enables its event before and after the histogram exists, and the histogram is also recreated.
fn orders(root: &Path, [one, two]: [&Path; 2]) -> Result<Vec<Vec<String>>> {
    let (event, made) = ("events/task/task_rename", "events/synthetic/chain_made");
    let tid = rustix::thread::gettid().as_raw_nonzero();
    let hist = format!("hist:keys=newcomm:n=pid:onmax($n).trace(chain_made,$n) if pid == {tid}");
    let (hist, trigger, enable) = (hist.as_str(), format!("{event}/trigger"), format!("{event}/enable"));
    append(root, "synthetic_events", "chain_made int n")?;
    set(two, &format!("{made}/enable"), "1")?;
    let removed = format!("!{hist}");
    let steps: [&[(&Path, &str, &str)]; 5] = [
        &[(two, &enable, "1"), (one, &trigger, hist)],
        // Disables and enables again: the second instance is now called last.
        &[(two, &enable, "0"), (two, &enable, "1")],
        &[(one, &trigger, &removed), (one, &trigger, hist)],
        // Another trigger of the second instance keeps its position.
        &[
            (two, &trigger, "stacktrace if pid == 0"),
            (two, &enable, "0"),
            (one, &trigger, &removed),
            (one, &trigger, hist),
            (two, &enable, "1"),
        ],
        &[(two, &trigger, "!stacktrace if pid == 0")],
    ];
    let mut orders = Vec::new();
    for (round, step) in steps.iter().enumerate() {
        for (dir, file, value) in *step {
            append(dir, file, value).with_context(|| format!("{value:?} to {file}"))?;
        }
        let before = std::fs::read_to_string("/proc/thread-self/comm")?;
        for (name, on) in [(format!("made{round}"), "1"), (before.trim_end().to_owned(), "0")] {
            set(two, "tracing_on", on)?;
            rustix::thread::set_name(&CString::new(name)?)?;
        }
        let lines = bodies(&text(two, "trace")?);
        let is_hit =
            |line: &&String| line.contains(&format!("made{round}")) || line.starts_with("chain_made");
        let names = lines.iter().filter(is_hit).filter_map(|line| line.split_once(':'));
        orders.push(names.map(|(name, _)| name.to_owned()).collect());
        set(two, "trace", "")?;
    }
    for (dir, file, value) in
        [(one, &*trigger, &*removed), (two, &enable, "0"), (two, &format!("{made}/enable"), "0")]
    {
        append(dir, file, value)?;
    }
    append(root, "synthetic_events", "!chain_made")?;
    Ok(orders)
}

#[test]
fn instances_are_called_in_the_order_in_which_they_began_to_use_an_event() {
    host::as_root(|| {
        let mounted = Mounted::start("begun")?;
        let (one, two) = (mounted.instance("one")?, mounted.instance("two")?);
        let ours = orders(mounted.dir(), [&one, &two])?;
        let [event, made] = ["task_rename", "chain_made"];
        let [after, before] = [vec![event, made], vec![made, event]];
        ensure!(ours == [&after, &before, &after, &after, &after].map(Vec::clone), "{ours:?}");
        Ok(())
    });
}

#[test]
fn instances_are_called_in_the_kernels_order() {
    host::as_root(|| {
        let (first, second) = (Oracle::create("begun")?, Oracle::create("begun")?);
        let root = first.tracefs().root();
        if !first.dir().join("events/task/task_rename/hist").exists()
            || !root.join("synthetic_events").exists()
        {
            host::skip("own_hist", "the kernel has no histograms");
            return Ok(());
        }
        let mounted = Mounted::start("begun")?;
        let (one, two) = (mounted.instance("one")?, mounted.instance("two")?);
        let theirs = orders(root, [first.dir(), second.dir()])?;
        let ours = orders(mounted.dir(), [&one, &two])?;
        ensure!(ours == theirs, "{ours:?}, the kernel {theirs:?}");
        Ok(())
    });
}

/// At a raw tracepoint a stack includes frames of BPF programs. The keys of a histogram must not depend on the other
/// consumers.
#[test]
fn a_histogram_by_stacks_has_the_same_stacks_among_other_consumers() {
    host::as_root(|| {
        let mounted = Mounted::start("stacks")?;
        let (top, event) = (mounted.dir(), "events/raw_syscalls/sys_enter");
        let only = format!(
            "id == {} && common_pid == {}",
            libc::SYS_getpgid,
            rustix::thread::gettid().as_raw_nonzero()
        );
        let others = [mounted.instance("one")?, mounted.instance("two")?];
        set(&others[0], &format!("{event}/filter"), &only)?;
        set(&others[0], &format!("{event}/enable"), "1")?;
        set(top, &format!("{event}/trigger"), &format!("hist:keys=common_stacktrace if {only}"))?;
        for other in [None, Some(&others[1])] {
            if let Some(other) = other {
                set(other, &format!("{event}/filter"), &only)?;
                set(other, &format!("{event}/enable"), "1")?;
                set(&others[0], &format!("{event}/enable"), "0")?;
            }
            for _ in 0..5 {
                getpgid(0);
            }
        }
        let shown = text(top, &format!("{event}/hist"))?;
        ensure!(
            shown.matches("} hitcount:").count() == 1 && shown.contains("} hitcount:         10\n"),
            "{shown}"
        );
        Ok(())
    });
}
