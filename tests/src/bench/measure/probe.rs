//! Measures the added cost of a hit of a dynamic event, and of an event that is counted in a histogram. Tracefs and
//! bpftrace are measured where they have an equivalent. Function probes are measured where the kernel has them.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use tracer_user::event::program;

use crate::bench::bpftrace::Bpftrace;
use crate::bench::kernel_event::{EVENT, KernelEvent};
use crate::bench::plan::Plan;
use crate::bench::raw::RawData;
use crate::bench::sampling::{Competitor, Start, fastest, measure};
use crate::bench::statistics::{ratio, spread};
use crate::bench::tool::{Active, BUFFER_KB, Tool, buffer_arguments, mirror_hist};
use crate::bench::victim::{Kind, Victim, long_nop, nop, probed};
use crate::host::Tracefs;
use crate::mirror;
use crate::oracle::Oracle;
use crate::probes::place;
use crate::tracer::Tracer;

/// The register of a function's first argument, and the function of a system call.
const FIRST: &str = if cfg!(target_arch = "aarch64") { "x0" } else { "di" };
const GETPPID: &str = if cfg!(target_arch = "aarch64") { "__arm64_sys_getppid" } else { "__x64_sys_getppid" };

/// The name of the same function in the function tracer.
const FUNCTION: &str = if cfg!(target_arch = "aarch64") { GETPPID } else { "__do_sys_getppid" };

/// Events whose histograms are measured.
const ENTER: &str = "raw_syscalls/sys_enter";
const GETPPID_ENTER: &str = "syscalls/sys_enter_getppid";

/// A row of the table.
struct Row {
    what: &'static str,
    kind: Kind,
    /// The equivalent in the kernel's tracefs, where there is one.
    kernel: Option<Theirs>,
    /// bpftrace's script.
    bpftrace: Option<String>,
    ours: Ours,
}

/// The measured command or histogram of tracer.
enum Ours {
    /// Arguments of `tracer`.
    Command(Vec<String>),
    /// An event, and a line of its `trigger` in a mirror.
    Hist(&'static str, String),
}

/// The equivalent in the kernel's tracefs.
enum Theirs {
    Probe(Kernel),
    /// An event, and a line of its `trigger`.
    Hist(&'static str, String),
}

/// A definition in a file of the kernel's tracefs.
#[derive(Clone)]
struct Kernel {
    file: &'static str,
    line: String,
    filter: Option<&'static str>,
}

const TITLE: &str = "Added cost of a hit: probes and histograms";

/// Measures all rows, and returns the table.
pub(crate) fn run(plan: &Plan, raw: &mut RawData) -> Result<String> {
    let mut table = format!(
        "\n### {TITLE}\n\nNanoseconds over the untraced call (median of the rounds, smallest and largest in \
         parentheses), and ratios of the\nmedians. Histograms count all that happens on the \
         machine.\n\n| probe | untraced |",
    );
    let others: Vec<Tool> = plan.tools.iter().copied().filter(|tool| *tool != Tool::Tracer).collect();
    for tool in &plan.tools {
        let _ = write!(table, " {} |", tool.name());
    }
    for other in &others {
        let _ = write!(table, " to {} |", other.name());
    }
    let _ = writeln!(table, "\n|---|---:|{}", "---:|".repeat(plan.tools.len() + others.len()));
    let root = Tracefs::find_or_mount()?.root().to_owned();
    for row in rows(&root)?.into_iter().filter(|row| row.what.contains(&plan.rows)) {
        let (what, kind) = (row.what, row.kind);
        let all: Vec<_> =
            row.competitors().into_iter().filter(|(tool, _)| plan.tools.contains(tool)).collect();
        let (tools, all): (Vec<Tool>, Vec<_>) =
            all.into_iter().map(|(tool, start)| (tool, Competitor { name: tool.name(), start })).unzip();
        let cells = measure(plan.rounds, kind, what, &all)?;
        raw.keep_cells(TITLE, what, &all, &cells);
        let base = fastest(&cells);
        let added = |tool: Tool| {
            let at = tools.iter().position(|one| *one == tool)?;
            Some(cells[at].added(base))
        };
        let _ = write!(table, "| {what} | {base:.0} |");
        for tool in &plan.tools {
            let _ = match added(*tool) {
                Some(added) => write!(table, " {} |", spread(&added)),
                None => write!(table, " |"),
            };
        }
        for other in &others {
            let _ = match (added(Tool::Tracer), added(*other)) {
                (Some(ours), Some(theirs)) => write!(table, " {} |", ratio(&ours, &theirs)),
                _ => write!(table, " |"),
            };
        }
        table.push('\n');
        for (one, cell) in all.iter().zip(&cells).filter(|(_, cell)| cell.lost > 0) {
            eprintln!("{} lost {} hits of {what}", one.name, cell.lost);
        }
    }
    Ok(table)
}

impl Row {
    fn competitors(self) -> Vec<(Tool, Start<'static>)> {
        let Self { kernel, bpftrace, ours, .. } = self;
        let mut all: Vec<(Tool, Start<'static>)> = Vec::new();
        if let Some(kernel) = kernel {
            all.push((
                Tool::Tracefs,
                Box::new(move |_| match &kernel {
                    Theirs::Probe(kernel) => kernel.start(),
                    Theirs::Hist(event, line) => histogram(event, line),
                }),
            ));
        }
        if let Some(script) = bpftrace {
            for which in [Bpftrace::Installed, Bpftrace::Newest] {
                let script = script.clone();
                let start = Box::new(move |_: &Victim| which.start(&script).map(Active::Bpftrace));
                all.push((Tool::Bpftrace(which), start));
            }
        }
        all.push((
            Tool::Tracer,
            Box::new(move |_| match &ours {
                Ours::Command(words) => {
                    let running = Tracer::new(words)?.start()?;
                    Ok(if words[0] == "hist" { Active::Hist(running) } else { Active::Tracer(running) })
                }
                Ours::Hist(event, line) => mirror_hist(event, line),
            }),
        ));
        all
    }
}

impl Kernel {
    fn start(&self) -> Result<Active> {
        let definition = KernelEvent::define(self.file, &self.line)?;
        let oracle = Oracle::create("bench")?;
        oracle.set("buffer_size_kb", &BUFFER_KB.to_string())?;
        let event = EVENT.replace('/', ":");
        if let Some(filter) = self.filter {
            oracle.filter(&event, filter)?;
        }
        oracle.enable(&event, true)?;
        oracle.tracing(true)?;
        Ok(Active::Defined(Box::new(oracle), definition))
    }
}

/// Starts the kernel's own histogram, in an instance.
fn histogram(event: &str, line: &str) -> Result<Active> {
    let oracle = Oracle::create("bench")?;
    let trigger = format!("events/{event}/trigger");
    oracle.tracing(true)?;
    mirror::write(oracle.dir(), &trigger, line.as_bytes(), true)
        .map_err(std::io::Error::from_raw_os_error)?;
    Ok(Active::Counted(Box::new(oracle), trigger, line.to_owned()))
}

/// All rows that this kernel supports.
fn rows(root: &Path) -> Result<Vec<Row>> {
    let address = probed as *const () as u64;
    let file = place(address)?;
    // bpftrace takes the function's address in the file's address space, not its file offset.
    let path = std::env::current_exe()?;
    let symbol = format!("{}:{:#x}", path.display(), address - start(&path)?);
    let mut rows = Vec::new();
    // Arguments count up from 0.
    for (what, filter, predicate, action) in [
        ("uprobe, filter false", "a < 0", "arg0 == 0xffffffffffff", "@never = count();"),
        ("uprobe, recorded", "a >= 0", "arg0 >= 0", r#"printf("%d\n", arg0);"#),
    ] {
        let line = format!("p:{EVENT} {file} a=%{FIRST}:s64");
        rows.push(Row {
            what,
            kind: Kind::Call,
            ours: record(&format!("{line} if {filter}")),
            kernel: Some(Theirs::Probe(Kernel { file: "uprobe_events", line, filter: Some(filter) })),
            bpftrace: Some(format!("uprobe:{symbol} /{predicate}/ {{ {action} }}")),
        });
    }
    rows.extend(of_program(&path)?);
    rows.extend(of_nops(&path)?);
    for (what, file, line) in [
        ("kprobe, recorded", "kprobe_events", format!("p:{EVENT} {GETPPID} a=%{FIRST}")),
        ("function entry, recorded", "dynamic_events", format!("f:{EVENT} {FUNCTION} $arg1")),
        ("function exit, recorded", "dynamic_events", format!("f:{EVENT} {FUNCTION}%return $retval")),
    ] {
        // Omits the row if the kernel refuses the definition, because there is no equivalent to compare with.
        if root.join(file).exists() && KernelEvent::define(file, &line).is_ok() {
            rows.push(Row {
                what,
                kind: Kind::Getppid,
                ours: record(&line),
                kernel: Some(Theirs::Probe(Kernel { file, line, filter: None })),
                bpftrace: None,
            });
        }
    }
    for (what, definition, script) in [
        (
            "`t:` sched_switch, filter false",
            "sched_switch prio=next->prio if prio == 5000",
            "tracepoint:sched:sched_switch /args->next_prio == 5000/ { @never = count(); }",
        ),
        (
            "`t:` sched_switch, recorded",
            "sched_switch prev->pid next=next->pid",
            r#"tracepoint:sched:sched_switch { printf("%d %d\n", args->prev_pid, args->next_pid); }"#,
        ),
    ] {
        rows.push(Row {
            what,
            kind: Kind::Switch,
            kernel: None,
            bpftrace: Some(script.to_owned()),
            ours: record(&format!("t:{EVENT} {definition}")),
        });
    }
    for (what, in_mirror, event, histogram, script) in [
        (
            "histogram of raw_syscalls:sys_enter by id",
            Some("the same in a mirror, by id"),
            ENTER,
            "keys=id",
            "{ @[args->id] = count(); }",
        ),
        (
            "histogram by id and thread, sums",
            None,
            ENTER,
            "keys=id,common_pid:vals=id",
            "{ @[args->id, tid] = count(); @s[args->id, tid] = sum(args->id); }",
        ),
        (
            "histogram, filter false",
            None,
            ENTER,
            "keys=id if id == 5000",
            "/args->id == 5000/ { @[args->id] = count(); }",
        ),
        (
            "histogram of a system call by thread",
            Some("the same in a mirror, of a call"),
            GETPPID_ENTER,
            "keys=common_pid",
            "{ @[tid] = count(); }",
        ),
    ] {
        // Some kernels are built without histograms.
        let counted = root.join(format!("events/{event}/hist")).exists();
        let (name, line) = (event.replace('/', ":"), format!("hist:{histogram}"));
        let row = |what, ours| Row {
            what,
            kind: Kind::Getppid,
            kernel: counted.then(|| Theirs::Hist(event, line.clone())),
            bpftrace: Some(format!("tracepoint:{name} {script}")),
            ours,
        };
        rows.push(row(what, Ours::Command(["hist", &name, histogram].map(str::to_owned).to_vec())));
        rows.extend(in_mirror.map(|what| row(what, Ours::Hist(event, line.clone()))));
    }
    Ok(rows)
}

/// Rows of a program event of the victim, which runs this binary. `tracer` finds the event by its note; the other
/// tools get the address and the semaphore from that note.
fn of_program(path: &Path) -> Result<Vec<Row>> {
    let events = program::events(&std::fs::read(path)?)?;
    let event = events.iter().find(|event| event.format.name == "sched_wakeup").context("no sched_wakeup")?;
    let at = |field: &str| {
        let field = event.format.fields.iter().find(|own| own.name == field);
        field.map(|field| field.offset).context("the event has other fields")
    };
    let (path, record) = (path.display(), if cfg!(target_arch = "aarch64") { "x0" } else { "di" });
    let (comm, pid, prio, cpu) = (at("comm")?, at("pid")?, at("prio")?, at("target_cpu")?);
    let number = |at: usize| format!("(*(int32 *)uptr(arg0 + {at}))");
    let print = format!(
        r#"printf("%s %d %d %d\n", str(uptr(arg0 + {comm}), 16), {}, {}, {});"#,
        number(pid),
        number(prio),
        number(cpu)
    );
    let mut rows = Vec::new();
    for (what, filter, predicate, action) in [
        ("event of a program, filter false", "pid < 0", format!("{} < 0", number(pid)), "@never = count();"),
        ("event of a program, recorded", "pid >= 0", format!("{} >= 0", number(pid)), &*print),
    ] {
        let mut ours = ["record", "-o", "/dev/null", "--program"].map(str::to_owned).to_vec();
        ours.extend([path.to_string(), "-e".to_owned(), format!("demo:sched_wakeup if {filter}")]);
        ours.extend(buffer_arguments());
        let line = format!(
            "p:{EVENT} {path}:{:#x}({:#x}) comm=+{comm}(%{record}):ustring pid=+{pid}(%{record}):s32 \
             prio=+{prio}(%{record}):s32 cpu=+{cpu}(%{record}):s32",
            event.offset, event.reference
        );
        rows.push(Row {
            what,
            kind: Kind::Event,
            kernel: Some(Theirs::Probe(Kernel { file: "uprobe_events", line, filter: Some(filter) })),
            bpftrace: Some(format!("usdt:{path}:demo:sched_wakeup /{predicate}/ {{ {action} }}")),
            ours: Ours::Command(ours),
        });
    }
    Ok(rows)
}

/// Rows of probes on a no-op instruction: of one byte, as at USDT places, and of five bytes, as at program events.
/// Kernels since 6.18 replace the five bytes with a call.
fn of_nops(path: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (what, kind, function) in [
        ("uprobe on a nop of one byte, filter false", Kind::Nop, nop as extern "C" fn(u64)),
        ("uprobe on a nop of five bytes, filter false", Kind::LongNop, long_nop),
    ] {
        let address = function as *const () as u64;
        let line = format!("p:{EVENT} {} a=%{FIRST}:s64", place(address)?);
        rows.push(Row {
            what,
            kind,
            ours: record(&format!("{line} if a < 0")),
            kernel: Some(Theirs::Probe(Kernel { file: "uprobe_events", line, filter: Some("a < 0") })),
            bpftrace: Some(format!(
                "uprobe:{}:{:#x} /arg0 == 0xffffffffffff/ {{ @never = count(); }}",
                path.display(),
                address - start(path)?
            )),
        });
    }
    Ok(rows)
}

/// Arguments of `tracer record` for a definition.
fn record(definition: &str) -> Ours {
    let mut arguments = ["record", "-o", "/dev/null", "-p", definition].map(str::to_owned).to_vec();
    arguments.extend(buffer_arguments());
    Ours::Command(arguments)
}

/// The address at which this program's file is mapped.
fn start(path: &Path) -> Result<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let line = maps.lines().find(|line| line.ends_with(&*path.to_string_lossy()));
    let start = line.and_then(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok());
    start.context("this program is nowhere in its memory")
}
