//! The filter language against the running kernel: the errno of a write to `events/X/filter`, the file's content
//! afterwards, and `error_log`, byte for byte. The tests use every kind of field and thousands of random filters,
//! valid and invalid ones.
//!
//! No event is ever enabled. The test queries the kernel for the language features that it lacks, so it holds for all
//! kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::generate::{Rng, filters::Generator};
use tracer_tests::host;
use tracer_tests::oracle::{Oracle, visible};
use tracer_user::event::Format;
use tracer_user::kernel::{Answer, Btf};
use tracer_user::lang::filter::{Dialect, ErrorKind, Feature, Request, request, shown};
use tracer_user::plan::resolve::{self, Machine, ResolveEnv};

/// Number of random filters, over all events in turn.
const CASES: u32 = 13_000;

/// Of the generated filters on a kind of field, every `n`th is compared. The number of values is no multiple of it, so
/// that each kind has others.
const STEP: u32 = 3;

/// Time limit for shortening a text that shows a difference.
const SHORTENING: Duration = Duration::from_secs(20);

/// Symbols that filters name: functions, data, edges of the image, addresses, and names of no symbol.
const SYMBOLS: &[&str] = &[
    "schedule",
    "vfs_read",
    "kfree",
    "jiffies",
    "_stext",
    "_end",
    "no_such_function",
    "0xffffffff81000100",
    "0xffffffff81200000)",
    "0xffffffffffffffff",
    "0",
    "12x",
    "0x",
    "1234567890123456789012345",
    "vfs_read)",
    "(kfree",
    "'kfree'",
    "\"kfree",
    "",
];

/// Generic fields, which no format shows, and names that resemble them.
const GENERIC: &[&str] = &[
    "CPU",
    "cpu",
    "common_cpu",
    "COMM",
    "comm",
    "common_comm",
    "stacktrace",
    "STACKTRACE",
    "common_stacktrace",
];

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    errno: Option<i32>,
    /// Content of the event's `filter` file.
    file: String,
    /// The entries of `error_log`, without their timestamps.
    log: String,
}

/// An instance of the kernel's tracefs that receives the filters.
struct Kernel {
    oracle: Oracle,
    machine: Machine,
    /// Formats of the events with writable filters.
    formats: Vec<Format>,
}

impl Kernel {
    /// Prints a note and returns `None` when this process is not root.
    fn open(purpose: &str) -> Option<Self> {
        if !host::root_or_skip() {
            return None;
        }
        Some(Self::create(purpose).unwrap())
    }

    fn create(purpose: &str) -> Result<Self> {
        let oracle = Oracle::create(purpose)?;
        oracle.set("buffer_size_kb", "4")?;
        let mut formats = Vec::new();
        for event in oracle.tracefs().events()? {
            let (system, _) = event.split_once(':').context("event without a system")?;
            let path = oracle.dir().join("events").join(event.replace(':', "/"));
            if path.join("filter").exists() && path.join("format").exists() {
                formats.push(Format::parse(system, &oracle.tracefs().format(&event)?)?);
            }
        }
        ensure!(formats.len() > 300, "only {} events", formats.len());
        // One event keeps a filter: removing the last filter makes kernels free buffers, which is slow.
        let anchor = formats.swap_remove(0);
        oracle.filter(&anchor.full_name(), "CPU == 0")?;
        let btf = Btf::running()?;
        let machine = Machine::running(btf.as_ref());
        let mut kernel = Self { oracle, machine, formats };
        kernel.machine = Machine::running(btf.as_ref()).with_dialect(kernel.probe_features()?);
        Ok(kernel)
    }

    /// Queries the kernel for its language features.
    fn probe_features(&self) -> Result<Dialect> {
        let format = &self.formats[0];
        let mut dialect = Dialect::newest();
        for feature in Feature::ALL {
            let probe = feature.probe();
            let outcome = self.write(format, probe.filter.as_bytes())?;
            if outcome.file.contains(&format!("parse_error: {}\n", probe.refusal)) {
                dialect = dialect.without(feature);
            }
        }
        let message = self.write(format, &Dialect::message_probe())?;
        if !message.file.contains("parse_error") {
            dialect = dialect.with_message_max(Dialect::MESSAGE_MAX_SMALL);
        }
        Ok(dialect)
    }

    fn filter_file(&self, format: &Format) -> PathBuf {
        self.oracle.dir().join("events").join(&format.system).join(&format.name).join("filter")
    }

    fn shown(&self, format: &Format) -> Result<String> {
        // The file returns its text to the first read only, so the buffer must be large enough.
        let mut bytes = [0; 1 << 14];
        let path = self.filter_file(format);
        let length = File::open(&path).and_then(|mut file| file.read(&mut bytes));
        Ok(visible(&bytes[..length.with_context(|| path.display().to_string())?]))
    }

    /// Writes a filter and reads the results.
    fn write(&self, format: &Format, text: &[u8]) -> Result<Outcome> {
        let log = self.oracle.dir().join("error_log");
        File::create(&log).context("error_log")?;
        let file = OpenOptions::new().write(true).open(self.filter_file(format))?;
        let errno = rustix::io::write(&file, text).err().map(rustix::io::Errno::raw_os_error);
        let log = visible(&fs::read(&log)?);
        let log = log.lines().map(|line| match line.split_once("] ") {
            Some((stamp, entry)) if stamp.starts_with('[') => entry,
            _ => line,
        });
        let log = log.map(|line| line.to_owned() + "\n").collect();
        Ok(Outcome { errno, file: self.shown(format)?, log })
    }

    /// The mirror's prediction of a write to a file whose content is `before`.
    fn predict(&self, format: &Format, text: &[u8], before: &str) -> Outcome {
        let file = |text: &[u8]| visible(text);
        match request(text) {
            Request::TooLong => {
                Outcome { errno: Some(libc::EINVAL), file: before.to_owned(), log: String::new() }
            }
            Request::Clear => Outcome { errno: None, file: "none\n".to_owned(), log: String::new() },
            Request::Set(text) => match resolve::filter(text, format, &self.machine) {
                Ok(_) => {
                    let text = shown(text, &self.machine.dialect());
                    Outcome { errno: None, file: file(&text), log: String::new() }
                }
                Err(error) => Outcome {
                    errno: Some(error.errno().raw_os_error()),
                    file: file(&error.filter_file()),
                    log: file(&error.log_entry()),
                },
            },
        }
    }

    /// Whether the kernel's parser accesses only its own memory with this text. Some kernels count terms and
    /// parentheses loosely, or follow an invalid branch, and then access memory out of bounds. The test skips such
    /// texts.
    fn is_safe(&self, format: &Format, text: &[u8]) -> bool {
        let Request::Set(text) = request(text) else { return true };
        let loose = self.machine.dialect().has(Feature::LooseCounts);
        let strict = Strict(&self.machine);
        match resolve::filter(text, format, &strict).map_err(|error| error.kind()) {
            Err(ErrorKind::Miscounted | ErrorKind::TooDeep) => !loose,
            Err(ErrorKind::LooseBranch) => false,
            _ => true,
        }
    }

    /// The kernel's and the mirror's outcome where they differ.
    fn compare(&self, format: &Format, text: &[u8]) -> Result<Option<(Outcome, Outcome)>> {
        if !self.is_safe(format, text) {
            return Ok(None);
        }
        let before = self.shown(format)?;
        let ours = self.predict(format, text, &before);
        let theirs = self.write(format, text)?;
        Ok((theirs != ours).then_some((theirs, ours)))
    }

    /// Compares, and panics with the shortest text of the same kind that still differs.
    fn check(&self, format: &Format, text: &[u8]) -> Result<()> {
        if self.compare(format, text)?.is_none() {
            return Ok(());
        }
        let start = Instant::now();
        let mut short = text.to_vec();
        let mut step = short.len().div_ceil(2);
        while step > 0 {
            let mut at = 0;
            while at < short.len() && start.elapsed() < SHORTENING {
                let mut less = short.clone();
                less.drain(at..(at + step).min(short.len()));
                if self.compare(format, &less)?.is_some() {
                    short = less;
                } else {
                    at += step;
                }
            }
            step /= 2;
        }
        let (theirs, ours) = self.compare(format, &short)?.context("the difference went away")?;
        panic!(
            "{}: {} (from {})\nkernel: {theirs:#?}\nours:   {ours:#?}",
            format.full_name(),
            short.escape_ascii(),
            text.escape_ascii()
        );
    }
}

/// The machine with a strict parser, which never exceeds its counts.
struct Strict<'a>(&'a Machine);

impl ResolveEnv for Strict<'_> {
    fn dialect(&self) -> Dialect {
        self.0.dialect().without(Feature::LooseCounts)
    }

    fn cpu_ids(&self) -> u32 {
        self.0.cpu_ids()
    }

    fn symbol_address(&self, name: &str) -> Option<u64> {
        self.0.symbol_address(name)
    }

    fn symbol_extent(&self, address: u64) -> Option<(u64, u64)> {
        self.0.symbol_extent(address)
    }
}

#[test]
fn types_reveal_the_features_of_the_kernel() {
    let Some(kernel) = Kernel::open("dialect") else { return };
    let Some(btf) = Btf::running().unwrap() else {
        host::skip("btf", "this kernel shows no types");
        return;
    };
    let (asked, read) = (kernel.machine.dialect(), Machine::running(Some(&btf)).dialect());
    println!("{asked:?}, {} bytes a message", asked.message_max());
    for feature in Feature::ALL.into_iter().filter(|feature| feature.enumerator().is_some()) {
        assert_eq!(read.has(feature), asked.has(feature), "{feature:?}");
    }
    assert_eq!(read.message_max(), asked.message_max());
    // The kernel's types do not show this feature, so the test uses the filter of a perf event.
    let loose = Machine::running(Some(&btf)).loose_end();
    println!("a loose end is taken: {loose}");
    assert!(!matches!(loose, Answer::Unknown(_)), "{loose}");
    assert_eq!(loose.is_yes(), asked.has(Feature::LooseEnd), "{loose}");
    // The enum has no name; both look-ups find it.
    let stacktrace = btf.enumerator("", "FILTER_STACKTRACE").unwrap();
    assert_eq!(stacktrace.is_some(), asked.has(Feature::Stacktrace));
}

#[test]
fn filters_on_every_kind_of_field_agree() {
    let Some(kernel) = Kernel::open("fields") else { return };
    let start = Instant::now();
    let mut seen = BTreeSet::new();
    let (mut made, mut cases, part) = (0, 0, host::part().max(STEP));
    for format in &kernel.formats {
        let mut names = if seen.is_empty() { GENERIC.to_vec() } else { Vec::new() };
        for field in format.common.iter().chain(&format.fields) {
            if seen.insert((field.ty.clone(), field.size, field.signed)) {
                names.push(&field.name);
            }
        }
        for name in names {
            for op in ["==", "!=", "<", "<=", ">", ">=", "&", "~", "=", ""] {
                for value in [
                    "1",
                    "-1",
                    "0x7fffffff",
                    "4294967295",
                    "'a'",
                    "\"*b*\"",
                    "CPUS{0}",
                    "CPUS{0-1}",
                    "CPUS{",
                    "CPUS",
                    "CPUS{}",
                    "x",
                    "",
                    "'",
                    "'a",
                    "9223372036854775808",
                    "-9223372036854775809",
                    "123456789012345678901234",
                ] {
                    made += 1;
                    if made % part == 0 {
                        kernel.check(format, format!("{name} {op} {value}").as_bytes()).unwrap();
                        cases += 1;
                    }
                }
                for value in ["vfs_read", "0xffffffff81000000", "nothing", "5", "5x", "", "'vfs_read'"] {
                    made += 1;
                    if made % part == 0 {
                        kernel.check(format, format!("{name}.function{op}{value}").as_bytes()).unwrap();
                        kernel.check(format, format!("{name}.ustring {op}{value}").as_bytes()).unwrap();
                        cases += 2;
                    }
                }
            }
        }
    }
    println!("{cases} filters over {} kinds of field agree, in {:?}", seen.len(), start.elapsed());
    assert!(cases >= 1_000 && seen.len() >= 10, "only {cases} filters over {} kinds of field", seen.len());
}

#[test]
fn random_filters_are_accepted_and_refused_alike() {
    let Some(kernel) = Kernel::open("filters") else { return };
    let start = Instant::now();
    let right: Vec<&str> = SYMBOLS
        .iter()
        .copied()
        .filter(|name| !name.contains([')', '(', '\'', '"']))
        .filter(|name| {
            // An address alone is not enough: `_end` has a name but no symbol extent (kernels with KALLSYMS_ALL), so
            // it is refused.
            let address = kernel.machine.symbol_address(name);
            address.and_then(|address| kernel.machine.symbol_extent(address)).is_some()
        })
        .collect();
    let mut rng = Rng::new(1);
    let (mut taken, mut refused) = (0, BTreeMap::<String, u32>::new());
    let cases = host::share(CASES);
    for case in 0..cases {
        let format = &kernel.formats[(case as usize * 7) % kernel.formats.len()];
        let (dialect, cpus, seed) = (kernel.machine.dialect(), kernel.machine.cpu_ids(), rng.bits());
        if case % 2 == 0 {
            let text = Generator::new(format, dialect, cpus, &right, seed).filter();
            kernel.check(format, text.as_bytes()).unwrap();
            let outcome = resolve::filter(text.as_bytes(), format, &kernel.machine);
            assert!(outcome.is_ok(), "{}: {text:?} is meant to be right", format.full_name());
            taken += 1;
        } else {
            let text = Generator::new(format, dialect, cpus, SYMBOLS, seed).broken();
            kernel.check(format, &text).unwrap();
            let Request::Set(text) = request(&text) else { continue };
            match resolve::filter(text, format, &kernel.machine) {
                Ok(_) => taken += 1,
                Err(error) => *refused.entry(format!("{:?}", error.kind())).or_default() += 1,
            }
        }
    }
    println!(
        "{taken} taken, {} refused in {:?}: {refused:?}",
        refused.values().sum::<u32>(),
        start.elapsed()
    );
    // Every second filter is valid by construction; of the others most are invalid.
    assert!(taken >= cases / 2 && refused.values().sum::<u32>() >= cases / 4);
    assert!(refused.len() >= 10, "{refused:?}");
}

#[test]
fn corners_of_the_kernels_reader() {
    let Some(kernel) = Kernel::open("corners") else { return };
    let format = kernel.formats.iter().find(|format| format.full_name() == "sched:sched_switch").unwrap();
    let deep = |n: usize| format!("{}CPU==1{}", "(".repeat(n), ")".repeat(n));
    let mut texts: Vec<String> = [
        "",
        " ",
        "0",
        " 0 \n",
        "00",
        "()",
        "(",
        ")",
        "!",
        "!!",
        "!()",
        "(!)",
        "! (",
        "!CPU==1",
        "!=1",
        "!~'a'",
        "&&",
        "||",
        "CPU==1&&",
        "CPU==1||",
        "&&CPU==1",
        "CPU==1&CPU==1",
        "CPU==1|CPU==1",
        "CPU==1 CPU==1",
        "CPU==1)&&(CPU==1",
        "(CPU==1))",
        "((CPU==1)",
        "((CPU==1) && (CPU==1)",
        "(CPU==1 && )",
        "CPU==1 && ()",
        "CPU==1 && !",
        "CPU==1!",
        "CPU ==1 ')'",
        "prev_comm=='a'b",
        "prev_comm==\"a' && prev_comm=='b\"",
        "prev_comm=='\"'",
        "prev_comm=='a\"",
        "(prev_comm=='(' )",
        "((prev_comm==')')",
        "prev_comm=='a' && ('",
        "(CPU==1 && prev_comm ~ '(')",
        "((\")\"",
        "CPU == CPUS{1\n'} && CPU == CPUS{0\n'}",
        "CPU == CPUS{1\n(} && CPU==1)",
        "CPU == CPUS{0\n)(}",
        "(CPU == CPUS{0\n)}",
        "(CPU == CPUS{0\n(})",
        "((CPU == CPUS{0\n)}",
        "CPU == CPUS{0\n'} || (CPU==1) || CPU == CPUS{0\n'}",
        "CPU == CPUS{0\n'} && CPU==1 || !CPU==0 && CPU==CPUS{0\n'}",
        "CPU == CPUS{0\n\"} && prev_comm == '\"'",
        "CPU == CPUS{0\n'} && prev_comm == \"'\"",
        "CPU == CPUS{0\n'} && prev_comm == \"x'",
        "CPU == 1\0 junk",
        "CPU == CPUS{0\n''''} || CPU==1",
        "CPU == CPUS{0-1:1/2,}",
        "CPU == CPUS{0-1:1/21}",
        "CPU == CPUS{0-1:1/2 x}",
        "CPU == CPUS{0-1:1/2\n1}",
        "CPU==CPUS{\n0}",
        "CPU==CPUS{1-1:1/4294967295}",
        "CPU == CPUS{aLl}",
        "CPU == CPUS{n}",
        "CPU == CPUS {0}",
        "CPU == CPUSX",
        "CPU == cpus{0}",
        "CPU\u{a0}==\u{a0}1",
        "\u{e9}==1",
        "CPU==1\u{d7}",
        "CPU==1\u{e9}",
        "prev_comm ~ '\u{ff}*'",
        "prev_state.ustring == 1",
        "prev_state.functio == 1",
        "prev_state.function==",
        "CPU.",
        "CPU .ustring==1",
    ]
    .map(str::to_owned)
    .to_vec();
    texts.extend([1, 2, 100, 2040].map(deep));
    texts.extend([2000, 4000].map(|n| format!("{}CPU==1", "!".repeat(n))));
    texts.extend([2000, 2500].map(|n| format!("{}CPU==1", "!(".repeat(n / 2)) + &")".repeat(n / 2)));
    texts.push(format!("{}CPU==1", "(".repeat(3000)));
    texts.push(vec!["CPU==1"; 400].join("&&"));
    texts.push(vec!["!CPU==1 || CPU<2"; 200].join("&&"));
    texts.extend([254, 255, 256, 257].map(|n| format!("prev_comm == '{}'", "x".repeat(n))));
    texts.extend([22, 23, 24, 25].map(|n| format!("prev_pid == {}", "0".repeat(n))));
    texts.extend([22, 23, 24].map(|n| format!("prev_pid == -{}", "0".repeat(n))));
    texts.extend([22, 23, 24].map(|n| format!("prev_state.function == {}", "0".repeat(n))));
    for spaces in
        [2040, 2047, 2048, 4000, 4040, 4050, 4055, 4060, 4065, 4070, 4075, 4080, 4085, 4089, 4090, 4100]
    {
        texts.push(format!("{}x==1", " ".repeat(spaces)));
        texts.push(format!("{}CPU==1", " ".repeat(spaces)));
        texts.push(format!("CPU==1{}", " ".repeat(spaces)));
        texts.push(format!("{}()", " ".repeat(spaces)));
    }
    for text in &texts {
        let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
        kernel.check(format, &bytes).unwrap();
    }
    println!("{} corners agree", texts.len());
}
