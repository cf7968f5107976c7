//! A soak test in short rounds: an event at full rate on all CPUs, readers that start and stop, a configuration that
//! keeps changing, and a daemon that is killed and restarted. After every round each hit must be in exactly one
//! count.
//!
//! The changes never affect the set of recorded hits: new filters have the same meaning as the old filters. The
//! expected numbers are therefore known. The load calls getpgid(2) with 0, which passes the filters, and with a
//! number that they drop.

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

use crate::generate::Rng;
use crate::host;
use crate::mirror::{self, Mounted, set, text};

/// The event, and filters with the same meaning.
const EVENT: &str = "events/syscalls/sys_enter_getpgid";
const FILTERS: [&str; 6] =
    ["pid == 0", "pid < 1", "!(pid != 0)", "pid == 0 && CPU >= 0", "pid == 0 || pid == 1", "pid <= 0"];

/// Length of a round, after which its counts are checked.
const ROUND: Duration = Duration::from_secs(8);

/// Resident bytes that the daemon may have in addition to its buffers and rings. Per CPU these are two buffers of
/// 1408 KiB, and a ring of 2 MiB that is mapped twice.
const RESIDENT: u64 = 40 << 20;

/// The result of a soak test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of rounds; the daemon is killed after each but the last.
    pub rounds: u32,
    /// Counted hits.
    pub hits: u64,
    /// Hits that the filter dropped.
    pub filtered: u64,
    /// Records that readers consumed.
    pub read: u64,
    /// Records that newer ones overwrote.
    pub overrun: u64,
    /// Hits that found the ring full.
    pub dropped: u64,
    /// Successful changes of the configuration.
    pub changes: u64,
    /// Readers that finished.
    pub readers: u64,
    /// Largest resident memory of the daemon, in bytes.
    pub resident: u64,
}

/// Threads that hit the event.
struct Load {
    threads: Vec<JoinHandle<()>>,
    tids: Vec<u32>,
    state: Arc<LoadState>,
}

#[derive(Default)]
struct LoadState {
    run: AtomicBool,
    end: AtomicBool,
    /// Number of paused threads.
    paused: AtomicU32,
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

    /// Pauses the load, and returns once no thread is in a call.
    fn pause(&self) {
        self.state.run.store(false, Ordering::SeqCst);
        while self.state.paused.load(Ordering::SeqCst) < self.threads.len() as u32 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The number of calls so far that pass the filters, and of those that do not.
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
        let mut paused = false;
        while !self.end.load(Ordering::SeqCst) {
            if !self.run.load(Ordering::SeqCst) {
                if !paused {
                    self.paused.fetch_add(1, Ordering::SeqCst);
                    paused = true;
                }
                thread::sleep(Duration::from_millis(1));
                continue;
            }
            if paused {
                self.paused.fetch_sub(1, Ordering::SeqCst);
                paused = false;
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

/// Threads that change the configuration and read files during the load, until they are stopped.
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
                    // While the daemon is being killed every result is accepted.
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

/// Makes one change that does not affect the set of recorded hits.
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
            // No file of this instance is open in this test, so the removal must succeed.
            fs::remove_dir(&other)?;
            on
        }
    }
}

/// Opens one file at random and reads it for a while.
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

/// Checks the counts of a round with `passing` and `dropped_by_filter` calls.
fn judge(dir: &Path, passing: u64, dropped_by_filter: u64, report: &mut Report) -> Result<()> {
    // Another process may have missed hits, too.
    let missed = mirror::missed(dir)?;
    let may_lack = mirror::may_lack(dir)?;
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
    let calls = passing + dropped_by_filter;
    ensure!(
        hits <= calls && calls <= hits + missed && missed <= may_lack,
        "{calls} calls, {hits} hits, {missed} missed"
    );
    ensure!(
        filtered <= dropped_by_filter && dropped_by_filter <= filtered + missed,
        "{filtered} filtered of {dropped_by_filter}"
    );
    report.hits += hits;
    report.filtered += filtered;
    report.overrun += overrun;
    report.dropped += dropped;
    report.read += read;
    Ok(())
}

/// Runs the soak test for `length`. The first wrong count is an error.
///
/// # Errors
/// The wrong count, or the step that failed.
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
        load.pause();
        mirror::write(&dir, "trace", b"", false).map_err(std::io::Error::from_raw_os_error)?;
        let before = load.calls();
        let unrest = Unrest::start(&dir, &place, seed + u64::from(report.rounds));
        load.go();
        let left = end.saturating_duration_since(Instant::now());
        thread::sleep(ROUND.min(left).max(Duration::from_secs(1)));
        load.pause();
        let after = load.calls();
        unrest.stop(&mut report);
        // A change that was stopped may leave its instance.
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
        // Kills the daemon under load.
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

/// Time limit for the end of a daemon with all events of the machine enabled; it usually takes 100 ms.
const END: Duration = Duration::from_secs(10);

/// Time limit for the kernel to close all events, which it does one after the other.
const CLOSED: Duration = Duration::from_secs(300);

/// Ends a daemon with all events of the machine enabled, and waits until another process has closed them. Returns the
/// time that the daemon took.
///
/// # Errors
/// When the daemon does not end, or the events stay.
pub fn end_with_all_events() -> Result<Duration> {
    let mounted = Mounted::start("all")?;
    let closers = mounted.helpers("tracer-closer")?;
    let [closer] = closers[..] else { bail!("{closers:?} close events") };
    set(mounted.dir(), "set_event_pid", &std::process::id().to_string())?;
    for value in ["1", "0", "1"] {
        set(mounted.dir(), "events/enable", value)?;
    }
    let start = Instant::now();
    mounted.stop_within(END)?.success()?;
    let took = start.elapsed();
    let runs = || {
        let stat = fs::read_to_string(format!("/proc/{closer}/stat")).unwrap_or_default();
        stat.contains("(tracer-closer)") && !stat.contains("(tracer-closer) Z")
    };
    while runs() {
        ensure!(start.elapsed() < CLOSED, "events are still being closed");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(took)
}
