//! Measures rendering: lines per second of one thread, for common events, with context and newline.
//!
//! Run `cargo bench -p tracer-tests --bench render`. Only an optimized build gives meaningful numbers. The records
//! come from the golden file, so the benchmark needs no particular kernel.

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use tracer_tests::frozen::facts::{self, Facts};
use tracer_tests::frozen::golden::{Golden, WithVariables};
use tracer_user::render::line::{Options, Stamp, Tasks};
use tracer_user::render::{LineWriter, Printer, TextBuffer, json};

const EVENTS: [&str; 8] = [
    "sched:sched_switch",
    "sched:sched_waking",
    "raw_syscalls:sys_enter",
    "syscalls:sys_enter_openat",
    "syscalls:sys_exit_openat",
    "kmem:kmalloc",
    "timer:hrtimer_start",
    "ext4:ext4_es_lookup_extent_enter",
];

/// CPU time of this thread for each measurement. The machine is shared, so the best of several rounds counts.
const ROUND: Duration = Duration::from_millis(60);
const ROUNDS: usize = 5;
/// Lines between checks of the clock, and lines in a buffer before it is written.
const BATCH: u32 = 1000;

struct Names;

impl Tasks for Names {
    fn comm(&self, _pid: i32) -> Option<&[u8]> {
        Some(b"tracer-workload")
    }

    fn version(&self) -> Option<u64> {
        Some(0)
    }
}

/// Processor time that this thread has used.
fn used() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time used since the value of an earlier [`used`].
fn since(start: Duration) -> Duration {
    used().saturating_sub(start)
}

/// Lines per second in the best round.
fn measure(mut batch: impl FnMut(&mut TextBuffer)) -> f64 {
    let mut out = TextBuffer::default();
    let mut best: f64 = 0.0;
    for _ in 0..ROUNDS {
        let start = used();
        let mut lines = 0.0;
        while since(start) < ROUND {
            out.truncate(0);
            batch(&mut out);
            black_box(&out);
            lines += f64::from(BATCH);
        }
        best = best.max(lines / (since(start)).as_secs_f64());
    }
    best
}

fn main() {
    let dir = facts::dir().expect("the tree");
    let facts = Facts::read(&dir.join("6.18-x86_64.txt.zst")).expect("frozen facts");
    let golden = Golden::read(&dir.join("6.18-x86_64.golden.txt")).expect("golden records");
    let start = used();
    let compiled =
        facts.formats.iter().filter(|format| Printer::compile(format, &facts).reason().is_none()).count();
    let micros = (since(start)).as_secs_f64() * 1e6 / facts.formats.len() as f64;
    println!("{compiled} print fmts compiled, {micros:.1} us each; seconds are those of the processor");
    println!("{:36} {:>12} {:>8} {:>12}", "event", "lines/s", "ns", "JSON/s");
    let mut writer = LineWriter::new(Options::default());
    for name in EVENTS {
        let Some((_, record, _)) = golden.records.iter().find(|(event, ..)| event == name) else {
            println!("{name:36} no record");
            continue;
        };
        let format = facts.format(name).expect("a format");
        let printer = Printer::compile(format, &WithVariables(&facts, &golden));
        let mut time = 3_524_863_056_000u64;
        let text = measure(|out| {
            for _ in 0..BATCH {
                time += 1217;
                writer.line(out, &printer, record, Stamp { cpu: 1, time }, &Names, &golden);
            }
        });
        let objects = measure(|out| {
            for _ in 0..BATCH {
                time += 1217;
                let stamp = Stamp { cpu: 1, time };
                out.with(|text| json::object(text, &printer, record, stamp, true, &Names, &golden));
            }
        });
        println!("{name:36} {text:12.0} {:8.0} {objects:12.0}", 1e9 / text);
    }
}
