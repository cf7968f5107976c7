//! Measures how long small requests to a mirror take while something else is in progress: large requests, other
//! daemons, and clients that are hostile or wait.
//!
//! The tests of `tests/trust` check that such requests are answered at all. The rows with clients need
//! `tracer-user-attack` and `tracer-user-client` beside this program, and are left out without them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::event::epoll;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::bench::plan::Plan;
use crate::bench::raw::{At, RawData};
use crate::bench::statistics::median;
use crate::blocked_fs::BlockedFs;
use crate::host;
use crate::mirror::{Mounted, names, set, text};
use crate::user_events::{Data, Word};
use crate::workload::pin_to_cpu;

const TITLE: &str = "Delays of small requests to a mirror";
/// User id of the first client.
const USER: u32 = 60_000;

/// A measurement: a row's name and its function, which returns milliseconds.
type Row = (&'static str, fn() -> Result<Vec<f64>>);

const ROWS: [Row; 12] = [
    ("read, nothing else in progress", || beside(read, |_| Ok(()))),
    ("read while many events are enabled and disabled", || beside(read, many_events)),
    ("mark while many events are enabled and disabled", || beside(mark, many_events)),
    ("first mark of a daemon", first_mark),
    ("read while the first synthetic event is defined", || beside(read, synthetic_event)),
    ("open with truncation while the first kprobe is defined", || beside(open, kprobe)),
    ("read while another daemon's events are closed", || beside(read, events_beside_closing)),
    ("read beside 1,000 polls of a stream", || beside(read, polls)),
    ("read beside 8 readers of the end of a long `trace`", || beside(read, long_texts)),
    ("change of an event beside 16 clients that register events", || changes(flood)),
    ("change of an event beside a client that forks 4,000 times", || changes(forks)),
    ("change of an event beside 128 clients whose memory is unavailable", || changes(stuck)),
];

/// Measures, and returns the table. The daemons and their clients may use all CPUs.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let mut all = CpuSet::new();
    (0..=host::last_cpu()?).for_each(|cpu| all.set(cpu));
    sched_setaffinity(None, &all)?;
    let table = measure(plan, raw);
    pin_to_cpu(0)?;
    table
}

fn measure(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let mut table = format!(
        "\n### {TITLE}\n\nMilliseconds. A read is of `tracing_on`. A change enables or disables a user event of one program.\n\n\
         | | requests | median | 99th percentile | largest |\n|---|---:|---:|---:|---:|\n"
    );
    let mut ends = Vec::new();
    for (name, row) in ROWS {
        let mut all = Vec::new();
        for round in 0..plan.rounds {
            match row() {
                Ok(times) => all.extend(times),
                Err(error) => {
                    eprintln!("delays: {name}: not measured: {error:#}");
                    break;
                }
            }
            eprintln!("delays round {}: {name}: {:.2} ms", round + 1, median(&all));
        }
        raw.keep(At { table: TITLE, row: name, column: "tracer" }, "time of a request", "ms", &all);
        line(&mut table, name, all);
    }
    for _ in 0..plan.rounds {
        ends.push(end_with_many_events()?);
    }
    let name = "end of a daemon with many events";
    raw.keep(At { table: TITLE, row: name, column: "tracer" }, "time to the end", "ms", &ends);
    line(&mut table, name, ends);
    Ok(table)
}

/// Writes a line of the table; nothing without values.
fn line(table: &mut String, name: &str, mut times: Vec<f64>) {
    times.sort_unstable_by(f64::total_cmp);
    if let Some(most) = times.last() {
        let high = times[times.len() * 99 / 100];
        let _ =
            writeln!(table, "| {name} | {} | {:.2} | {high:.2} | {most:.2} |", times.len(), median(&times));
    }
}

fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Measures a small request again and again during `act`, and for at least a second.
fn beside(small: fn(&Path) -> Result<()>, act: fn(&Mounted) -> Result<()>) -> Result<Vec<f64>> {
    let mounted = Mounted::start("delays")?;
    set(mounted.dir(), "set_event_pid", &std::process::id().to_string())?;
    let dir = mounted.dir().to_owned();
    let requests = Repeated::start(move || {
        let start = Instant::now();
        small(&dir)?;
        Ok(millis(start))
    });
    let start = Instant::now();
    act(&mounted)?;
    std::thread::sleep(Duration::from_secs(1).saturating_sub(start.elapsed()));
    let times = requests.end()?;
    mounted.stop()?;
    Ok(times)
}

/// A thread that measures a request every millisecond.
struct Repeated {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<f64>>>,
}

impl Repeated {
    fn start(mut act: impl FnMut() -> Result<f64> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                all.push(act()?);
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(all)
        });
        Self { stop, thread }
    }

    fn end(self) -> Result<Vec<f64>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the requests panicked"))?
    }
}

fn read(dir: &Path) -> Result<()> {
    text(dir, "tracing_on").map(drop)
}

fn mark(dir: &Path) -> Result<()> {
    Ok(File::options().append(true).open(dir.join("trace_marker"))?.write_all(b"a mark")?)
}

/// An open as by a shell's `>`.
fn open(dir: &Path) -> Result<()> {
    Ok(File::options().write(true).truncate(true).open(dir.join("trace_marker")).map(drop)?)
}

/// The system with the most events, among the systems that do not take minutes to close.
fn largest(dir: &Path) -> Result<String> {
    let count = |system: &String| fs::read_dir(dir.join("events").join(system)).map_or(0, Iterator::count);
    let systems = names(&dir.join("events"))?.into_iter();
    let systems = systems.filter(|system| system != "syscalls" && count(system) < 150);
    systems.max_by_key(count).context("no events")
}

fn many_events(mounted: &Mounted) -> Result<()> {
    let system = largest(mounted.dir())?;
    for value in ["1", "0", "1", "0"] {
        set(mounted.dir(), "events/syscalls/enable", value)?;
        set(mounted.dir(), &format!("events/{system}/enable"), value)?;
    }
    Ok(())
}

fn first_mark() -> Result<Vec<f64>> {
    let mounted = Mounted::start("delays")?;
    let mut marker = File::options().append(true).open(mounted.dir().join("trace_marker"))?;
    let start = Instant::now();
    marker.write_all(b"a mark")?;
    Ok(vec![millis(start)])
}

fn synthetic_event(mounted: &Mounted) -> Result<()> {
    set(mounted.dir(), "synthetic_events", "allocated gfp_t flags; u64 bytes; char comm[16]")
}

fn kprobe(mounted: &Mounted) -> Result<()> {
    set(mounted.dir(), "kprobe_events", "p:delays/read vfs_read")
}

fn events_beside_closing(mounted: &Mounted) -> Result<()> {
    let closing = Mounted::start("closing")?;
    set(closing.dir(), "set_event_pid", &std::process::id().to_string())?;
    for system in ["kmem", "block", "ext4", "net", "timer", "irq", "skb", "sock", "tcp", "writeback"] {
        if closing.dir().join("events").join(system).exists() {
            set(closing.dir(), &format!("events/{system}/enable"), "1")?;
        }
    }
    closing.stop()?;
    for name in names(&mounted.dir().join("events/workqueue"))? {
        let event = format!("events/workqueue/{name}");
        if mounted.dir().join(&event).join("format").exists() {
            set(mounted.dir(), &format!("{event}/enable"), "1")?;
            set(mounted.dir(), &format!("{event}/enable"), "0")?;
        }
    }
    Ok(())
}

fn polls(mounted: &Mounted) -> Result<()> {
    let dir = mounted.dir();
    many_events(mounted)?;
    // The buffer never becomes full enough to end a poll.
    set(dir, "buffer_percent", "100")?;
    let stream = dir.join("per_cpu/cpu0/trace_pipe_raw");
    let files = (0..1000).map(|_| File::open(&stream)).collect::<std::io::Result<Vec<File>>>()?;
    for _ in 0..4 {
        // Polls again before the daemon forgets the poll, which happens after a second.
        let waiter = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for file in &files {
            epoll::add(&waiter, file, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// Several readers of the last bytes of a text, for which the mirror renders all lines before them.
fn long_texts(mounted: &Mounted) -> Result<()> {
    let dir = mounted.dir();
    set(dir, "buffer_size_kb", "4096")?;
    let mut marker = File::options().append(true).open(dir.join("trace_marker"))?;
    (0..12_000).try_for_each(|number| marker.write_all(format!("mark {number}").as_bytes()))?;
    let (path, end) = (dir.join("trace"), text(dir, "trace")?.len() as u64 - 64);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let _ = File::open(&path).and_then(|file| file.read_at(&mut [0; 64], end));
                }
            });
        }
    });
    Ok(())
}

/// Measures changes of a user event beside what `with` starts, which is kept until the end.
fn changes<T>(with: fn(&Path) -> Result<T>) -> Result<Vec<f64>> {
    let mounted = Mounted::start("delays")?;
    let dir = mounted.dir();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(dir.join("user_events_data"), fs::Permissions::from_mode(0o666))?;
    let (data, word) = (Data::open(dir)?, Word::default());
    data.register("delayed u32 a", &word, 0, 0).map_err(std::io::Error::from_raw_os_error)?;
    let change = |round: u32| -> Result<f64> {
        let start = Instant::now();
        set(dir, "events/user_events/delayed/enable", ["1", "0"][round as usize % 2])?;
        Ok(millis(start))
    };
    // The first changes load programs.
    (0..4).try_for_each(|round| change(round).map(drop))?;
    let kept = with(dir)?;
    let times = (0..20).map(change).collect();
    drop(kept);
    mounted.stop()?;
    times
}

/// A client that is killed on drop.
struct Client(Child);

impl Client {
    fn start(program: &str, uid: u32, words: &[&str]) -> Result<Self> {
        let variable = program.to_uppercase().replace('-', "_") + "_BIN";
        let mut command = host::binary_as(uid, USER, program, &variable)?;
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    /// Waits for a line of its output.
    fn says(mut self, word: &str) -> Result<Self> {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().context("its output")?).read_line(&mut line)?;
        anyhow::ensure!(line.trim_end() == word, "{line}");
        Ok(self)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn flood(dir: &Path) -> Result<Vec<Client>> {
    let dir = dir.to_str().context("a path")?;
    let start =
        |number: u32| Client::start("tracer-user-attack", USER + number % 4, &["flood", dir, "100000000"]);
    let clients = (0..16).map(start).collect();
    std::thread::sleep(Duration::from_millis(500));
    clients
}

fn forks(dir: &Path) -> Result<Client> {
    let words = ["forks", dir.to_str().context("a path")?, "2000", "4000"];
    Client::start("tracer-user-client", USER, &words)?.says("registered")
}

fn stuck(dir: &Path) -> Result<(BlockedFs, Vec<Client>)> {
    let held = BlockedFs::mount("delays")?;
    let page = held.file();
    let words = ["stuck", dir.to_str().context("a path")?, page.to_str().context("a path")?];
    let start = |number: u32| {
        Client::start("tracer-user-attack", USER + number % 16, &words).and_then(|c| c.says("stuck"))
    };
    let clients = (0..128).map(start).collect::<Result<Vec<Client>>>()?;
    Ok((held, clients))
}

/// Milliseconds from SIGINT to the end of a daemon with many events.
fn end_with_many_events() -> Result<f64> {
    let mounted = Mounted::start("delays")?;
    set(mounted.dir(), "set_event_pid", &std::process::id().to_string())?;
    set(mounted.dir(), "events/syscalls/enable", "1")?;
    set(mounted.dir(), &format!("events/{}/enable", largest(mounted.dir())?), "1")?;
    let start = Instant::now();
    mounted.stop()?;
    Ok(millis(start))
}
