//! This process as the kernel's hooks see it: ids in the initial pid namespace.
//!
//! In a container getpid(2) returns ids of the container's namespace. There this thread runs a small program once,
//! which calls `bpf_get_current_pid_tgid` instead.

use rustix::{process::getpid, thread::gettid};

use super::{Cause, program::load};
use crate::{
    code::asm::{Alu, Assembler, Helper, Reg},
    sys::bpf::prog::{Prog, ProgKind, Purpose},
};

/// Inode of the initial pid namespace, `PROC_PID_INIT_INO` of include/linux/proc_ns.h.
const INITIAL_NAMESPACE: u64 = 0xefff_fffc;

/// Ids of the calling thread in the initial pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// Thread id.
    pub thread: u32,
    /// Process id.
    pub process: u32,
}

/// Whether this process is in the initial pid namespace.
pub fn is_initial() -> bool {
    rustix::fs::stat("/proc/self/ns/pid").is_ok_and(|stat| stat.st_ino == INITIAL_NAMESPACE)
}

/// The calling thread's ids in the initial pid namespace.
///
/// # Errors
/// Outside the initial pid namespace, when the kernel refuses the program that reads the ids.
pub fn own() -> Result<Ids, Cause> {
    if is_initial() {
        return Ok(Ids {
            thread: gettid().as_raw_nonzero().get() as u32,
            process: getpid().as_raw_nonzero().get() as u32,
        });
    }
    Ok(Ids { thread: ask(false)?, process: ask(true)? })
}

/// Reads the id of the calling thread. It is prepared once; each read is then one system call.
#[derive(Debug)]
pub struct ThreadId(Option<Prog>);

impl ThreadId {
    /// Prepares it for this process and the processes that it forks.
    ///
    /// # Errors
    /// As [`own`].
    pub fn prepare() -> Result<Self, Cause> {
        if is_initial() { Ok(Self(None)) } else { reader(false).map(|program| Self(Some(program))) }
    }

    /// The id of the calling thread in the initial pid namespace.
    ///
    /// # Errors
    /// When the kernel refuses to run the program.
    pub fn get(&self) -> Result<u32, crate::sys::Errno> {
        match &self.0 {
            None => Ok(gettid().as_raw_nonzero().get() as u32),
            Some(program) => program.run(&mut []),
        }
    }
}

/// Runs the program that returns the process id (the upper half) or the thread id.
fn ask(process: bool) -> Result<u32, Cause> {
    reader(process)?.run(&mut []).map_err(|errno| Cause::System("test run", errno))
}

/// Loads the program that returns the process id or the thread id.
fn reader(process: bool) -> Result<Prog, Cause> {
    let mut asm = Assembler::new();
    asm.call(Helper::GetCurrentPidTgid);
    if process {
        asm.alu(Alu::Rsh, Reg::R0, 32);
    }
    asm.exit();
    load::load(ProgKind::Syscall, Purpose::Any, &asm.finish("own_ids").insns, "own_ids")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_agrees_in_the_initial_namespace() {
        let Ok(ids) = own() else { return };
        match (ask(false), ask(true)) {
            (Ok(thread), Ok(process)) => assert_eq!(ids, Ids { thread, process }),
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("skipped: prog_syscall: BPF_PROG_TYPE_SYSCALL: {error}");
            }
        }
    }
}
