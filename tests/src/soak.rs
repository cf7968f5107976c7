//! Hours in short: an event at full rate on all CPUs, readers that come and go, a configuration that keeps changing, a
//! daemon that is killed and comes back. At the end of every round each hit must be in exactly one count.
//!
//! What changes never changes what is to be recorded: filters are replaced by others that mean the same, so that the
//! numbers are known. The load calls getpgid(2) with 0, which passes, and with a number that
//! no process has, which the filters drop.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::filters::Rng;
use crate::host;
use crate::mirror::{self, Mounted, set, text};

/// The event, and filters of the same meaning.
const EVENT: &str = "events/syscalls/sys_enter_getpgid";
const FILTERS: [&str; 6] =
    ["pid == 0", "pid < 1", "!(pid != 0)", "pid == 0 && CPU >= 0", "pid == 0 || pid == 1", "pid <= 0"];

/// How long a round lasts before its counts are looked at.
const ROUND: Duration = Duration::from_secs(8);

/// Bytes that the daemon may have beside its buffers, which are the 1408 KiB of each CPU twice, and rings of 2 MiB.
const RESIDENT: u64 = 40 << 20;

/// What a soak came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rounds, with one kill after each but the last.
    pub rounds: u32,
    /// Calls made while their counts were looked at.
    pub hits: u64,
    /// Of these, dropped by the filter.
    pub filtered: u64,
    /// Records that a reader consumed.
    pub read: u64,
    /// Records that newer ones took the place of.
    pub overrun: u64,
    /// Hits that found the ring full.
    pub dropped: u64,
    /// Changes of the configuration.
    pub changes: u64,
    /// Readers that came and went.
    pub readers: u64,
    /// Largest resident memory seen, in bytes.
    pub resident: u64,
}

/// Threads that make the event happen.
struct Load {
    threads: Vec<JoinHandle<()>>,
    tids: Vec<u32>,
    state: Arc<LoadState>,
}

#[derive(Default)]
struct LoadState {
    run: AtomicBool,
    end: AtomicBool,
    /// Threads that rest.
    resting: AtomicU32,
    passing: AtomicU64,
    dropped: AtomicU64,
}

impl Load {
    fn start() -> Result<Self> {
        let state = Arc::new(LoadState::default());
        let (send, receive) = std::sync::mpsc::channel();
        let cpus = host::last_cpu()? + 1;
        let threads = (0..cpus)
            .map(|cpu| {
                let (state, send) = (Arc::clone(&state), send.clone());
                thread::spawn(move || {
                    let mut set = CpuSet::new();
                    set.set(cpu);
                    let _ = sched_setaffinity(None, &set);
                    let _ = send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
                    state.work();
                })
            })
            .collect();
        drop(send);
        Ok(Self { threads, tids: receive.iter().take(cpus).collect(), state })
    }

    fn go(&self) {
        self.state.run.store(true, Ordering::SeqCst);
    }

    /// Stops it, and returns once nobody is in a call any more.
    fn rest(&self) {
        self.state.run.store(false, Ordering::SeqCst);
        while self.state.resting.load(Ordering::SeqCst) < self.threads.len() as u32 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Calls so far that pass and that do not.
    fn calls(&self) -> (u64, u64) {
        (self.state.passing.load(Ordering::SeqCst), self.state.dropped.load(Ordering::SeqCst))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.state.end.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl LoadState {
    fn work(&self) {
        let none = rustix::process::Pid::from_raw(i32::MAX);
        let mut resting = false;
        while !self.end.load(Ordering::SeqCst) {
            if !self.run.load(Ordering::SeqCst) {
                if !resting {
                    self.resting.fetch_add(1, Ordering::SeqCst);
                    resting = true;
                }
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            if resting {
                self.resting.fetch_sub(1, Ordering::SeqCst);
                resting = false;
            }
            for _ in 0..100 {
                let _ = rustix::process::getpgid(None);
                let _ = rustix::process::getpgid(none);
            }
            self.passing.fetch_add(100, Ordering::SeqCst);
            self.dropped.fetch_add(100, Ordering::SeqCst);
        }
    }
}

/// What is done to the mirror beside the load, until it is told to end.
struct Unrest {
    threads: Vec<JoinHandle<()>>,
    end: Arc<AtomicBool>,
    changes: Arc<AtomicU64>,
    readers: Arc<AtomicU64>,
}

impl Unrest {
    fn start(dir: &Path, top: &Path, seed: u64) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let (changes, readers) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        {
            let (end, changes, dir, top) =
                (Arc::clone(&end), Arc::clone(&changes), dir.to_owned(), top.to_owned());
            threads.push(thread::spawn(move || {
                let mut rng = Rng::new(seed);
                while !end.load(Ordering::SeqCst) {
                    if change(&dir, &top, &mut rng).is_ok() {
                        changes.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }));
        }
        for reader in 0..2 {
            let (end, readers, dir) = (Arc::clone(&end), Arc::clone(&readers), dir.to_owned());
            threads.push(thread::spawn(move || {
                let mut rng = Rng::new(seed * 7 + reader + 1);
                while !end.load(Ordering::SeqCst) {
                    // Where the daemon is being killed every answer is right.
                    match read_a_while(&dir, &mut rng, &end) {
                        Ok(()) => drop(readers.fetch_add(1, Ordering::SeqCst)),
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                }
            }));
        }
        Self { threads, end, changes, readers }
    }

    fn stop(mut self, report: &mut Report) {
        self.end.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        report.changes += self.changes.load(Ordering::SeqCst);
        report.readers += self.readers.load(Ordering::SeqCst);
    }
}

/// One change that leaves what is recorded as it is.
fn change(dir: &Path, top: &Path, rng: &mut Rng) -> Result<()> {
    let mut pick = |n: usize| (rng.bits() % n as u64) as usize;
    match pick(8) {
        0..=3 => set(dir, &format!("{EVENT}/filter"), FILTERS[pick(FILTERS.len())]),
        4 => {
            let option =
                ["raw", "hex", "irq-info", "latency-format", "context-info", "fields", "annotate"][pick(7)];
            set(dir, &format!("options/{option}"), ["0", "1"][pick(2)])
        }
        5 => set(dir, "buffer_percent", ["0", "1", "50", "100"][pick(4)]),
        6 => {
            set(dir, "events/alarmtimer/enable", "1")?;
            set(dir, "events/alarmtimer/enable", "0")
        }
        _ => {
            let other = top.join("instances/other");
            fs::create_dir(&other)?;
            let on = set(&other, &format!("{EVENT}/enable"), "1");
            // Somebody may have a file of it open, but nobody here has.
            fs::remove_dir(&other)?;
            on
        }
    }
}

/// One reader's life.
fn read_a_while(dir: &Path, rng: &mut Rng, end: &AtomicBool) -> Result<()> {
    let cpu = rng.bits() % (host::last_cpu()? as u64 + 1);
    let file = match rng.bits() % 5 {
        0 => "trace_pipe".to_owned(),
        1 => format!("per_cpu/cpu{cpu}/trace_pipe"),
        2 => format!("per_cpu/cpu{cpu}/trace_pipe_raw"),
        3 => format!("per_cpu/cpu{cpu}/trace"),
        _ => "trace".to_owned(),
    };
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(dir.join(file))?;
    let until = Instant::now() + Duration::from_millis(rng.bits() % 400);
    let mut piece = vec![0; 1 << 16];
    while Instant::now() < until && !end.load(Ordering::SeqCst) {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The sum of a count over all CPUs.
fn count(dir: &Path, key: &str) -> Result<u64> {
    let mut sum = 0;
    for cpu in mirror::names(&dir.join("per_cpu"))? {
        let stats = text(dir, &format!("per_cpu/{cpu}/stats"))?;
        let line = stats.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        sum += line.with_context(|| format!("no {key} in {stats}"))?.parse::<u64>()?;
    }
    Ok(sum)
}

/// Looks at the counts of a round in which so many calls passed and so many did not.
fn judge(dir: &Path, passing: u64, dropped_by_filter: u64, report: &mut Report) -> Result<()> {
    let stats = text(dir, "per_cpu/cpu0/stats")?;
    let missed = stats.lines().find_map(|line| line.strip_prefix("missed events on all CPUs: "));
    let missed: u64 = missed.context("missed")?.parse()?;
    let [hits, filtered, entries, overrun, dropped, read] =
        ["hits", "filtered", "entries", "overrun", "dropped events", "read events"]
            .map(|key| count(dir, key));
    let (hits, filtered, entries) = (hits?, filtered?, entries?);
    let (overrun, dropped, read) = (overrun?, dropped?, read?);
    let recorded = entries + overrun + read;
    ensure!(
        hits == filtered + recorded + dropped,
        "{hits} hits are not {filtered} filtered + {recorded} recorded ({entries} there, {overrun} overrun, {read} read) \
         + {dropped} dropped"
    );
    ensure!(
        hits + missed == passing + dropped_by_filter && missed == 0,
        "{} calls, {hits} hits, {missed} missed",
        passing + dropped_by_filter
    );
    ensure!(filtered == dropped_by_filter, "{filtered} filtered of {dropped_by_filter}");
    report.hits += hits;
    report.filtered += filtered;
    report.overrun += overrun;
    report.dropped += dropped;
    report.read += read;
    Ok(())
}

/// Soaks so long. The first wrong count is an error.
///
/// # Errors
/// What was wrong, or what could not be done.
pub fn run(length: Duration, seed: u64, say: impl Fn(&Report)) -> Result<Report> {
    let place = std::env::temp_dir().join(format!("tracer-soak-{}", std::process::id()));
    let end = Instant::now() + length;
    let mut report = Report::default();
    let mut mounted = Mounted::at(place.clone())?;
    let dir: PathBuf = mounted.instance("soak")?;
    let load = Load::start()?;
    let tids: Vec<String> = load.tids.iter().map(ToString::to_string).collect();
    set(&dir, "set_event_pid", &tids.join(" "))?;
    set(&dir, &format!("{EVENT}/filter"), FILTERS[0])?;
    set(&dir, &format!("{EVENT}/enable"), "1")?;
    loop {
        load.rest();
        mirror::write(&dir, "trace", b"", false).map_err(std::io::Error::from_raw_os_error)?;
        let before = load.calls();
        let unrest = Unrest::start(&dir, &place, seed + u64::from(report.rounds));
        load.go();
        let left = end.saturating_duration_since(Instant::now());
        thread::sleep(ROUND.min(left).max(Duration::from_secs(1)));
        load.rest();
        let after = load.calls();
        unrest.stop(&mut report);
        // What the change in flight left.
        let _ = fs::remove_dir(place.join("instances/other"));
        judge(&dir, after.0 - before.0, after.1 - before.1, &mut report)?;
        let (_, resident) = host::resident(mounted.pid())?;
        report.resident = report.resident.max(resident);
        let buffers = (host::last_cpu()? as u64 + 1) * ((4 << 20) + 2 * (1408 << 10));
        ensure!(resident < RESIDENT + 2 * buffers, "{resident} bytes are resident");
        report.rounds += 1;
        say(&report);
        if Instant::now() >= end {
            break;
        }
        // Killed in the midst of it.
        load.go();
        let unrest = Unrest::start(&dir, &place, seed + u64::from(report.rounds) + 1000);
        thread::sleep(Duration::from_millis(300));
        mounted.kill();
        unrest.stop(&mut report);
        drop(mounted);
        mounted = Mounted::with(place.clone(), &["--restore"])?;
        let _ = fs::remove_dir(place.join("instances/other"));
        if text(&dir, "set_event")?.lines().all(|line| line != "syscalls:sys_enter_getpgid") {
            bail!("the event is off after the kill");
        }
    }
    drop(load);
    mounted.stop()?;
    ensure!(report.hits > 0 && report.filtered > 0 && report.changes > 0 && report.readers > 0, "{report:?}");
    Ok(report)
}
