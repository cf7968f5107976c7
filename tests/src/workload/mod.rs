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
mod provoked;
mod raw;
mod site;
mod time;
mod values;

use std::collections::BTreeSet;
use std::io;

pub use incidental::INCIDENTAL;
pub use job::{Finished, Job};
pub use provoked::{Count, Provoked};
pub use raw::{
    absent_names, be_real_time, failing_calls, getpgid, getppid, getpriority, getsid, pin_to_cpu, terminal,
};
pub use site::Site;

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
