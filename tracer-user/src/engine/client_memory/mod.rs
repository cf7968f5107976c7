//! Access to clients' memory, through a separate process.
//!
//! Clients register addresses at which user events set a bit. The daemon does not write there itself: the address may
//! be a mapping of a file system that never answers, and the thread id may by then belong to another program. A
//! second process writes there instead, with only the two capabilities that the access needs. It uses descriptors
//! that are bound to the address space that registered ([`space`]), in threads that may block ([`process`]). The
//! daemon sends orders ([`message`]), one at a time for each client ([`lanes`]), and waits for none of them longer
//! than a deadline ([`handle`]).
//!
//! `CAP_SYS_PTRACE` passes the kernel's ptrace(2) check. `/proc/PID/mem` is a file of mode 0600 that belongs to the
//! client's user, so `CAP_DAC_OVERRIDE` is needed as well.

mod handle;
mod lanes;
mod message;
mod process;
mod space;

#[cfg(test)]
use std::time::Duration;
use std::{io, os::fd::AsFd, process::Stdio};

use super::confine::{self, Role};
use crate::sys::process::worker::{Worker, ignore_hangup};

pub use handle::{ClientMemory, LookCallback, Ticket};
pub use lanes::Then;
pub use message::{Bit, Look, Op, Seen, Text};

/// The hidden command of this program that runs as the process.
pub const COMMAND: &str = "client-memory";

/// Starts the process.
///
/// # Errors
/// The process cannot be started.
pub fn start() -> io::Result<Worker> {
    // A thread that blocks in a client's memory would hold standard error open after the daemon's end.
    Worker::start(COMMAND, None, Stdio::null())
}

/// Runs in that process: executes orders until the daemon ends.
///
/// # Errors
/// Standard input is not a socket.
pub fn run() -> io::Result<()> {
    // The process receives no signals from a terminal.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"tracer-memory");
    ignore_hangup()?;
    confine::confine(Role::ClientMemory);
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    process::serve(socket)?;
    // Do not wait for threads that block in a client's memory.
    std::process::exit(0)
}

/// Decodes a packet as either side does and encodes the result again, for tests with packets that our processes never
/// send.
#[cfg(any(test, feature = "internals"))]
pub fn read_again(packet: &[u8]) -> [Option<Vec<u8>>; 2] {
    let order = message::Order::read(packet).map(|order| message::packet(&order));
    [order, message::Report::read(packet).map(|report| message::packet(&report))]
}

/// Access to clients' memory from threads of this process, for tests. A change of events waits for a minute, so that
/// a busy machine does not end it.
#[cfg(test)]
pub(crate) fn in_process() -> ClientMemory {
    let (ours, theirs) = tests::sockets();
    std::thread::spawn(move || process::serve(theirs));
    ClientMemory::with_patience(vec![ours], Duration::from_secs(60)).unwrap()
}

/// The identity of a process's address space, for tests.
#[cfg(test)]
pub(crate) fn identity_of(process: u32) -> rustix::io::Result<Vec<u8>> {
    space::Space::open(process).map(|space| space.identity().to_vec())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::{fd::OwnedFd, unix::process::CommandExt},
        process::{Child, Command},
    };

    use rustix::{
        net::{AddressFamily, SocketFlags, SocketType, socketpair},
        thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities},
    };

    use super::*;

    /// The capabilities of the process.
    const CAPABILITIES: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_OVERRIDE);

    /// Connected sockets of the kind that the two sides use.
    pub(super) fn sockets() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// Starts a program that executes cat, which has begun to run as the user that the command names.
    pub(super) fn start_cat(command: &mut Command) -> io::Result<Child> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Ok(child)
    }

    /// Whether a thread with only these capabilities can open the memory of another user's process.
    fn opens(pid: u32, keep: CapabilitySet) -> bool {
        let open = || {
            set_capabilities(
                None,
                CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() },
            )
            .unwrap();
            std::fs::File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))
        };
        // Capabilities belong to a thread.
        let opened = std::thread::scope(|scope| scope.spawn(open).join().unwrap());
        match opened {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn both_capabilities_are_needed_and_enough() {
        if !capabilities(None).is_ok_and(|own| own.effective.contains(CAPABILITIES)) {
            return eprintln!("skipped: cap_sys_admin: CAP_SYS_PTRACE and CAP_DAC_OVERRIDE");
        }
        let mut other = start_cat(Command::new("cat").uid(65_534).gid(65_534)).unwrap();
        let pid = other.id();
        assert!(!opens(pid, CapabilitySet::SYS_PTRACE), "the file's mode");
        assert!(!opens(pid, CapabilitySet::DAC_OVERRIDE), "ptrace(2)");
        assert!(opens(pid, CAPABILITIES));
        drop(other.stdin.take());
        other.wait().unwrap();
    }
}
