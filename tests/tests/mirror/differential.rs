//! Random sequences over a whole instance: control files, options, marks, snapshots, reads and consuming reads. The
//! kernel's tracefs and the mirror do the same, step by step, and both must return the same errno and text.
//!
//! `TRACER_SEED` chooses the sequence. The comparison omits values that differ between the sides (times, thread
//! names, addresses).

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::CpuSet;
use tracer_tests::generate::Rng;
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted};
use tracer_tests::oracle::Oracle;

/// An instance of the kernel's tracefs and an instance of the mirror.
struct Pair {
    kernel: Oracle,
    _mounted: Mounted,
    ours: PathBuf,
    files: Vec<String>,
    options: Vec<String>,
}

/// One step.
#[derive(Debug)]
enum Step {
    Write {
        file: String,
        text: String,
        append: bool,
    },
    Read(String),
    /// Reads a pipe without waiting.
    Consume(String),
    Mark(String),
    RawMark(u32),
}

/// Files that only one side has, files with text that differs between the sides, and files with blocking reads.
const APART: &[&str] = &[
    "README",
    "available_tracers",
    "free_buffer",
    "hist",
    "saved_cmdlines",
    "saved_tgids",
    "snapshot_raw",
    "trace_pipe",
    "trace_pipe_raw",
    "trigger",
];

/// The data after the number in a write to `trace_marker_raw`, and its text in `trace`.
const RAW_DATA: &[u8] = b"raw-data";
const RAW_TEXT: &str = " buf: 72 61 77 2d 64 61 74 61";

/// Whether this kernel shows more data than was written.
static PADDED: AtomicBool = AtomicBool::new(false);

impl Pair {
    fn new() -> Option<Self> {
        if !host::root_or_skip() {
            return None;
        }
        let kernel = Oracle::create("differential").unwrap();
        for (file, value) in [("trace_clock", "local"), ("options/hash-ptr", "1"), ("buffer_size_kb", "1408")]
        {
            kernel.set(file, value).unwrap();
        }
        let raw = [&7_u32.to_ne_bytes(), RAW_DATA].concat();
        kernel.tracing(true).unwrap();
        mirror::write(kernel.dir(), "trace_marker_raw", &raw, true).unwrap();
        kernel.tracing(false).unwrap();
        let shown = kernel.get("trace").unwrap();
        let shown = shown.lines().last().unwrap_or_default();
        assert!(shown.contains(RAW_TEXT), "{shown}");
        PADDED.store(!shown.ends_with(RAW_TEXT), Ordering::Relaxed);
        kernel.clear().unwrap();
        let mounted = Mounted::start("differential").unwrap();
        let ours = mounted.instance("pair").unwrap();
        mirror::set(&ours, "tracing_on", "0").unwrap();
        let both = |dir: &str| {
            let known = mirror::names(&kernel.dir().join(dir)).unwrap();
            let mut names = mirror::names(&ours.join(dir)).unwrap();
            names.retain(|name| known.contains(name) && !APART.contains(&name.as_str()));
            names
        };
        let is_file = |name: &String| kernel.dir().join(name).is_file();
        let mut files: Vec<String> = both("").into_iter().filter(is_file).collect();
        for dir in ["events", "events/xdp", "events/xdp/xdp_exception", "events/ftrace/print", "per_cpu/cpu0"]
        {
            files.extend(both(dir).into_iter().map(|name| format!("{dir}/{name}")).filter(is_file));
        }
        // The result for the number 1 depends on the kernel's configuration.
        files.retain(|file| file != "per_cpu/cpu0/snapshot");
        let mut options = both("options");
        // These options belong to the tracer, and therefore to all instances of the kernel.
        options.retain(|option| !option.starts_with("test_nop"));
        Some(Self { kernel, _mounted: mounted, ours, files, options })
    }

    fn both<T: PartialEq + std::fmt::Debug>(&self, step: &str, act: impl Fn(&Path) -> T) {
        let (kernel, ours) = (act(self.kernel.dir()), act(&self.ours));
        assert!(ours == kernel, "\n  ours:   {ours:?}\n  kernel: {kernel:?}\n{step}");
    }

    fn has(&self, file: &str) -> bool {
        self.files.iter().any(|known| known == file)
    }

    fn make(&self, pick: &mut impl FnMut(usize) -> usize) -> Step {
        let one_of =
            |pick: &mut dyn FnMut(usize) -> usize, words: &[&str]| words[pick(words.len())].to_owned();
        let write =
            |file: &str, text: String, append: bool| Step::Write { file: file.to_owned(), text, append };
        match pick(16) {
            0..=2 => Step::Mark(format!("mark {}", pick(1000))),
            3 => Step::RawMark(pick(1000) as u32),
            4 => {
                let option = &self.options[pick(self.options.len())];
                write(&format!("options/{option}"), pick(2).to_string(), false)
            }
            5 => {
                let option = &self.options[pick(self.options.len())];
                let no = ["", "no"][pick(2)];
                write("trace_options", format!("{no}{option}"), false)
            }
            6 => {
                let words = [
                    "xdp",
                    "!xdp:xdp_exception",
                    ":xdp_redirect_err",
                    "*:*:x",
                    "xdp: x",
                    "\n",
                    "ftrace:print",
                ];
                write("set_event", one_of(pick, &words), pick(2) == 0)
            }
            7 => write("tracing_on", one_of(pick, &["0", "1", "1"]), false),
            8 if self.has("snapshot") => {
                // Some kernels cannot swap the buffer of a single CPU.
                let (file, words): (_, &[&str]) = match pick(2) {
                    0 => ("snapshot", &["0", "1", "1", "2", "x", ""]),
                    _ => ("per_cpu/cpu0/snapshot", &["0", "2", "x", ""]),
                };
                write(file, one_of(pick, words), pick(2) == 0)
            }
            9 => write(["trace", "per_cpu/cpu0/trace"][pick(2)], String::new(), pick(4) > 0),
            10 => Step::Consume(one_of(pick, &["trace_pipe", "per_cpu/cpu0/trace_pipe"])),
            11 => write(
                "events/xdp/xdp_exception/filter",
                one_of(
                    pick,
                    &["act > 5", "0", "act >", "comm == 1", "common_pid == 3 && (act > 1 || act < 7)"],
                ),
                false,
            ),
            12 => write("trace_clock", one_of(pick, &["local", "global", "mono", "boot", "nonsense"]), false),
            13 => write(
                ["set_event_pid", "set_event_notrace_pid"][pick(2)],
                one_of(pick, &["1", "2 3", "", "x", "4x"]),
                pick(2) == 0,
            ),
            _ => Step::Read(self.files[pick(self.files.len())].clone()),
        }
    }

    fn run(&self, step: &Step, context: &str) {
        match step {
            Step::Write { file, text, append } => {
                self.both(context, |dir| mirror::write(dir, file, text.as_bytes(), *append));
            }
            Step::Read(file) => {
                self.both(context, |dir| mirror::read(dir, file).map(|bytes| settled(file, &bytes)));
            }
            Step::Consume(file) => self.both(context, |dir| consume(&dir.join(file))),
            Step::Mark(text) => {
                self.both(context, |dir| mirror::write(dir, "trace_marker", text.as_bytes(), true));
            }
            Step::RawMark(number) => {
                let mut bytes = number.to_ne_bytes().to_vec();
                bytes.extend(RAW_DATA);
                self.both(context, |dir| mirror::write(dir, "trace_marker_raw", &bytes, true));
            }
        }
    }
}

/// The current content of a pipe.
fn consume(path: &Path) -> Result<Vec<String>, i32> {
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(-1);
    let mut options = File::options();
    let mut pipe = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(number)?;
    let (mut all, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match pipe.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => all.extend_from_slice(&piece[..length]),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => break,
            Err(error) => return Err(number(error)),
        }
    }
    Ok(records(&all))
}

/// Lines without task, CPU and time. The format `bin` has no lines, so only the number of records is compared.
fn records(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    if bytes.contains(&0) {
        // The bytes between are times, which may look like any text.
        let kinds = text
            .match_indices("type: ")
            .map(|(at, _)| text[at..].lines().next().unwrap_or_default().to_owned());
        return kinds.collect();
    }
    text.split('\n').map(settled_line).collect()
}

/// A line of records or of a header, without values that differ between the sides.
fn settled_line(line: &str) -> String {
    if line.starts_with('#') && !line.starts_with("# ") {
        return line.to_owned();
    }
    // The symbol options add an offset and an address.
    if let Some((_, text)) = line.split_once("tracing_mark_write").and_then(|(_, rest)| rest.split_once(": "))
    {
        return text.to_owned();
    }
    // Before 6.18 a short record is longer than the written data, and shows the memory's previous content.
    if let Some(at) = line.rfind(RAW_TEXT).filter(|_| PADDED.load(Ordering::Relaxed)) {
        return line[at..][..RAW_TEXT.len()].to_owned();
    }
    for body in ["type: ", " buf: ", "UNKNOWN TYPE"] {
        if let Some(at) = line.rfind(body) {
            return line[at..].to_owned();
        }
    }
    // `raw` has pid, CPU, time, `#`, address and text; without context it starts at the `#`.
    match line.split_once("# ") {
        Some((_, rest)) if rest.len() > 16 && rest.as_bytes()[16] == b' ' => rest[17..].to_owned(),
        _ => line.to_owned(),
    }
}

/// A file's text without values that differ between the sides.
fn settled(file: &str, bytes: &[u8]) -> Vec<String> {
    let name = file.rsplit('/').next().unwrap_or(file);
    match name {
        "trace" | "snapshot" => records(bytes),
        "error_log" => {
            let text = String::from_utf8_lossy(bytes);
            let time = |line: &str| match line.split_once("] ") {
                Some((time, rest)) if time.starts_with('[') => rest.to_owned(),
                _ => line.to_owned(),
            };
            text.lines().map(time).collect()
        }
        "set_event" => {
            // The kernel lists an instance's events from the last to the first.
            let mut lines: Vec<String> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
            lines.sort();
            lines
        }
        "stats" => {
            let keys = ["entries:", "overrun:", "dropped events:", "read events:"];
            let text = String::from_utf8_lossy(bytes);
            let counts = text.lines().filter(|line| keys.iter().any(|key| line.starts_with(key)));
            counts.map(str::to_owned).collect()
        }
        _ => String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect(),
    }
}

#[test]
fn random_sequences_are_answered_alike() {
    let Some(pair) = Pair::new() else { return };
    // On both sides a mark belongs to the buffer of the writer's CPU.
    let mut cpu = CpuSet::new();
    cpu.set(0);
    rustix::thread::sched_setaffinity(None, &cpu).unwrap();
    let seed = std::env::var("TRACER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let steps = if host::part() == 1 { 2200 } else { host::share(6000) };
    let mut rng = Rng::new(seed);
    let mut pick = move |n: usize| (rng.bits() % n as u64) as usize;
    let mut history: Vec<String> = Vec::new();
    for number in 0..steps {
        let step = pair.make(&mut pick);
        history.push(format!("{step:?}"));
        let from = history.len().saturating_sub(25);
        let context = format!("seed {seed}, step {number}:\n  {}", history[from..].join("\n  "));
        pair.run(&step, &context);
        if number % 50 == 0 {
            for file in ["trace", "trace_options", "set_event", "per_cpu/cpu0/stats", "error_log"] {
                pair.run(&Step::Read(file.to_owned()), &format!("{context}\n  then {file}"));
            }
        }
    }
    println!("seed {seed}: {steps} steps over {} files and {} options", pair.files.len(), pair.options.len());
    // An empty write changes nothing.
    File::options().write(true).open(pair.ours.join("trace_marker")).unwrap().flush().unwrap();
}
