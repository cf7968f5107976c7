//! The traced process: it repeats one operation and times itself in short batches.
//!
//! The first line of its output is its thread ids. It then answers each line of its input. `batches N CALLS` returns
//! the nanoseconds of a call in each batch. `calls N` makes these calls at full speed and returns the nanoseconds that
//! they took in all. `steady MICROS` calls at that interval until the next line. The process exits at the end of its
//! input.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use tracer_events::{Transport, register_by};

use crate::events::{Task, trace_sched_wakeup};
use crate::host::last_cpu;
use crate::workload::{getppid, pin_to_cpu};

/// Untimed calls before each batch, which warm up the caches and the clock after a pause.
const WARM: usize = 100;

/// Pause between batches, so that a reader can keep up.
const PAUSE: Duration = Duration::from_millis(1);

/// The operation of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `getppid` system calls.
    Getppid,
    /// Switches between two threads on one CPU. Each thread wakes the other and waits; a round trip has two switches.
    Switch,
    /// Calls of the victim's own function [`probed`].
    Call,
    /// Calls of [`nop`].
    Nop,
    /// Calls of [`long_nop`].
    LongNop,
    /// Hits of the victim's own event.
    Event,
}

impl Kind {
    /// The kind's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Getppid => "getppid",
            Self::Switch => "switch",
            Self::Call => "call",
            Self::Nop => "nop",
            Self::LongNop => "long-nop",
            Self::Event => "event",
        }
    }

    /// The kind with this name.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Getppid, Self::Switch, Self::Call, Self::Nop, Self::LongNop, Self::Event]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

/// A running victim, as the benchmark sees it.
#[derive(Debug)]
pub(crate) struct Victim {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Ids of the threads that make hits; the process's main thread is first.
    pub(crate) threads: Vec<u32>,
}

impl Victim {
    /// Starts a victim on the last CPU.
    pub(crate) fn start(kind: Kind) -> Result<Self> {
        Self::with(kind, None)
    }

    /// Starts a victim that registers its events in the `user_events` files of a tracefs or a mirror.
    pub(crate) fn registered(dir: &Path) -> Result<Self> {
        Self::with(Kind::Event, Some(dir))
    }

    fn with(kind: Kind, registers: Option<&Path>) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["victim", kind.name()])
            .args(registers)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the victim")?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut victim = Self { child, input, output, threads: Vec::new() };
        let line = victim.line()?;
        victim.threads = line.split_whitespace().filter_map(|id| id.parse().ok()).collect();
        Ok(victim)
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Measures a call (a switch) in this many batches of this many calls.
    pub(crate) fn batches(&mut self, batches: usize, calls: usize) -> Result<Batches> {
        writeln!(self.input, "batches {batches} {calls}")?;
        let times: Result<Vec<f64>, _> = self.line()?.split_whitespace().map(str::parse).collect();
        Ok(Batches(times?))
    }

    /// Makes this many calls (switches) at full speed, and returns the nanoseconds of one.
    pub(crate) fn calls(&mut self, calls: usize) -> Result<f64> {
        writeln!(self.input, "calls {calls}")?;
        Ok(self.line()?.trim().parse::<f64>()? / calls as f64)
    }

    /// Calls at this interval, in microseconds, until the next command.
    pub(crate) fn steady(&mut self, micros: u64) -> Result<()> {
        writeln!(self.input, "steady {micros}")?;
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }
}

/// The nanoseconds of a call in each batch of a measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batches(pub(crate) Vec<f64>);

impl Batches {
    /// The tenth percentile. Disturbances only add time, so this is the undisturbed call.
    pub(crate) fn p10(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 10).copied().unwrap_or_default()
    }
}

/// Calls that a victim makes for one measurement with [`Victim::batches`], those before each batch included.
pub(crate) fn calls_made(batches: usize, calls: usize) -> usize {
    batches * (calls + WARM)
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The victim's side: serves commands until its input ends. With a directory it first registers its events there.
///
/// # Errors
/// When its input or output fails.
pub fn serve(kind: Kind, registers: Option<&Path>) -> Result<()> {
    if let Some(dir) = registers {
        let registered = register_by(Transport::UserEvents, dir)?;
        ensure!(registered.refused.is_empty(), "{registered}");
    }
    pin_to_cpu(last_cpu()?)?;
    let mut work = Work::new(kind)?;
    let mut output = io::stdout();
    let own = rustix::thread::gettid().as_raw_nonzero();
    writeln!(output, "{own} {}", work.partner())?;
    let arrived = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = std::sync::mpsc::channel();
    let flag = Arc::clone(&arrived);
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            flag.store(true, Ordering::Release);
            if sender.send(line).is_err() {
                return;
            }
        }
        std::process::exit(0);
    });
    while let Ok(line) = receiver.recv() {
        arrived.store(false, Ordering::Release);
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok()).unwrap_or(1);
        match words.first().copied() {
            Some("batches") => {
                let times = work.batches(number(1), number(2))?;
                let times: Vec<_> = times.iter().map(f64::to_string).collect();
                writeln!(output, "{}", times.join(" "))?;
            }
            Some("calls") => {
                let start = Instant::now();
                work.run(number(1))?;
                writeln!(output, "{}", start.elapsed().as_nanos())?;
            }
            Some("steady") => {
                let pause = Duration::from_micros(number(1) as u64);
                while !arrived.load(Ordering::Acquire) {
                    work.run(2)?;
                    std::thread::sleep(pause);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The function that a victim of [`Kind::Call`] calls, as a target of probes.
#[inline(never)]
pub(crate) extern "C" fn probed(number: u64) -> u64 {
    std::hint::black_box(number + 1)
}

/// A no-op instruction of one byte (four bytes on arm64), as at USDT sites, and a return.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) extern "C" fn nop(_: u64) {
    std::arch::naked_asm!("nop", "ret")
}

/// A no-op instruction of five bytes, and a return.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) extern "C" fn long_nop(_: u64) {
    std::arch::naked_asm!(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret")
}

#[cfg(not(target_arch = "x86_64"))]
#[unsafe(naked)]
pub(crate) extern "C" fn nop(_: u64) {
    std::arch::naked_asm!("nop", "ret")
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use nop as long_nop;

/// Some tens of nanoseconds of work. The time of a nearly empty call would not show how fast the machine is.
fn spin(number: u64) -> u64 {
    for turn in 0..64_u64 {
        std::hint::black_box(turn.wrapping_mul(number));
    }
    std::hint::black_box(number)
}

/// The state of the repeated operation.
enum Work {
    Getppid,
    Call,
    Nop(extern "C" fn(u64)),
    Event,
    Switch { mine: Arc<OwnedFd>, other: Arc<OwnedFd>, partner: u32 },
}

impl Work {
    fn new(kind: Kind) -> Result<Self> {
        match kind {
            Kind::Getppid => return Ok(Self::Getppid),
            Kind::Call => return Ok(Self::Call),
            Kind::Nop => return Ok(Self::Nop(nop)),
            Kind::LongNop => return Ok(Self::Nop(long_nop)),
            Kind::Event => return Ok(Self::Event),
            Kind::Switch => {}
        }
        let mine = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let other = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (sender, receiver) = std::sync::mpsc::channel();
        let (wait, wake) = (Arc::clone(&other), Arc::clone(&mine));
        // The new thread inherits the CPU of this thread.
        std::thread::spawn(move || -> Result<()> {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32)?;
            loop {
                wait_for(&wait)?;
                notify(&wake)?;
            }
        });
        let partner = receiver.recv()?;
        Ok(Self::Switch { mine, other, partner })
    }

    /// Thread id of the second thread, or an empty text.
    fn partner(&self) -> String {
        match self {
            Self::Getppid | Self::Call | Self::Nop(_) | Self::Event => String::new(),
            Self::Switch { partner, .. } => partner.to_string(),
        }
    }

    /// Makes this many hits.
    fn run(&mut self, calls: usize) -> Result<()> {
        match self {
            Self::Getppid => (0..calls).for_each(|_| {
                std::hint::black_box(getppid());
            }),
            Self::Call => (0..calls as u64).for_each(|number| {
                std::hint::black_box(probed(spin(number)));
            }),
            Self::Nop(function) => (0..calls as u64).for_each(|number| function(spin(number))),
            Self::Event => (0..calls as i32).for_each(|number| {
                spin(number as u64);
                let task = Task { comm: "victim", pid: std::hint::black_box(number), prio: 120 };
                trace_sched_wakeup(&task, 1);
            }),
            Self::Switch { mine, other, .. } => {
                for _ in 0..calls.div_ceil(2) {
                    notify(other)?;
                    wait_for(mine)?;
                }
            }
        }
        Ok(())
    }

    /// Nanoseconds of a hit in each batch.
    fn batches(&mut self, batches: usize, calls: usize) -> Result<Vec<f64>> {
        let mut times = Vec::with_capacity(batches);
        for _ in 0..batches {
            self.run(WARM)?;
            let start = Instant::now();
            self.run(calls)?;
            times.push(start.elapsed().as_nanos() as f64 / calls as f64);
            std::thread::sleep(PAUSE);
        }
        Ok(times)
    }
}

fn notify(target: &OwnedFd) -> Result<()> {
    rustix::io::write(target, &1_u64.to_ne_bytes())?;
    Ok(())
}

fn wait_for(source: &OwnedFd) -> Result<()> {
    rustix::io::read(source, &mut [0_u8; 8])?;
    Ok(())
}
