//! A deterministic workload: parts that provoke known events with known arguments. The binary `tracer-workload` runs
//! them in a separate process.
//!
//! The process waits for a byte on its standard input before its first part, so that a test can first restrict
//! tracing to its pid ([`Job`]). Everything is local: a scratch directory, loopback sockets, fixed children. Each
//! part lists the events that it provokes, with a count per round. Exact counts hold on every kernel that has the
//! event.

mod files;
mod incidental;
mod ipc;
mod job;
mod memory;
mod network;
mod process;
mod raw;
mod time;
mod values;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub use incidental::INCIDENTAL;
pub use job::{Finished, Job};
pub use raw::{getpgid, getppid, getpriority, getsid, pin_to_cpu, terminal};

/// How often a round of a part provokes an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Exactly this often.
    Exactly(u64),
    /// This often or more: the C library or the kernel may add hits. 0 is for events that depend on the machine or on
    /// timing.
    AtLeast(u64),
}

/// One event that a part provokes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provoked {
    /// `system:name`.
    pub event: String,
    /// How often in one round, over the workload's process and its children.
    pub count: Count,
}

/// A part of the workload.
pub struct Part {
    /// Name, as the command line takes it.
    pub name: &'static str,
    /// One round.
    run: fn(&Site) -> io::Result<()>,
    /// The events of one round.
    provokes: fn() -> Vec<Provoked>,
}

impl Part {
    /// Runs one round.
    ///
    /// # Errors
    /// When a step fails that should succeed; steps that should fail are ignored.
    pub fn run(&self, site: &Site) -> io::Result<()> {
        (self.run)(site)
    }

    /// The events that one round provokes.
    pub fn provokes(&self) -> Vec<Provoked> {
        (self.provokes)()
    }
}

/// Every part, in the order in which `all` runs them.
pub const PARTS: &[Part] = &[
    Part {
        name: "syscalls",
        run: |_| {
            raw::plain_calls();
            Ok(())
        },
        provokes: raw::plain_events,
    },
    Part { name: "files", run: files::disk, provokes: files::disk_events },
    Part { name: "tmpfs", run: files::memory, provokes: files::memory_events },
    Part { name: "locks", run: files::locks, provokes: files::lock_events },
    Part { name: "memory", run: memory::run, provokes: memory::events },
    Part { name: "pipes", run: ipc::run, provokes: ipc::events },
    Part { name: "network", run: network::run, provokes: network::events },
    Part { name: "process", run: process::run, provokes: process::events },
    Part { name: "signals", run: process::signals, provokes: process::signal_events },
    Part { name: "time", run: time::run, provokes: time::events },
    Part { name: "values", run: values::run, provokes: values::events },
];

/// The part with this name.
pub fn part(name: &str) -> Option<&'static Part> {
    PARTS.iter().find(|part| part.name == name)
}

/// Every event that the workload can provoke, promised or incidental, sorted and limited to `known`.
pub fn events(known: &[String]) -> Vec<String> {
    let promised = PARTS.iter().flat_map(Part::provokes).map(|provoked| provoked.event);
    let all: BTreeSet<String> = promised.chain(INCIDENTAL.iter().map(ToString::to_string)).collect();
    all.into_iter().filter(|event| known.contains(event)).collect()
}

/// The places where a workload may write: two empty directories, which every part leaves empty.
#[derive(Clone, Debug)]
pub struct Site {
    /// On a disk's file system.
    pub dir: PathBuf,
    /// On a tmpfs.
    pub shm: PathBuf,
}

impl Site {
    /// Makes both directories: one under `TRACER_TESTS_DIR` or the directory for temporary files, the other in
    /// `/dev/shm`.
    ///
    /// # Errors
    /// When a directory cannot be made.
    pub fn create() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tracer-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let disk = std::env::var_os("TRACER_TESTS_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let shm =
            if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let site = Self { dir: disk.join(format!("{name}-disk")), shm: shm.join(format!("{name}-shm")) };
        std::fs::create_dir(&site.dir)?;
        std::fs::create_dir(&site.shm)?;
        Ok(site)
    }

    /// Removes both directories.
    pub fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.dir);
        let _ = std::fs::remove_dir_all(&self.shm);
    }
}

/// Events with exact counts.
fn exactly(list: &[(&str, u64)]) -> Vec<Provoked> {
    let one = |(event, n): &(&str, u64)| Provoked { event: (*event).to_owned(), count: Count::Exactly(*n) };
    list.iter().map(one).collect()
}

/// Events with minimum counts.
fn at_least(list: &[(&str, u64)]) -> Vec<Provoked> {
    let one = |(event, n): &(&str, u64)| Provoked { event: (*event).to_owned(), count: Count::AtLeast(*n) };
    list.iter().map(one).collect()
}

/// `sys_enter_X` and `sys_exit_X`, each with this count.
fn syscalls(list: &[(&str, Count)]) -> Vec<Provoked> {
    list.iter()
        .flat_map(|(name, count)| {
            ["enter", "exit"]
                .map(|side| Provoked { event: format!("syscalls:sys_{side}_{name}"), count: *count })
        })
        .collect()
}
