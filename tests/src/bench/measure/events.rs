//! Measures program events (crate `tracer-events`): the cost of an untraced event and of an event that each transport
//! traces, and the memory of a hundred events with and without a class.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use object::{Object as _, ObjectSection as _, SectionFlags, SectionKind, elf};

use crate::bench::plan::Plan;
use crate::bench::raw::{At, RawData};
use crate::bench::statistics::{median, spread};
use crate::bench::victim::Victim;
use crate::events::{Task, trace_sched_wakeup};
use crate::host::{self, Tracefs};
use crate::mirror::{Mounted, set};
use crate::user_events::{Data, Word};

/// Calls of a loop over an untraced event.
const IDLE_CALLS: u32 = 20_000_000;
/// Batches and calls of a registered event; a write to the mirror is a round trip to its daemon.
const BATCHES: usize = 20;
const CALLS: usize = 100;
/// Number of times that a round enables and disables an event.
const TURNS: usize = 10;
/// Number of events in the size table.
const EVENTS: usize = 100;

const TITLE: &str = "Events of programs";

/// Measures, and returns the tables.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let mut text = format!("\n### {TITLE}\n\n");
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        without.push(idle(|_| {}));
        with.push(idle(hit));
    }
    let added: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    let (low, high) = (least(&added), -least(&added.iter().map(|one| -one).collect::<Vec<_>>()));
    let _ = writeln!(
        text,
        "An event that is not traced adds {:.2} ns to a loop of {:.2} ns ({low:.2} to {high:.2}).",
        median(&added),
        median(&without),
    );
    let at = |column| At { table: TITLE, row: "an event that is not traced", column };
    raw.keep(at("with"), "turn of the loop", "ns", &with);
    raw.keep(at("without"), "turn of the loop", "ns", &without);
    text += &by_user_events(plan, raw)?;
    text += &turning(plan.rounds, raw)?;
    let _ = write!(
        text,
        "\nBytes of {EVENTS} events with four fields and a call of each, in an object file of the optimising compiler:\n\n\
         | | text | data | bss |\n|---|---:|---:|---:|\n"
    );
    for (name, source) in [
        ("none", source(0, true)),
        ("without a class", source(EVENTS, false)),
        ("of one class", source(EVENTS, true)),
    ] {
        let [code, data, bss] = sizes(&source)?;
        let _ = writeln!(text, "| {name} | {code} | {data} | {bss} |");
    }
    Ok(text)
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn hit(number: u32) {
    trace_sched_wakeup(&Task { comm: "victim", pid: number as i32, prio: 120 }, 1);
}

/// Nanoseconds of one iteration of a loop.
#[inline(never)]
fn idle(body: impl Fn(u32)) -> f64 {
    let start = Instant::now();
    for number in 0..IDLE_CALLS {
        body(black_box(number));
    }
    start.elapsed().as_nanos() as f64 / f64::from(IDLE_CALLS)
}

/// Measures an event that the program writes to `user_events_data`: of a mirror, and of the kernel where the kernel
/// has the file. The event is enabled with a filter that drops it, and without one.
fn by_user_events(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let mut text = String::from(
        "\nOne that is registered by user_events, in nanoseconds over a hit that is disabled (smallest and largest in \
         parentheses); what probes at its\nplace cost is in the table of probes.\n\n| user_events of | filter false | recorded |\n|---|---:|---:|\n",
    );
    let mounted = Mounted::start("bench-events")?;
    let kernel = Tracefs::find_or_mount()?.root().to_owned();
    for (whose, dir) in [("the kernel", kernel.as_path()), ("the mirror", mounted.dir())] {
        if !dir.join("user_events_data").exists() {
            let _ = writeln!(text, "| {whose} | not built | |");
            continue;
        }
        let mut victim = Victim::registered(dir)?;
        let files = "events/user_events/sched_wakeup";
        let mut cells: [Vec<f64>; 2] = Default::default();
        for _ in 0..plan.rounds {
            for (cell, filter) in cells.iter_mut().zip(["pid < 0", "0"]) {
                let before = victim.batches(BATCHES, CALLS)?.p10();
                set(dir, &format!("{files}/filter"), filter)?;
                set(dir, &format!("{files}/enable"), "1")?;
                let hit = victim.batches(BATCHES, CALLS)?.p10();
                set(dir, &format!("{files}/enable"), "0")?;
                cell.push(hit - before);
            }
        }
        let _ = write!(text, "| {whose} |");
        for (cell, column) in cells.iter().zip(["filter false", "recorded"]) {
            raw.keep(At { table: TITLE, row: whose, column }, "added to a call", "ns", cell);
            let _ = write!(text, " {} |", spread(cell));
        }
        text.push('\n');
    }
    mounted.stop()?;
    Ok(text)
}

/// Measures enabling and disabling an event with no, one and a hundred registered enable bits.
fn turning(rounds: usize, raw: &mut RawData) -> Result<String> {
    let mut text = String::from(
        "\nEnabling or disabling such an event, in microseconds, by the number of registered enable bits:\n\n\
         | user_events of | none | 1 | 100 |\n|---|---:|---:|---:|\n",
    );
    let mounted = Mounted::start("bench-turning")?;
    let kernel = Tracefs::find_or_mount()?.root().to_owned();
    for (whose, dir) in [("the kernel", kernel.as_path()), ("the mirror", mounted.dir())] {
        if !dir.join("user_events_data").exists() {
            let _ = writeln!(text, "| {whose} | not built | | |");
            continue;
        }
        let _ = write!(text, "| {whose} |");
        for bits in [0_u8, 1, 100] {
            let data = Data::open(dir)?;
            let words: Vec<Word> = (0..bits.div_ceil(32).max(1)).map(|_| Word::default()).collect();
            // With 0 bits, unregisters the bit at once, so that the event exists without an enable bit.
            for bit in 0..bits.max(1) {
                let word = &words[usize::from(bit / 32)];
                data.register("turned u32 a", word, bit % 32, 0)
                    .map_err(std::io::Error::from_raw_os_error)?;
                if bits == 0 {
                    data.unregister(word, bit).map_err(std::io::Error::from_raw_os_error)?;
                }
            }
            let mut times = Vec::new();
            for _ in 0..rounds * TURNS {
                let start = Instant::now();
                for on in ["1", "0"] {
                    set(dir, "events/user_events/turned/enable", on)?;
                }
                times.push(start.elapsed().as_nanos() as f64 / 2e3);
            }
            let column = format!("{bits} enable bits");
            raw.keep(At { table: TITLE, row: whose, column: &column }, "on and off, half", "us", &times);
            let _ = write!(text, " {:.0} |", median(&times));
            for bit in 0..bits {
                let done = data.unregister(&words[usize::from(bit / 32)], bit % 32);
                done.map_err(std::io::Error::from_raw_os_error)?;
            }
        }
        text.push('\n');
    }
    mounted.stop()?;
    Ok(text)
}

/// Source text of a program with this many events, each called once.
fn source(events: usize, class: bool) -> String {
    let common = "entry { array(char, comm, 16), field(i32, pid), field(i32, prio), field(i32, target_cpu) }, \
                  assign { entry.comm = *comm; entry.pid = pid; entry.prio = prio; entry.target_cpu = cpu; }, \
                  printk(\"comm=%s pid=%d prio=%d target_cpu=%03d\", entry.comm, entry.pid, entry.prio, entry.target_cpu)";
    let params = "(comm: &[u8; 16], pid: i32, prio: i32, cpu: i32)";
    let mut text = String::new();
    if class && events > 0 {
        let _ = writeln!(text, "tracer_events::declare_event_class! {{ template{params}, {common} }}");
    }
    for event in 0..events {
        let _ = if class {
            writeln!(
                text,
                "tracer_events::define_event! {{ event_{event}, class = template, system = \"many\" }}"
            )
        } else {
            writeln!(
                text,
                "tracer_events::trace_event! {{ event_{event}{params}, system = \"many\", {common} }}"
            )
        };
        let _ = writeln!(
            text,
            "#[unsafe(no_mangle)] pub fn call_{event}{params} {{ trace_event_{event}(comm, pid, prio, cpu) }}"
        );
    }
    text
}

/// The sizes of a program's object file in memory, in bytes: read-only, writable, and zero-initialised.
fn sizes(source: &str) -> Result<[u64; 3]> {
    let root = &host::tree()?;
    let output = Command::new("cargo")
        .current_dir(root)
        .args(["build", "--release", "--lib", "--package=tracer-events", "--message-format=json"])
        .output()
        .context("cannot start cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "tracer-events is not built: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let library = text.split('"').map(PathBuf::from).rfind(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libtracer_events") && path.extension().is_some_and(|extension| extension == "rlib")
    });
    let library = library.context("cargo does not tell where tracer-events is")?;
    let dir = library.parent().context("a directory")?;
    let deps = if dir.ends_with("deps") { dir.to_owned() } else { dir.join("deps") };
    let work = std::env::temp_dir().join(format!("tracer-bench-{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    let (file, object) = (work.join("many.rs"), work.join("many.o"));
    std::fs::write(&file, source)?;
    let compiled = Command::new("rustc")
        .current_dir(root)
        .args([
            "--edition=2024",
            "--crate-type=lib",
            "-Copt-level=3",
            "-Ccodegen-units=1",
            "-Cpanic=abort",
            "-Adead_code",
        ])
        .arg(format!("--emit=obj={}", object.display()))
        .arg(format!("--extern=tracer_events={}", library.display()))
        .arg(format!("-Ldependency={}", deps.display()))
        .arg(&file)
        .output()
        .context("cannot start rustc")?;
    ensure!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let bytes = std::fs::read(&object)?;
    std::fs::remove_dir_all(&work)?;
    let mut sizes = [0; 3];
    for section in object::File::parse(&*bytes)?.sections() {
        let SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
        if sh_flags.0 & elf::SHF_ALLOC.0 == 0 {
            continue;
        }
        let kind = match section.kind() {
            SectionKind::UninitializedData => 2,
            _ if sh_flags.0 & elf::SHF_WRITE.0 != 0 => 1,
            _ => 0,
        };
        sizes[kind] += section.size();
    }
    Ok(sizes)
}
