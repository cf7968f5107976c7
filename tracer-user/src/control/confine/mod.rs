//! What each process of this program keeps once it is set up: capabilities and system calls, and why.
//!
//! A [`Role`] is a process's task. Its capabilities are a table with reasons, which `tracer doctor` prints, and its system calls
//! ([`calls`]) are what its code and the libraries below it use. Capabilities are dropped before threads start, as they belong to
//! a thread; the filter comes when everything is set up, and covers all threads.
//!
//! A host that refuses the one or the other is told of in one warning; the program then goes on with what it has. That
//! is no way around a security module: it is less protection, not more access.

mod calls;

use crate::sys::{
    privileges::{self, CapabilitySet},
    seccomp::{self, Rule, Scope},
};

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `tracer mount`: serves the mirror.
    Daemon,
    /// Closes perf tracepoints in the daemon's place; holds descriptors and nothing else.
    Closer,
    /// Opens users' files in the daemon's place.
    Opener,
    /// Reads and writes clients' memory in the daemon's place.
    ClientMemory,
    /// `tracer record` once everything is attached.
    Recorder,
    /// `tracer hist` once everything is attached.
    Histogram,
    /// `tracer list` once tracefs is open.
    Reader,
}

/// A capability with its name and what it is kept for.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// The capability.
    pub set: CapabilitySet,
    /// As in capabilities(7).
    pub name: &'static str,
    /// What fails without it.
    pub reason: &'static str,
}

const fn kept(set: CapabilitySet, name: &'static str, reason: &'static str) -> Kept {
    Kept { set, name, reason }
}

const DAEMON: &[Kept] = &[
    kept(CapabilitySet::BPF, "CAP_BPF", "load programs and make maps when events are enabled"),
    kept(CapabilitySet::PERFMON, "CAP_PERFMON", "attach programs and let them read kernel memory"),
    kept(
        CapabilitySet::SYS_ADMIN,
        "CAP_SYS_ADMIN",
        "mount and unmount the mirror; look BPF objects of modules up by id; read /proc/PID/stack",
    ),
    kept(CapabilitySet::SYSLOG, "CAP_SYSLOG", "read kernel addresses where kernel.kptr_restrict is 1"),
    kept(
        CapabilitySet::SYS_PTRACE,
        "CAP_SYS_PTRACE",
        "see what a client waits for that reads a page of user_events_status",
    ),
];

const OPENER: &[Kept] = &[kept(
    CapabilitySet::DAC_READ_SEARCH,
    "CAP_DAC_READ_SEARCH",
    "open the programs of other users that uprobe_events and program_events name",
)];

const CLIENT_MEMORY: &[Kept] = &[
    kept(
        CapabilitySet::SYS_PTRACE,
        "CAP_SYS_PTRACE",
        "reach the memory that clients register for user events",
    ),
    kept(CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "open /proc/PID/mem of processes of other users"),
];

/// Of `tracer record` and `tracer hist`.
const RECORDER: &[Kept] = &[
    kept(
        CapabilitySet::BPF,
        "CAP_BPF",
        "read counts and tables, which kernels before 5.19 refuse without it",
    ),
    kept(CapabilitySet::SYSLOG, "CAP_SYSLOG", "resolve kernel addresses to names as they turn up"),
];

impl Role {
    /// The roles with their names, the daemon first.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Daemon, "mount"),
        (Self::Closer, "closer"),
        (Self::Opener, "opener"),
        (Self::ClientMemory, "client memory"),
        (Self::Recorder, "record"),
        (Self::Histogram, "hist"),
        (Self::Reader, "list"),
    ];

    /// The capabilities that it keeps, with reasons.
    pub fn capabilities(self) -> &'static [Kept] {
        match self {
            Self::Daemon => DAEMON,
            Self::Opener => OPENER,
            Self::ClientMemory => CLIENT_MEMORY,
            Self::Recorder | Self::Histogram => RECORDER,
            Self::Closer | Self::Reader => &[],
        }
    }

    fn set(self) -> CapabilitySet {
        self.capabilities().iter().fold(CapabilitySet::empty(), |set, kept| set | kept.set)
    }

    fn rules(self) -> Vec<Rule> {
        match self {
            Self::Daemon => calls::daemon(),
            Self::Closer => calls::closer(),
            Self::Opener => calls::opener(),
            Self::ClientMemory => calls::client_memory(),
            Self::Recorder | Self::Histogram | Self::Reader => calls::reader(),
        }
    }
}

/// Drops all capabilities but the role's from the calling thread and the threads it will start, and sets `no_new_privs`.
pub fn drop_capabilities(role: Role) {
    if let Err(error) = privileges::drop_to(role.set()) {
        tracing::warn!("capabilities that are not needed stay: {error}");
    }
}

/// Keeps other processes of the same user from reading this one's memory, and the kernel from leaving it in a core dump.
pub fn hide_memory() {
    if let Err(error) = privileges::hide_memory() {
        tracing::warn!("memory stays open to processes of the same user: {error}");
    }
}

/// Allows all threads the role's system calls and no others. Programs can be started no more.
pub fn filter_calls(role: Role) {
    if let Err(error) = filter(role, Scope::Process) {
        tracing::warn!("system calls are not filtered: {error}");
    }
}

fn filter(role: Role, scope: Scope) -> Result<(), seccomp::SeccompError> {
    seccomp::allow(role.rules(), calls::ABSENT, scope)
}

/// All of it at once, for a process that has one thread and everything open.
pub fn confine(role: Role) {
    drop_capabilities(role);
    hide_memory();
    filter_calls(role);
}

#[cfg(test)]
mod tests;
