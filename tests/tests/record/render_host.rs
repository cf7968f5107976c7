//! Compares the rendering of the kernel's own records with the kernel's text. A workload runs in an instance of
//! tracefs, and its `trace` is read. Then the same records are read raw from the ring buffer and rendered here. Both
//! texts must be equal, including header and context.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result, ensure};
use tracer_tests::frozen::golden::{Golden, Keeper};
use tracer_tests::host;
use tracer_tests::oracle::Oracle;
use tracer_tests::oracle::rawpage::{Layout, Record};
use tracer_tests::workload::{self, Job};
use tracer_user::engine::facts::Facts;
use tracer_user::event::{FieldClass, Format};
use tracer_user::kernel::version_of;
use tracer_user::render::line::{BufferInfo, Options, Stamp, Tasks, header, line};
use tracer_user::render::{KernelFacts, Printer};

/// Smallest number of event types.
const TYPES: usize = 60;

/// The kernel's saved names and thread groups.
#[derive(Default)]
struct Saved {
    comms: HashMap<i32, Vec<u8>>,
    tgids: HashMap<i32, i32>,
}

impl Saved {
    fn read(oracle: &Oracle) -> Result<Self> {
        let root = oracle.tracefs().root();
        let lines = |file: &str| -> Result<Vec<(i32, Vec<u8>)>> {
            let path = root.join(file);
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            Ok(bytes
                .split(|byte| *byte == b'\n')
                .filter_map(|line| {
                    let space = line.iter().position(|byte| *byte == b' ')?;
                    Some((
                        std::str::from_utf8(&line[..space]).ok()?.parse().ok()?,
                        line[space + 1..].to_vec(),
                    ))
                })
                .collect())
        };
        let tgids = lines("saved_tgids")?
            .into_iter()
            .filter_map(|(pid, text)| Some((pid, std::str::from_utf8(&text).ok()?.parse().ok()?)));
        Ok(Self { comms: lines("saved_cmdlines")?.into_iter().collect(), tgids: tgids.collect() })
    }
}

impl Tasks for Saved {
    fn comm(&self, pid: i32) -> Option<&[u8]> {
        self.comms.get(&pid).map(Vec::as_slice)
    }

    fn tgid(&self, pid: i32) -> Option<i32> {
        self.tgids.get(&pid).copied()
    }
}

/// One run in the kernel: the records of all CPUs in the order of `trace`, and its text under each set of options.
struct Run {
    records: Vec<Record>,
    texts: Vec<(&'static str, Vec<u8>)>,
    saved: Saved,
    printers: HashMap<u16, Printer>,
    facts: Facts,
    cpus: u32,
}

/// A line without the excluded parts: an age in seconds, which the kernel computes at the time of reading; and under
/// `fields`, since 6.15, a string pointer, because the kernel shows the position in its buffer instead of the
/// pointer.
fn comparable(text: &[u8], fields: bool, name: &str, pointers: &[&str]) -> String {
    let mut text = String::from_utf8_lossy(text).into_owned();
    if name.starts_with("writeback:") {
        blank(&mut text, " age=", |c| c.is_ascii_digit());
    }
    if fields {
        for field in pointers {
            blank(&mut text, &format!(" {field}=(0x"), |c| c.is_ascii_hexdigit());
        }
    }
    text
}

/// Removes the digits after a label.
fn blank(text: &mut String, label: &str, digit: impl Fn(char) -> bool) {
    if let Some(at) = text.find(label) {
        let start = at + label.len();
        let end = text[start..].find(|c| !digit(c)).map_or(text.len(), |length| start + length);
        text.replace_range(start..end, "");
    }
}

/// Trace options in the syntax of `trace_options`, and their effect on the renderer's options.
type Setting = (&'static str, fn(&mut Options));

/// Sets of trace options, each with its effect on the renderer.
const SETTINGS: &[Setting] = &[
    ("", |_| {}),
    ("record-tgid", |options| options.print_tgid = true),
    ("noirq-info", |options| options.irq_info = false),
    ("noirq-info record-tgid", |options| {
        options.irq_info = false;
        options.print_tgid = true;
    }),
    ("nocontext-info", |options| options.context_info = false),
    ("verbose", |options| options.verbose = true),
    ("raw", |options| options.raw = true),
    ("hex", |options| options.hex = true),
    ("bin", |options| options.bin = true),
    ("fields", |options| options.fields = true),
];

fn record(events: &[String]) -> Result<Run> {
    let oracle = Oracle::create("render")?;
    let root = oracle.tracefs().root().to_owned();
    let job = Job::start(&["all"], 1)?;
    oracle.pids(&[job.pid()], true)?;
    // The kernel must know the thread groups when it prints them.
    oracle.set("options/record-tgid", "1")?;
    for event in events {
        // Some events can be enabled only by their own user.
        if let Err(error) = oracle.enable(event, true) {
            println!("{event} stays off: {error:#}");
        }
    }
    oracle.tracing(true)?;
    job.go()?;
    oracle.tracing(false)?;
    oracle.set("events/enable", "0")?;
    oracle.set("options/record-tgid", "0")?;
    ensure!(oracle.lost()? == 0, "the kernel's buffer was too small");

    let mut texts = Vec::new();
    let offered = oracle.get("trace_options")?;
    let offered: BTreeSet<&str> =
        offered.lines().map(|line| line.strip_prefix("no").unwrap_or(line)).collect();
    for (setting, _) in SETTINGS {
        // `fields` was added in 6.4.
        let mut options =
            setting.split_whitespace().map(|option| option.strip_prefix("no").unwrap_or(option));
        if let Some(option) = options.find(|option| !offered.contains(option)) {
            println!("not compared under {setting}: this kernel has no trace option {option}");
            continue;
        }
        for option in setting.split_whitespace() {
            oracle.set("trace_options", option)?;
        }
        texts.push((*setting, fs::read(oracle.trace_path())?));
        for option in setting.split_whitespace() {
            let off = option.strip_prefix("no").map_or_else(|| format!("no{option}"), str::to_owned);
            oracle.set("trace_options", &off)?;
        }
    }
    let saved = Saved::read(&oracle)?;
    let dir = oracle.trace_path().parent().context("an instance without a directory")?.to_owned();
    let layout = Layout::of(&root)?;
    let mut records = Vec::new();
    for entry in fs::read_dir(dir.join("per_cpu"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let cpu = name.strip_prefix("cpu").context("per_cpu holds what is no CPU")?.parse()?;
        records.extend(layout.drain(&path.join("trace_pipe_raw"), cpu)?);
    }
    // A stable sort: at equal times the lower CPU is first, and the records of one CPU keep their order.
    records.sort_by_key(|record| (record.time, record.cpu));

    let facts = Facts::running()?;
    let printers = events
        .iter()
        .map(|event| {
            let (system, _) = event.split_once(':').context("an event without a system")?;
            let format = Format::parse(system, &oracle.tracefs().format(event)?)?;
            Ok((format.id, Printer::compile(&format, &facts)))
        })
        .collect::<Result<_>>()?;
    let cpus = fs::read_to_string("/sys/devices/system/cpu/online").map_or(1, |list| count(&list));
    Ok(Run { records, texts, saved, printers, facts, cpus })
}

/// The number of CPUs in a list such as `0-1,4`.
fn count(list: &str) -> u32 {
    list.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(last.parse::<u32>().ok()? - first.parse::<u32>().ok()? + 1)
        })
        .sum()
}

/// The differences of a run under one set of options, by event.
fn differences(run: &Run, setting: &str, options: &Options, text: &[u8]) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut ours = Vec::new();
    let total = run.records.len() as u64;
    header(&mut ours, options, BufferInfo { entries: total, written: total, cpus: run.cpus });
    let mut rest = text;
    let mut check = |name: String, ours: &[u8], pointers: &[&str]| -> bool {
        if let Some(after) = rest.strip_prefix(ours) {
            rest = after;
            return true;
        }
        // Continues after the newline that ends the kernel's text of this record.
        let lines = ours.split_inclusive(|byte| *byte == b'\n').count();
        let length = rest.split_inclusive(|byte| *byte == b'\n').take(lines).map(<[u8]>::len).sum();
        let (theirs, after) = rest.split_at(length);
        rest = after;
        let (theirs, ours) = (
            comparable(theirs, options.fields, &name, pointers),
            comparable(ours, options.fields, &name, pointers),
        );
        if theirs == ours {
            return true;
        }
        found.entry(name).or_default().push(format!(
            "[{setting}]\n  kernel: {}\n  ours:   {}",
            theirs.escape_debug(),
            ours.escape_debug()
        ));
        false
    };
    check("header".into(), &ours, &[]);
    for record in &run.records {
        let id = u16::from_ne_bytes([record.payload[0], record.payload[1]]);
        ours.clear();
        let Some(printer) = run.printers.get(&id) else {
            panic!("a record of the unknown type {id}");
        };
        let stamp = Stamp { cpu: record.cpu, time: record.time };
        line(&mut ours, options, printer, &record.payload, stamp, &run.saved, &run.facts);
        let format = printer.format();
        let pointers: Vec<&str> = format
            .fields
            .iter()
            .filter(|field| field.class == FieldClass::PtrString)
            .map(|field| field.name.as_str())
            .collect();
        if !check(format.full_name(), &ours, &pointers) && setting == "bin" {
            // A binary record has no end mark.
            break;
        }
    }
    if !rest.is_empty() {
        found
            .entry("end".into())
            .or_default()
            .push(format!("[{setting}] the kernel has {} bytes more", rest.len()));
    }
    found
}

/// One record of each event type with its text, which equals the kernel's when the test passes.
fn golden(run: &Run) -> Golden {
    let keeper = Keeper::new(&run.facts);
    let mut records: BTreeMap<String, (Vec<u8>, String)> = BTreeMap::new();
    for record in &run.records {
        let id = u16::from_ne_bytes([record.payload[0], record.payload[1]]);
        let printer = &run.printers[&id];
        let mut text = Vec::new();
        printer.event(&record.payload, &keeper, false, &mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        // Leaves out ages, which change with the time of reading, and multi-line texts, because a golden file
        // consists of lines.
        if !text.contains('\n') && !text.contains(" age=") && !text.contains(" [") {
            records.entry(printer.format().full_name()).or_insert((record.payload.clone(), text));
        }
    }
    let mut golden = keeper.golden();
    let base = run.facts.variable("vmemmap_base");
    golden.variables.extend(base.map(|base| ("vmemmap_base".to_owned(), base)));
    golden.records.extend(records.into_iter().map(|(name, (bytes, text))| (name, bytes, text)));
    golden
}

#[test]
fn the_text_is_the_kernels() {
    if !host::root_or_skip() {
        return;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let oracle = Oracle::create("known").unwrap();
    let known = oracle.tracefs().events().unwrap();
    drop(oracle);
    let events = match std::env::var("TRACER_RENDER_EVENTS") {
        Ok(pattern) => known.iter().filter(|event| event.starts_with(&pattern)).cloned().collect(),
        Err(_) => workload::events(&known),
    };
    let run = record(&events).unwrap();
    let mut types: BTreeMap<String, u64> = BTreeMap::new();
    for record in &run.records {
        let id = u16::from_ne_bytes([record.payload[0], record.payload[1]]);
        *types.entry(run.printers[&id].format().full_name()).or_default() += 1;
    }
    println!("{} records of {} event types", run.records.len(), types.len());
    let mut report = String::new();
    let mut wrong = 0;
    assert!(run.texts.len() + 1 >= SETTINGS.len(), "only {} sets of options", run.texts.len());
    for (setting, text) in &run.texts {
        let Some((_, change)) = SETTINGS.iter().find(|(name, _)| name == setting) else { continue };
        let mut options = Options::for_kernel(version_of(&release));
        change(&mut options);
        for (event, lines) in differences(&run, setting, &options, text) {
            wrong += lines.len();
            let _ = writeln!(report, "{event}: {} lines differ, such as {}", lines.len(), lines[0]);
        }
    }
    assert!(wrong == 0, "{wrong} lines differ from the kernel's\n{report}");
    if let Some(path) = std::env::var_os("TRACER_GOLDEN") {
        fs::write(path, golden(&run).write()).unwrap();
    }
    assert!(types.len() >= TYPES, "only {} event types were seen", types.len());
}
