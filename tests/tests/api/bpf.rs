//! Synthetic events that an independent eBPF program emits in the kernel. The program `tests/emitter` uses
//! `tracer-emit`; `cargo xtask ebpf` builds it and aya loads it. It reports tasks that waited longer than a limit.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use aya::maps::HashMap;
use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::programs::uprobe::UProbeScope;
use aya::programs::{PerfEvent, RawTracePoint, TracePoint, UProbe};
use aya::{Ebpf, EbpfLoader};
use rustix::mm::ProtFlags;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted, bodies, set, text};
use tracer_tests::user_events::Page;

/// The emitter's object file. It depends on the architecture, as registers of the traced thread do.
#[cfg(target_arch = "x86_64")]
static OBJECT: &[u8] = include_bytes!("../../emitter/objects/long-wait-x86_64.o");
#[cfg(target_arch = "aarch64")]
static OBJECT: &[u8] = include_bytes!("../../emitter/objects/long-wait-aarch64.o");

/// Time limit for records.
const PATIENCE: Duration = Duration::from_secs(40);

const DEFINITION: &str = "long_wait pid_t pid; char[16] comm; u64 wait_us";
const EVENT: &str = "events/synthetic/long_wait";

/// A separate mount of the BPF file system.
struct BpfFs(PathBuf);

impl BpfFs {
    fn mount(purpose: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tracer-bpffs-{purpose}-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        mount("bpf", &dir, "bpf", MountFlags::empty(), None).context("a BPF file system")?;
        Ok(Self(dir))
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A thread that sleeps and is woken once per request.
struct Waiter {
    tid: u32,
    go: mpsc::Sender<()>,
    slept: mpsc::Receiver<()>,
}

impl Waiter {
    fn start() -> Result<Self> {
        let (go, started) = mpsc::channel::<()>();
        let (tell, slept) = mpsc::channel();
        let (tell_tid, tid) = mpsc::channel();
        let sleep = move || {
            let _ = tell_tid.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
            while started.recv().is_ok() {
                (0..10).for_each(|_| thread::sleep(Duration::from_micros(300)));
                let _ = tell.send(());
            }
        };
        thread::Builder::new().name("long-waiter".to_owned()).spawn(sleep)?;
        Ok(Self { tid: tid.recv()?, go, slept })
    }

    fn wait(&self) -> Result<()> {
        self.go.send(())?;
        self.slept.recv().context("the thread is gone")
    }
}

/// Loads the program and attaches it.
fn load(pins: &Path) -> Result<Ebpf> {
    let mut program = EbpfLoader::new().default_map_pin_directory(pins).load(OBJECT)?;
    for (name, event) in [("wakeup", "sched_wakeup"), ("switch", "sched_switch")] {
        let hook: &mut TracePoint = program.program_mut(name).context(name)?.try_into()?;
        hook.load()?;
        hook.attach("sched", event)?;
    }
    Ok(program)
}

fn follow(program: &mut Ebpf, tid: u32, bound: u64) -> Result<()> {
    let mut followed: HashMap<_, u32, u64> = program.map_mut("FOLLOWED").context("FOLLOWED")?.try_into()?;
    Ok(followed.insert(tid, bound, 0)?)
}

fn records(dir: &Path) -> Result<Vec<String>> {
    Ok(bodies(&text(dir, "trace")?))
}

/// Waits until an instance has records of the waiter.
fn wait_for_records(waiter: &Waiter, dir: &Path) -> Result<()> {
    let start = Instant::now();
    let found = loop {
        waiter.wait()?;
        let found = records(dir)?;
        if !found.is_empty() {
            break found;
        }
        ensure!(start.elapsed() < PATIENCE, "nothing was emitted");
    };
    let head = format!("long_wait: pid={} comm=long-waiter wait_us=", waiter.tid);
    for line in &found {
        let wait = line.strip_prefix(&head).with_context(|| line.clone())?;
        wait.parse::<u64>().with_context(|| line.clone())?;
    }
    Ok(())
}

fn nothing_comes(waiter: &Waiter, dir: &Path, why: &str) -> Result<()> {
    set(dir, "trace", "")?;
    waiter.wait()?;
    let found = records(dir)?;
    ensure!(found.is_empty(), "{why}: {found:?}");
    Ok(())
}

#[test]
fn a_foreign_program_emits_into_the_mirror() {
    let run = || -> Result<()> {
        if !host::root_or_skip() {
            return Ok(());
        }
        // aya reads event ids from tracefs.
        let _tracefs = host::Tracefs::find_or_mount()?;
        let bpffs = BpfFs::mount("wait")?;
        let pins = bpffs.0.join("mirror");
        let pin = ["--pin", pins.to_str().context("a path in UTF-8")?];
        let at = |number: u32| {
            std::env::temp_dir().join(format!("tracer-api-bpf-{}-{number}", std::process::id()))
        };
        let mut mounted = Mounted::with(at(0), &pin)?;
        let dir = mounted.dir();
        let one = mounted.instance("one")?;

        // The program is loaded first and creates the maps.
        let mut program = load(&pins)?;
        let waiter = Waiter::start()?;
        follow(&mut program, waiter.tid, 0)?;
        set(dir, "synthetic_events", DEFINITION)?;
        nothing_comes(&waiter, dir, "the event is off")?;
        set(dir, &format!("{EVENT}/enable"), "1")?;
        wait_for_records(&waiter, dir)?;
        let lines = text(dir, "trace")?;
        ensure!(lines.contains(": long_wait: "), "{lines}");
        follow(&mut program, waiter.tid, u64::MAX)?;
        nothing_comes(&waiter, dir, "nobody waits as long")?;
        follow(&mut program, waiter.tid, 0)?;
        set(dir, &format!("{EVENT}/filter"), &format!("pid != {}", waiter.tid))?;
        nothing_comes(&waiter, dir, "the filter drops it")?;
        // Each instance has its own enable state.
        set(&one, &format!("{EVENT}/enable"), "1")?;
        wait_for_records(&waiter, &one)?;
        ensure!(records(dir)?.is_empty(), "the filter drops it");
        for dir in [&one, dir] {
            set(dir, &format!("{EVENT}/enable"), "0")?;
        }
        nothing_comes(&waiter, &one, "the event is off")?;
        // The program ignores an event of the same name with other fields.
        set(dir, "synthetic_events", "long_wait u64 wait_us; pid_t pid")?;
        set(dir, &format!("{EVENT}/enable"), "1")?;
        nothing_comes(&waiter, dir, "other fields")?;
        set(dir, &format!("{EVENT}/enable"), "0")?;

        // The program outlives a killed daemon, and the next daemon adopts the event.
        set(dir, "synthetic_events", DEFINITION)?;
        set(dir, &format!("{EVENT}/enable"), "1")?;
        wait_for_records(&waiter, dir)?;
        mounted.kill();
        waiter.wait()?;
        let next = Mounted::with(at(1), &pin)?;
        waiter.wait()?;
        set(next.dir(), "synthetic_events", DEFINITION)?;
        nothing_comes(&waiter, next.dir(), "it is not on yet")?;
        set(next.dir(), &format!("{EVENT}/enable"), "1")?;
        wait_for_records(&waiter, next.dir())?;
        drop(program);
        nothing_comes(&waiter, next.dir(), "the program is gone")?;
        // A daemon that ends normally removes the pinned names.
        next.stop_within(Duration::from_secs(60))?;
        ensure!(!pins.exists(), "{} is still there", pins.display());
        drop(mounted);
        Ok(())
    };
    run().unwrap();
}

/// The target of the emitter's uprobe.
#[inline(never)]
extern "C" fn hit(number: i64) -> i64 {
    std::hint::black_box(number)
}

/// Calls `act` until there are at least `count` records of an event, and returns their texts.
fn await_records(dir: &Path, event: &str, count: usize, act: impl Fn()) -> Result<Vec<String>> {
    let start = Instant::now();
    let head = format!("{event}: ");
    loop {
        act();
        let found: Vec<String> =
            records(dir)?.into_iter().filter_map(|line| Some(line.strip_prefix(&head)?.to_owned())).collect();
        if found.len() >= count {
            return Ok(found);
        }
        ensure!(start.elapsed() < PATIENCE, "{event}: {} of {count} records", found.len());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_kind_of_program_emits() {
    let run = || -> Result<()> {
        if !host::root_or_skip() {
            return Ok(());
        }
        let _tracefs = host::Tracefs::find_or_mount()?;
        let bpffs = BpfFs::mount("kinds")?;
        let pins = bpffs.0.join("kinds");
        let dir = std::env::temp_dir().join(format!("tracer-api-kinds-{}", std::process::id()));
        let mounted = Mounted::with(dir, &["--pin", pins.to_str().context("a path in UTF-8")?])?;
        let dir = mounted.dir();
        for definition in
            ["by_raw_tp u64 id", "by_kprobe s64 number; char[8] text", "by_perf_event pid_t pid"]
        {
            mirror::write(dir, "synthetic_events", definition.as_bytes(), true)
                .map_err(std::io::Error::from_raw_os_error)?;
        }
        set(dir, "events/synthetic/enable", "1")?;
        let mut program = EbpfLoader::new().default_map_pin_directory(&pins).load(OBJECT)?;
        let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();

        // Calls of a function, one record each.
        let hook: &mut UProbe = program.program_mut("at_kprobe").context("at_kprobe")?.try_into()?;
        hook.load()?;
        let place = tracer_tests::probes::place(hit as *const () as u64)?;
        let (file, offset) = place.rsplit_once(":0x").context("a place")?;
        let link = hook.attach(u64::from_str_radix(offset, 16)?, file, UProbeScope::CallingProcess)?;
        set(dir, "events/synthetic/by_kprobe/filter", "number < 5 && text == \"a text\"")?;
        (-3..9).for_each(|number| {
            hit(number);
        });
        hook.detach(link)?;
        hit(0);
        let found = await_records(dir, "by_kprobe", 8, || ())?;
        let expected: Vec<String> = (-3..5).map(|number| format!("number={number} text=a text")).collect();
        ensure!(found == expected, "{found:?}");

        // System calls of this thread with one number.
        let mut calls: HashMap<_, u32, u64> = program.take_map("CALLS").context("CALLS")?.try_into()?;
        calls.insert(tid, libc::SYS_getppid.cast_unsigned(), 0)?;
        let hook: &mut RawTracePoint = program.program_mut("at_raw_tp").context("at_raw_tp")?.try_into()?;
        hook.load()?;
        let link = hook.attach("sys_enter")?;
        for _ in 0..7 {
            tracer_tests::workload::getppid();
        }
        hook.detach(link)?;
        let found = await_records(dir, "by_raw_tp", 7, || ())?;
        ensure!(found == vec![format!("id={}", libc::SYS_getppid); 7], "{found:?}");

        // Page faults of this thread, one sample each.
        let hook: &mut PerfEvent =
            program.program_mut("at_perf_event").context("at_perf_event")?.try_into()?;
        hook.load()?;
        let link = hook.attach(
            PerfEventConfig::Software(SoftwareEvent::PageFaults),
            PerfEventScope::CallingProcess { cpu: None },
            SamplePolicy::Period(1),
            false,
        )?;
        let found = await_records(dir, "by_perf_event", 20, || {
            // The new page is not present yet, so the access faults.
            Page::new(ProtFlags::READ | ProtFlags::WRITE).map(drop).unwrap();
        })?;
        hook.detach(link)?;
        ensure!(found.iter().all(|line| *line == format!("pid={tid}")), "{found:?}");
        drop(program);
        mounted.stop()?;
        Ok(())
    };
    run().unwrap();
}
