//! The competitors. Each is started on an event with a filter; stopping it returns the number of lost hits.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};
use tracer_user::sys::bpf::prog::{Prog, ProgKind};

use crate::host;
use crate::mirror::{self, Mounted, set};
use crate::oracle::Oracle;
use crate::tracer::{Running, Tracer};

use super::bpftrace::{Bpftrace, RunningBpftrace};
use super::kernel_event::KernelEvent;
use super::tracepoint::Event;

/// Buffer size of every competitor, in kilobytes per CPU.
pub(crate) const BUFFER_KB: u32 = 16 * 1024;

/// A competitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// The kernel's own tracefs, in an instance.
    Tracefs,
    /// A bpftrace, which prints the event's fields.
    Bpftrace(Bpftrace),
    /// The `tracer` program.
    Tracer,
}

/// A running competitor.
pub(crate) enum Active {
    Tracefs(Box<Oracle>),
    Bpftrace(RunningBpftrace),
    Tracer(Running),
    /// A mounted mirror, and the directory of its instance.
    Mirror(Box<Mounted>, PathBuf),
    /// An instance of the kernel's tracefs with a dynamic event, and the event's definition. The definition must be
    /// dropped after the instance.
    Defined(Box<Oracle>, KernelEvent),
    /// The kernel's own histogram, in an instance: its file and line.
    Counted(Box<Oracle>, String, String),
    /// `tracer hist`.
    Hist(Running),
    /// A histogram in a separate mirror.
    MirrorHist(Box<Mounted>),
    /// Instances of the kernel's tracefs, and a trigger in the first one: its event and its line.
    Consumed {
        first: Box<Oracle>,
        second: Option<Box<Oracle>>,
        trigger: Option<(&'static str, String)>,
    },
    /// A raw tracepoint program that only returns.
    Empty(OwnedFd),
}

/// `return 0`
const RETURN_0: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

/// Attaches the empty program to the event's raw tracepoint: the lower bound of every eBPF tracer.
pub(crate) fn empty(raw_tracepoint: &str) -> Result<Active> {
    let program = Prog::load(ProgKind::RawTracepoint, &RETURN_0, "empty")?;
    // The attachment keeps the program alive.
    Ok(Active::Empty(program.attach_raw_tracepoint(raw_tracepoint)?))
}

/// Makes an empty instance, of the kernel's tracefs or of a separate mirror (for [`Tool::Tracer`]).
pub(crate) fn instance(tool: Tool) -> Result<(Active, PathBuf)> {
    if tool == Tool::Tracefs {
        let oracle = Oracle::create("bench")?;
        let dir = oracle.dir().to_owned();
        return Ok((Active::Tracefs(Box::new(oracle)), dir));
    }
    let mounted = Mounted::start("bench")?;
    let dir = mounted.instance("bench")?;
    Ok((Active::Mirror(Box::new(mounted), dir.clone()), dir))
}

/// Enables the event in an instance of a separate mirror, without a reader.
pub(crate) fn mirror(event: &Event, filter: &str) -> Result<Active> {
    let mounted = Mounted::start("bench")?;
    let dir = mounted.instance("bench")?;
    set(&dir, "buffer_size_kb", &BUFFER_KB.to_string())?;
    let files = format!("events/{}", event.name.replace(':', "/"));
    set(&dir, &format!("{files}/filter"), filter)?;
    set(&dir, &format!("{files}/enable"), "1")?;
    Ok(Active::Mirror(Box::new(mounted), dir))
}

/// Writes a histogram to an event's `trigger` (`system/name`) in an instance of a separate mirror.
pub(crate) fn mirror_hist(event: &str, line: &str) -> Result<Active> {
    let mounted = Mounted::start("bench")?;
    let dir = mounted.instance("bench")?;
    set(&dir, &format!("events/{event}/trigger"), line)?;
    Ok(Active::MirrorHist(Box::new(mounted)))
}

impl Tool {
    /// All tools; the base of the ratios is first.
    pub const ALL: [Self; 4] =
        [Self::Tracefs, Self::Bpftrace(Bpftrace::Installed), Self::Bpftrace(Bpftrace::Newest), Self::Tracer];

    /// The tool's name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tracefs => "tracefs",
            Self::Bpftrace(Bpftrace::Installed) => "bpftrace",
            Self::Bpftrace(Bpftrace::Newest) => "newest-bpftrace",
            Self::Tracer => "tracer",
        }
    }

    /// Whether the tool can run here.
    pub fn is_there(self) -> bool {
        match self {
            Self::Tracefs => host::Tracefs::find_or_mount().is_ok(),
            Self::Bpftrace(which) => which.version().is_some(),
            Self::Tracer => {
                host::binary("tracer", "TRACER_BIN").is_ok()
                    && Tracer::new(["record", "--help"]).and_then(Tracer::run).is_ok_and(|outcome| {
                        outcome.text().contains("--ready-fd") || outcome.text().contains("-e")
                    })
            }
        }
    }

    /// Starts the tool on the event; `filter` is in the kernel's language, and `predicate` is its equivalent for
    /// bpftrace.
    pub(crate) fn start(self, event: &Event, filter: &str, predicate: &str) -> Result<Active> {
        match self {
            Self::Tracefs => {
                let oracle = Oracle::create("bench")?;
                oracle.set("buffer_size_kb", &BUFFER_KB.to_string())?;
                oracle.filter(event.name, filter).with_context(|| format!("{} if {filter}", event.name))?;
                oracle.enable(event.name, true)?;
                oracle.tracing(true)?;
                Ok(Active::Tracefs(Box::new(oracle)))
            }
            Self::Bpftrace(which) => which.start(&event.bpftrace(predicate)).map(Active::Bpftrace),
            Self::Tracer => {
                let record = Tracer::record()?.args(buffer_arguments()).args(["-o", "/dev/null"]);
                Ok(Active::Tracer(record.event(event.name, Some(filter)).start()?))
            }
        }
    }
}

/// Interrupts a child as Ctrl-C does and waits for its end; kills it after ten seconds.
pub(crate) fn end(child: &mut Child) -> Result<()> {
    rustix::process::kill_process(Pid::from_child(child), Signal::INT)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The arguments that set the buffer size of `tracer`.
pub(crate) fn buffer_arguments() -> [String; 2] {
    ["--buffer-size-kb".to_owned(), BUFFER_KB.to_string()]
}

/// Removes a trigger of the kernel's tracefs.
fn remove(oracle: &Oracle, file: &str, line: &str) -> Result<()> {
    let removed = mirror::write(oracle.dir(), file, format!("!{line}").as_bytes(), true);
    Ok(removed.map_err(std::io::Error::from_raw_os_error)?)
}

impl Active {
    /// The process that collects, if there is one.
    pub(crate) fn process(&self) -> Option<u32> {
        match self {
            Self::Tracefs(_)
            | Self::Defined(..)
            | Self::Counted(..)
            | Self::Consumed { .. }
            | Self::Empty(_) => None,
            Self::Bpftrace(bpftrace) => Some(bpftrace.pid()),
            Self::Tracer(running) | Self::Hist(running) => Some(running.pid()),
            Self::Mirror(mounted, _) | Self::MirrorHist(mounted) => Some(mounted.pid()),
        }
    }

    /// Stops tracing and returns the number of lost hits.
    pub(crate) fn stop(self) -> Result<u64> {
        match self {
            Self::Tracefs(oracle) => {
                oracle.tracing(false)?;
                oracle.lost()
            }
            Self::Bpftrace(bpftrace) => bpftrace.stop(),
            Self::Empty(_hook) => Ok(0),
            Self::Defined(oracle, _definition) => {
                oracle.tracing(false)?;
                oracle.enable("tracer_bench:hit", false)?;
                let lost = oracle.lost();
                drop(oracle);
                lost
            }
            Self::Counted(oracle, file, line) => {
                remove(&oracle, &file, &line)?;
                Ok(0)
            }
            Self::Consumed { first, second, trigger } => {
                if let Some((event, line)) = trigger {
                    remove(&first, &format!("events/{event}/trigger"), &line)?;
                }
                for oracle in [Some(first), second].into_iter().flatten() {
                    oracle.tracing(false)?;
                }
                Ok(0)
            }
            Self::Hist(running) => {
                running.stop()?.success()?;
                Ok(0)
            }
            Self::MirrorHist(mounted) => {
                mounted.stop()?;
                Ok(0)
            }
            Self::Mirror(mounted, dir) => {
                set(&dir, "tracing_on", "0")?;
                let lost = mirror::stat(&dir, "overrun")? + mirror::stat(&dir, "dropped events")?;
                mounted.stop()?;
                Ok(lost)
            }
            Self::Tracer(running) => {
                let counts = running.stop()?.success()?.counts();
                Ok(counts.get("total").map_or(0, |total| total.dropped))
            }
        }
    }
}
