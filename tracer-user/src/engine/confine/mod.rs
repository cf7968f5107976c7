//! The capabilities and system calls that each process of this program keeps after its setup, with reasons.
//!
//! A [`Role`] is the task of a process. Its capabilities are a table with reasons, which `tracer doctor` prints. Its
//! system calls ([`calls`]) are those that its code and libraries use. Capabilities belong to a thread, so they are
//! dropped before other threads start. The filter is installed when everything is set up, and covers all threads.
//!
//! The helpers that need no access to other processes can also open only the files of their task ([`confine_to`]). The
//! daemon cannot have such a limit, because it unmounts the mirror and reads files of its clients in /proc. Its filter
//! allows no open for writing and no change of names instead.
//!
//! If the host refuses one of these, the program logs one warning and continues. It does not try to circumvent a
//! security module: the result is less protection, not more access.

mod calls;

use std::os::fd::BorrowedFd;

use crate::sys::process::{
    landlock::{self, FileAccess},
    privileges::{self, CapabilitySet},
    seccomp::{self, Rule, Scope},
};

/// The task of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `tracer mount`: serves the mirror.
    Daemon,
    /// Closes perf tracepoints for the daemon; holds only descriptors.
    Closer,
    /// Opens user files for the daemon.
    Opener,
    /// Reads and writes clients' memory for the daemon.
    ClientMemory,
    /// Writes the state file for the daemon.
    StateWriter,
    /// `tracer record` once everything is attached.
    Recorder,
    /// `tracer hist` once everything is attached.
    Histogram,
    /// `tracer list` once tracefs is open.
    Reader,
}

/// A capability with its name and the reason to keep it.
#[derive(Clone, Copy, Debug)]
pub struct KeptCapability {
    /// The capability.
    pub set: CapabilitySet,
    /// Its name as in capabilities(7).
    pub name: &'static str,
    /// The operations that need it.
    pub reason: &'static str,
}

const fn kept(set: CapabilitySet, name: &'static str, reason: &'static str) -> KeptCapability {
    KeptCapability { set, name, reason }
}

const DAEMON: &[KeptCapability] = &[
    kept(CapabilitySet::BPF, "CAP_BPF", "load programs and make maps when events are enabled"),
    kept(CapabilitySet::PERFMON, "CAP_PERFMON", "attach programs and let them read kernel memory"),
    kept(
        CapabilitySet::SYS_ADMIN,
        "CAP_SYS_ADMIN",
        "unmount the mirror; look BPF objects of modules up by id; read /proc/PID/stack",
    ),
    kept(CapabilitySet::SYSLOG, "CAP_SYSLOG", "read kernel addresses where kernel.kptr_restrict is 1"),
    kept(
        CapabilitySet::SYS_PTRACE,
        "CAP_SYS_PTRACE",
        "see what a client waits for, the stack of a mark's writer, the files of a traced process",
    ),
];

const OPENER: &[KeptCapability] = &[kept(
    CapabilitySet::DAC_READ_SEARCH,
    "CAP_DAC_READ_SEARCH",
    "open the programs of other users that uprobe_events and program_events name",
)];

const CLIENT_MEMORY: &[KeptCapability] = &[
    kept(
        CapabilitySet::SYS_PTRACE,
        "CAP_SYS_PTRACE",
        "reach the memory that clients register for user events",
    ),
    kept(CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE", "open /proc/PID/mem of processes of other users"),
];

/// Capabilities of `tracer record` and `tracer hist`.
const RECORDER: &[KeptCapability] = &[
    kept(
        CapabilitySet::BPF,
        "CAP_BPF",
        "read counts and tables, which kernels before 5.19 refuse without it",
    ),
    kept(CapabilitySet::SYSLOG, "CAP_SYSLOG", "resolve kernel addresses to names as they turn up"),
];

impl Role {
    /// The roles with their names, the daemon first.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Daemon, "mount"),
        (Self::Closer, "closer"),
        (Self::Opener, "opener"),
        (Self::ClientMemory, "client memory"),
        (Self::StateWriter, "state file"),
        (Self::Recorder, "record"),
        (Self::Histogram, "hist"),
        (Self::Reader, "list"),
    ];

    /// The capabilities that the role keeps, with reasons.
    pub fn capabilities(self) -> &'static [KeptCapability] {
        match self {
            Self::Daemon => DAEMON,
            Self::Opener => OPENER,
            Self::ClientMemory => CLIENT_MEMORY,
            Self::Recorder | Self::Histogram => RECORDER,
            Self::Closer | Self::StateWriter | Self::Reader => &[],
        }
    }

    fn set(self) -> CapabilitySet {
        self.capabilities().iter().fold(CapabilitySet::empty(), |set, kept| set | kept.set)
    }
}

/// Drops all capabilities but the role's from the calling thread and the threads it will start, and sets
/// `no_new_privs`.
pub fn drop_capabilities(role: Role) {
    if let Err(error) = privileges::drop_to(role.set()) {
        tracing::warn!("cannot drop unneeded capabilities: {error}");
    }
}

/// Makes this process non-dumpable: other processes of the same user cannot read its memory, and it leaves no core
/// dump.
pub fn hide_memory() {
    if let Err(error) = privileges::hide_memory() {
        tracing::warn!("cannot hide memory from processes of the same user: {error}");
    }
}

/// Allows all threads these system calls and no others. From then on this process cannot execute programs.
fn filter_calls(rules: Vec<Rule>) {
    if let Err(error) = seccomp::allow(rules, calls::ABSENT, Scope::Process) {
        tracing::warn!("cannot filter system calls: {error}");
    }
}

/// Allows all threads the daemon's system calls and no others. A daemon that pins maps can remove names.
pub fn filter_calls_of_daemon(pins: bool) {
    filter_calls(calls::of(Role::Daemon, pins));
}

/// Drops capabilities, hides memory and filters system calls, for a process with one thread that has everything open.
pub fn confine(role: Role) {
    drop_capabilities(role);
    hide_memory();
    filter_calls(calls::of(role, false));
}

/// As [`confine`]; the process can then open only these files. Where the kernel has no Landlock, it can open others.
pub fn confine_to(role: Role, files: &[(BorrowedFd<'_>, FileAccess)]) {
    drop_capabilities(role);
    hide_memory();
    match landlock::limit(files) {
        Ok(true) => {}
        Ok(false) => tracing::debug!("the kernel has no Landlock: files are not limited"),
        Err(error) => tracing::warn!("cannot limit the files that this process can open: {error}"),
    }
    filter_calls(calls::of(role, false));
}

#[cfg(test)]
mod tests;
