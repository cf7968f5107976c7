//! What events of programs cost (crate `tracer-events`): one that nobody traces, one that is traced by each of the ways, and the
//! memory of a hundred with a class and without.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use object::{Object as _, ObjectSection as _, SectionFlags, SectionKind, elf};
use tracer_events::{Transport, register_by};

use super::{Plan, median};
use crate::events::{Task, trace_sched_wakeup};
use crate::mirror::{Mounted, set};

/// Calls of a loop over an event that nobody traces.
const IDLE_CALLS: u32 = 20_000_000;
/// Calls of one that is written to the mirror, of which each is a round trip.
const WRITTEN_CALLS: u32 = 5_000;
/// Events of the size table.
const EVENTS: usize = 100;

/// Measures and gives the tables.
pub(super) fn run(plan: &Plan) -> Result<String> {
    let mut text = String::from("\n### Events of programs\n\n");
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        without.push(idle(|_| {}));
        with.push(idle(hit));
    }
    let added: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with - without).collect();
    let (low, high) = (least(&added), -least(&added.iter().map(|one| -one).collect::<Vec<_>>()));
    let _ = writeln!(
        text,
        "An event that nobody traces adds {:.2} ns to a loop of {:.2} ns ({low:.2} to {high:.2}).",
        median(&added),
        median(&without),
    );
    let written = written(plan.rounds)?;
    let _ = writeln!(
        text,
        "\nOne that is written to the mirror's `user_events_data` and recorded costs {:.0} ns ({:.0} at best); what probes at its \
         place cost is among the probes above.",
        median(&written),
        least(&written),
    );
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

/// Nanoseconds of a turn of a loop.
#[inline(never)]
fn idle(body: impl Fn(u32)) -> f64 {
    let start = Instant::now();
    for number in 0..IDLE_CALLS {
        body(black_box(number));
    }
    start.elapsed().as_nanos() as f64 / f64::from(IDLE_CALLS)
}

/// Nanoseconds of an event that goes through the mirror's file, each round.
fn written(rounds: usize) -> Result<Vec<f64>> {
    let mounted = Mounted::start("bench-events")?;
    let dir = mounted.dir();
    let registered = register_by(Transport::MirrorUserEvents, dir)?;
    ensure!(registered.refused.is_empty(), "{registered}");
    set(dir, "events/user_events/sched_wakeup/enable", "1")?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        (0..WRITTEN_CALLS).for_each(hit);
        times.push(start.elapsed().as_nanos() as f64 / f64::from(WRITTEN_CALLS));
    }
    set(dir, "events/user_events/sched_wakeup/enable", "0")?;
    // The events are this process's, and the mirror's daemon goes before it.
    drop(mounted);
    Ok(times)
}

/// A program with so many events, each called once.
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

/// Bytes that a program's object file has in memory: what is only read, what is written, and what is zero at first.
fn sizes(source: &str) -> Result<[u64; 3]> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?;
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
