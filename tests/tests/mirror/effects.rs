//! The effects of control files, beyond their content: the CPU mask, copies of marks, freeing buffers, and the files
//! of names and processes. The same is done to an instance of the kernel's tracefs, or to its top where only the top
//! has the file. A changed file of the top is restored afterwards.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::compare::times::{Offsets, RESOLUTION};
use tracer_tests::host;
use tracer_tests::mirror::{self, Answer, Mounted, set, stat, text};
use tracer_tests::oracle::{Oracle, Trace};
use tracer_tests::workload;

/// An event that only the tests hit.
const EVENT: &str = "events/syscalls/sys_enter_getpgid";

/// Locked by the test that changes files of the kernel's top directory.
static TOP: Mutex<()> = Mutex::new(());

/// An instance of the kernel and an instance of the mirror, both restricted to this thread.
struct Pair {
    kernel: Oracle,
    mounted: Mounted,
    ours: PathBuf,
}

impl Pair {
    fn start(purpose: &str) -> Result<Self> {
        let (kernel, mounted) = (Oracle::create(purpose)?, Mounted::start(purpose)?);
        let ours = mounted.instance(purpose)?;
        let pair = Self { kernel, mounted, ours };
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        for dir in pair.dirs() {
            set(dir, "trace_clock", "mono")?;
            set(dir, "buffer_size_kb", "256")?;
            set(dir, "set_event_pid", &own)?;
            set(dir, "tracing_on", "1")?;
        }
        Ok(pair)
    }

    /// The instances, the kernel's first.
    fn dirs(&self) -> [&Path; 2] {
        [self.kernel.dir(), &self.ours]
    }

    /// The tops, the kernel's first.
    fn tops(&self) -> [&Path; 2] {
        [self.kernel.tracefs().root(), self.mounted.dir()]
    }

    /// Calls `act` for both sides, requires equal results, and returns the result.
    fn same<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        act: impl Fn(&Path) -> Result<T>,
    ) -> Result<T> {
        let [kernel, ours] = self.dirs().map(act);
        let (kernel, ours) = (kernel.context("the kernel's")?, ours.context("ours")?);
        ensure!(kernel == ours, "{what}: the kernel has {kernel:?}, we have {ours:?}");
        Ok(ours)
    }
}

/// Hits the event this many times on this CPU.
fn hit(cpu: usize, times: usize) -> Result<()> {
    workload::pin_to_cpu(cpu)?;
    for _ in 0..times {
        rustix::process::getpgid(None)?;
    }
    Ok(())
}

/// The CPU and the text of each line.
fn lines(dir: &Path) -> Result<Vec<(u32, String)>> {
    let trace = Trace::parse(text(dir, "trace")?.as_bytes());
    let body = |text: &str| match text.split_once("tracing_mark_write: ") {
        Some((_, mark)) => format!("mark {mark}"),
        None => text.to_owned(),
    };
    Ok(trace.lines.iter().map(|line| (line.cpu, body(&line.text))).collect())
}

#[test]
fn a_mask_of_cpus_restricts_recording() {
    host::as_root(|| {
        let pair = Pair::start("mask")?;
        let last = host::last_cpu()?;
        let of = |cpu: usize| format!("{:x}", 1_u32 << cpu);
        let every = format!("{:x}", (1_u32 << (last + 1)) - 1);
        for dir in pair.dirs() {
            set(dir, &format!("{EVENT}/enable"), "1")?;
        }
        let mut recorded = 0;
        for mask in [&of(0), &of(last), &every, &of(0), "0", &every] {
            let answer =
                pair.same(mask, |dir| Ok(mirror::write(dir, "tracing_cpumask", mask.as_bytes(), false)))?;
            let shown = pair.same("tracing_cpumask", |dir| text(dir, "tracing_cpumask"))?;
            for dir in pair.dirs() {
                set(dir, "trace", "")?;
            }
            hit(0, 5)?;
            hit(last, 7)?;
            // A mark belongs to the CPU on which it is written.
            let marks = |cpu: usize| {
                pair.same("a mark", |dir| {
                    workload::pin_to_cpu(cpu)?;
                    Ok(mirror::write(dir, "trace_marker", format!("of {cpu}").as_bytes(), true))
                })
            };
            let marked = [marks(0)?, marks(last)?];
            let found = pair.same("lines", lines)?;
            let counts = pair.same("entries", |dir| stat(dir, "entries"))?;
            println!("{mask} ({answer:?}, {}): {} lines, marks {marked:?}", shown.trim_end(), found.len());
            ensure!(found.len() as u64 == counts, "{counts} entries");
            recorded += found.len();
        }
        ensure!(recorded >= 12, "only {recorded} lines");
        Ok(())
    });
}

#[test]
fn closing_free_buffer_frees_the_memory() {
    host::as_root(|| {
        let pair = Pair::start("free")?;
        for dir in pair.dirs() {
            set(dir, &format!("{EVENT}/enable"), "1")?;
        }
        let cpu = host::last_cpu()?;
        for stops in ["0", "1"] {
            for dir in pair.dirs() {
                set(dir, "options/disable_on_free", stops)?;
                set(dir, "buffer_size_kb", "64")?;
                set(dir, "tracing_on", "1")?;
                set(dir, "trace", "")?;
            }
            hit(cpu, 20)?;
            let before = pair.same("before", |dir| Ok(lines(dir)?.len()))?;
            ensure!(before == 20, "{before} lines");
            let taken = pair.same("opening and writing", |dir| {
                let mut file = File::options().write(true).open(dir.join("free_buffer"))?;
                Ok(std::io::Write::write(&mut file, b"anything").map_err(|error| error.raw_os_error()))
            })?;
            ensure!(taken == Ok(8), "{taken:?}");
            let shown = |dir: &Path| Ok([text(dir, "buffer_size_kb")?, text(dir, "tracing_on")?]);
            // FUSE reports a close asynchronously.
            let [kernel, ours] = pair.dirs();
            let end = Instant::now() + host::patience(Duration::from_secs(10));
            while shown(ours)? != shown(kernel)? && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            let after = pair.same("after", shown)?;
            ensure!(after[1] == if stops == "1" { "0\n" } else { "1\n" }, "{after:?}");
            // Each CPU keeps at least one page, so few lines stay and only few hits fit.
            let left = pair.same("lines left", |dir| Ok(lines(dir)?.len()))?;
            hit(cpu, 3)?;
            let few = pair.same("few hits", |dir| Ok(lines(dir)?.len()))?;
            ensure!(few == if stops == "1" { left } else { left + 3 }, "{few} lines, {left} before");
            hit(cpu, 5000)?;
            let [kernel, ours] = pair.dirs().map(|dir| lines(dir).map(|lines| lines.len()));
            let (kernel, ours) = (kernel?, ours?);
            println!(
                "disable_on_free {stops}: {after:?}, of 5,003 hits {ours} are left, the kernel has {kernel}"
            );
            ensure!(kernel < 1000 && ours < 1000, "{ours} lines, the kernel {kernel}");
            for dir in pair.dirs() {
                set(dir, "buffer_size_kb", "64")?;
                set(dir, "tracing_on", "1")?;
                set(dir, "trace", "")?;
            }
            hit(cpu, 20)?;
            let again = pair.same("again", |dir| Ok(lines(dir)?.len()))?;
            ensure!(again == 20, "{again} lines in a buffer of its old size");
        }
        Ok(())
    });
}

#[test]
fn marks_are_copied_to_instances_with_the_option() {
    host::as_root(|| {
        let _turn = TOP.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = Pair::start("copies")?;
        let has = pair.same("the option", |dir| Ok(dir.join("options/copy_trace_marker").exists()))?;
        if !has {
            // Before 6.16 a mark stays in the instance where it was written, and a mirror has the kernel's options.
            for top in pair.tops() {
                let _ = mirror::write(top, "trace_marker", b"tracer-copied", true);
            }
            let found = pair.same("lines", lines)?;
            ensure!(found.is_empty(), "{found:?}");
            println!("this kernel has no such option, and an instance has no copy");
            return Ok(());
        }
        let (all, instances) = (pair.tops(), pair.dirs());
        let _back = Back::of(pair.tops()[0], "tracing_on")?;
        set(pair.tops()[0], "tracing_on", "1")?;
        let mut seen = 0;
        for (step, on) in ["0", "1", "1", "0", "1"].into_iter().enumerate() {
            for dir in &instances {
                set(dir, "options/copy_trace_marker", on)?;
                set(dir, "trace", "")?;
                // In step 2 the option is set, but the instance does not record.
                set(dir, "tracing_on", if step == 2 { "0" } else { "1" })?;
            }
            let raw = [&0x7e57_u32.to_ne_bytes()[..], b"raw"].concat();
            let write = |top: &&Path| -> [Answer; 2] {
                let mark = format!("tracer-copied {step}");
                let mark = mirror::write(top, "trace_marker", mark.as_bytes(), true);
                [mark, mirror::write(top, "trace_marker_raw", &raw, true)]
            };
            let answers: Vec<_> = all.iter().map(write).collect();
            println!("step {step}: {answers:?}");
            ensure!(answers.windows(2).all(|two| two[0] == two[1]), "step {step}: {answers:?}");
            // A mark that is written to an instance is not copied.
            for dir in &instances {
                let _ = mirror::write(dir, "trace_marker", b"own", true);
            }
            let bodies = |dir: &&Path| -> Result<Vec<String>> {
                let found = lines(dir)?.into_iter().map(|(_, text)| text);
                // Other processes may write marks to the kernel's top as well.
                let own = |text: &String| {
                    text.contains("tracer-copied") || text.ends_with("own") || text.contains("7e57")
                };
                // Before 6.18 the kernel also shows the memory after such a short record.
                let cut = |text: String| text.split(" buf: 72 61 77").next().unwrap_or_default().to_owned();
                Ok(found.filter(own).map(cut).collect())
            };
            let found = instances.iter().map(bodies).collect::<Result<Vec<_>>>()?;
            ensure!(found.windows(2).all(|two| two[0] == two[1]), "step {step}: {found:#?}");
            let wanted = match (on, step) {
                ("1", 2) => 0,
                ("1", _) => 3,
                _ => 1,
            };
            ensure!(found[0].len() == wanted, "step {step}: {found:#?}");
            seen += wanted;
        }
        ensure!(seen == 8, "{seen} marks");
        Ok(())
    });
}

/// Restores a file of the kernel's top to its previous content.
struct Back {
    top: PathBuf,
    file: &'static str,
    value: String,
}

impl Back {
    fn of(top: &Path, file: &'static str) -> Result<Self> {
        Ok(Self { top: top.to_owned(), file, value: text(top, file)?.trim_end().to_owned() })
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        if let Err(error) = set(&self.top, self.file, &self.value) {
            eprintln!("{error:#}");
        }
    }
}

#[test]
fn the_number_of_names_is_set_and_old_names_are_dropped() {
    host::as_root(|| {
        let _turn = TOP.lock().unwrap_or_else(PoisonError::into_inner);
        if !Oracle::names_tasks()? {
            return Ok(());
        }
        let pair = Pair::start("names")?;
        let [kernel, ours] = pair.tops();
        let _back = Back::of(kernel, "saved_cmdlines_size")?;
        let mut taken = 0;
        for value in ["1", "128", "7000", "20000", "32768", "32769", "0", "x", "", "-1", "300"] {
            let write = |dir| mirror::write(dir, "saved_cmdlines_size", value.as_bytes(), false);
            let answers = (write(kernel), write(ours));
            ensure!(answers.0 == answers.1, "{value:?}: {answers:?}");
            taken += usize::from(answers.0.is_ok());
            let shown = (text(kernel, "saved_cmdlines_size")?, text(ours, "saved_cmdlines_size")?);
            ensure!(shown.0 == shown.1, "after {value:?}: {shown:?}");
        }
        ensure!(taken >= 6, "{taken} numbers were taken");
        // The kernel learns this thread's name when it is hit or switched, and forgets it when the size changes.
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        let named = |dir: &Path| -> Result<bool> {
            Ok(text(dir, "saved_cmdlines")?.lines().any(|line| line.starts_with(&format!("{own} "))))
        };
        for dir in pair.dirs() {
            set(dir, &format!("{EVENT}/enable"), "1")?;
        }
        for round in 0..2 {
            for top in [kernel, ours] {
                set(top, "saved_cmdlines_size", if round == 0 { "7000" } else { "300" })?;
            }
            let end = Instant::now() + host::patience(Duration::from_secs(10));
            // The kernel learns the names of tasks at their switches.
            while !(named(kernel)? && named(ours)?) {
                ensure!(Instant::now() < end, "round {round}: {} {}", named(kernel)?, named(ours)?);
                hit(0, 1)?;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    });
}

#[test]
fn processes_of_threads_are_recorded_on_request() {
    host::as_root(|| {
        let _turn = TOP.lock().unwrap_or_else(PoisonError::into_inner);
        if !Oracle::names_tasks()? {
            return Ok(());
        }
        let pair = Pair::start("groups")?;
        let [kernel, ours] = pair.tops();
        let threads = std::thread::scope(|scope| -> Result<Vec<String>> {
            for dir in pair.dirs() {
                set(dir, "options/event-fork", "1")?;
                set(dir, "options/record-tgid", "1")?;
                set(dir, &format!("{EVENT}/enable"), "1")?;
                set(dir, "events/sched/sched_switch/enable", "1")?;
            }
            let work = || -> Result<String> {
                hit(0, 2)?;
                std::thread::sleep(Duration::from_millis(3));
                Ok(rustix::thread::gettid().as_raw_nonzero().to_string())
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
        })?;
        let group = std::process::id().to_string();
        for top in [kernel, ours] {
            let listed = text(top, "saved_tgids")?;
            for thread in &threads {
                let line = format!("{thread} {group}");
                ensure!(listed.lines().any(|shown| shown == line), "{}: no {line}\n{listed}", top.display());
            }
            ensure!(!listed.lines().any(|line| line.split(' ').count() != 2), "{listed}");
        }
        // The lines show them as well.
        let shown = |dir: &Path| -> Result<Vec<String>> {
            let trace = text(dir, "trace")?;
            let calls = trace.lines().filter(|line| line.contains(": sys_getpgid("));
            let mark = |line: &str| Some(line.split_once('(')?.1.split_once(')')?.0.trim().to_owned());
            calls.map(|line| mark(line).with_context(|| line.to_owned())).collect()
        };
        let found = pair.same("the column", shown)?;
        ensure!(found.len() == 6 && found.iter().all(|own| *own == group), "{found:?}");
        Ok(())
    });
}

#[test]
fn formats_of_trace_printk_are_the_kernels() {
    host::as_root(|| {
        let pair = Pair::start("formats")?;
        let [kernel, ours] = pair.tops().map(|dir| text(dir, "printk_formats"));
        let (kernel, ours) = (kernel?, ours?);
        ensure!(kernel == ours, "{} bytes, the kernel has {}", ours.len(), kernel.len());
        ensure!(kernel.lines().count() >= 10, "only {} lines", kernel.lines().count());
        Ok(())
    });
}

/// How a clock's times are compared with the kernel's (`docs/reference/differences.md`, clocks).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Both sides read the same clock.
    Same,
    /// The mirror adds the distance to `CLOCK_MONOTONIC`, which it reads afterwards. An interrupt between these two
    /// readings makes single times late.
    Converted,
    /// The clock of the kernel's scheduler, which has another zero.
    Scheduler,
    /// Ticks, which have another zero. The kernel counts them late while the CPU that counts them does not run.
    Ticks,
}

const CLOCKS: [(&str, Kind); 8] = [
    ("mono", Kind::Same),
    ("mono_raw", Kind::Converted),
    ("boot", Kind::Converted),
    ("tai", Kind::Converted),
    ("uptime", Kind::Ticks),
    ("local", Kind::Scheduler),
    ("global", Kind::Scheduler),
    ("perf", Kind::Scheduler),
];

/// The clock offsets that successive hits allow.
fn offsets(hits: &[(u64, u64)]) -> Offsets {
    let mut offsets = Offsets::default();
    hits.windows(2).for_each(|two| offsets.take(two[0], two[1]));
    offsets
}

#[test]
fn clocks_show_the_kernels_time() {
    host::as_root(|| {
        let pair = Pair::start("clocks")?;
        for dir in pair.dirs() {
            set(dir, &format!("{EVENT}/enable"), "1")?;
        }
        let cpu = host::last_cpu()?;
        let known = text(pair.kernel.dir(), "trace_clock")?;
        let mut compared = 0;
        for (clock, kind) in CLOCKS {
            if !known.split_whitespace().any(|word| word.trim_matches(['[', ']']) == clock) {
                println!("{clock}: not in this kernel");
                continue;
            }
            for dir in pair.dirs() {
                set(dir, "trace_clock", clock)?;
            }
            for _ in 0..50 {
                hit(cpu, 4)?;
                std::thread::sleep(Duration::from_micros(300));
            }
            // Microseconds, or the plain number of a clock without such units.
            let time = |line: &str| -> Option<u64> {
                let time = line.split_once(": sys_getpgid")?.0.rsplit_once(' ')?.1;
                let Some((seconds, micros)) = time.split_once('.') else { return time.parse().ok() };
                Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1000)
            };
            let times = |dir: &Path| -> Result<Vec<u64>> {
                Ok(text(dir, "trace")?.lines().filter_map(time).collect())
            };
            let [kernel, ours] = pair.dirs().map(times);
            let (kernel, ours) = (kernel?, ours?);
            ensure!(kernel.len() == 200 && ours.len() == 200, "{clock}: {} and {}", kernel.len(), ours.len());
            ensure!(ours.is_sorted() && kernel.is_sorted(), "{clock}: {ours:?}\n{kernel:?}");
            // Fifty sleeps prove that the clock runs; one clock counts ticks of up to 10 ms.
            let least = if kind == Kind::Ticks { 1 } else { 50 * 250_000 };
            ensure!(ours[199] - ours[0] >= least, "{clock}: {} between first and last", ours[199] - ours[0]);
            let hits: Vec<(u64, u64)> = kernel.iter().copied().zip(ours.iter().copied()).collect();
            let all = offsets(&hits);
            println!("{clock}: {all}");
            if matches!(kind, Kind::Scheduler | Kind::Ticks) {
                // Both start at boot; the kernel's clocks may omit the first moments. On an emulated machine the timer
                // loses time when it is not read for seconds; the processor's counter does not.
                let zeroes = kernel[0].abs_diff(ours[0]);
                let most = if kind == Kind::Ticks { 100 } else { 1_000_000_000 };
                ensure!(zeroes < most || host::part() > 1, "{clock}: {zeroes}");
            }
            // `CLOCK_MONOTONIC` may be adjusted by 500 parts per million (adjtimex(2)), unlike other clocks.
            let drift = (kernel[199] - kernel[0]).cast_signed() / 2000;
            let is_right = match kind {
                Kind::Same => all.is_one_clock(RESOLUTION),
                Kind::Converted => {
                    let resolution = RESOLUTION + drift;
                    let is_one_clock = |round: &&[(u64, u64)]| offsets(round).is_one_clock(resolution);
                    !all.is_early(resolution) && hits.chunks(4).filter(is_one_clock).count() > 25
                }
                Kind::Scheduler => all.is_constant(RESOLUTION + drift),
                Kind::Ticks => {
                    let mut distances: Vec<i64> =
                        hits.iter().map(|(kernel, ours)| ours.cast_signed() - kernel.cast_signed()).collect();
                    distances.sort_unstable();
                    let middle = distances[100];
                    distances.iter().filter(|distance| distance.abs_diff(middle) <= 1).count() > 100
                }
            };
            ensure!(is_right, "{clock}: {all}: {hits:?}");
            compared += 1;
        }
        ensure!(compared >= 7, "{compared} clocks");
        Ok(())
    });
}
