//! The interrupted context, as far as programs can read it on this kernel: the location of the preempt count, and how
//! to recognise a 32-bit system call.
//!
//! On x86 the preempt count is a per-CPU variable whose address no symbol gives without `KALLSYMS_ALL`. To find it,
//! `support/context.rs` of `tracer-ebpf` runs once on every CPU. A perf tracepoint's program can read the address of the CPU's
//! `__perf_regs`, and BTF has the distance from there to the count. A count that is implausible for a thread in task
//! context is not used. On other architectures the count is in `thread_info`.

use std::os::fd::AsFd;

use rustix::{
    io::Errno,
    process::{WaitId, WaitIdOptions},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use tracer_abi::{FOUND, Params, params};

use super::{
    AttachPoint, Cause,
    close::perf_event::PerfEvent,
    hooks::tracepoint,
    maps::{self, SessionMaps},
    program::object,
};
use crate::{
    kernel::{Cast, syscalls::Registers},
    sys::bpf::prog::ProgKind,
};

/// The location from which programs read the preempt count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Preempt {
    /// Unknown: preempt depth and interrupt context stay empty in records.
    #[default]
    Unknown,
    /// At one address per CPU (0: unknown for that CPU). A thread in task context reads `bias` there.
    PerCpu {
        /// Addresses by CPU number.
        addresses: Vec<u64>,
        /// The amount that a hit itself adds to the count.
        bias: u32,
    },
    /// At this byte offset in the current `task_struct`: eight bytes with need-resched in the upper half.
    Task {
        /// Byte offset.
        offset: u32,
        /// The amount that a hit itself adds to the count.
        bias: u32,
    },
}

/// Byte offsets of a thread's ids in `task_struct`, four bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskIds {
    /// Of the thread id, `pid`.
    pub pid: u32,
    /// Of the process id, `tgid`.
    pub tgid: u32,
}

/// How programs read the interrupted context on this kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The location of the preempt count.
    pub preempt: Preempt,
    /// Where the registers show a system call's number, and how to recognise 32-bit calls. `None` where no syscall
    /// program may be used.
    pub registers: Option<Registers>,
    /// How programs load kernel memory directly. `None` where they must call a helper.
    pub cast: Option<Cast>,
    /// Location of the current thread's ids. `None` where programs must call a helper.
    pub task: Option<TaskIds>,
}

impl Context {
    pub(super) fn apply(&self, fixed: &mut Params, point: &AttachPoint) {
        match self.preempt {
            Preempt::Unknown => {}
            Preempt::PerCpu { bias, .. } => {
                fixed.bits |= params::PREEMPT_CPU;
                fixed.preempt_bias = bias;
            }
            Preempt::Task { offset, bias } => {
                fixed.bits |= params::PREEMPT_TASK | params::PREEMPT_SPLIT;
                fixed.preempt_offset = offset;
                fixed.preempt_bias = bias;
            }
        }
        if let (Some(task), true) = (self.task, *point != AttachPoint::Inject) {
            fixed.bits |= params::TASK;
            fixed.task_pid = task.pid;
            fixed.task_tgid = task.tgid;
        }
        // The kernel's syscall events omit 32-bit calls (`raw_syscalls` does not).
        if let (
            Some(registers),
            AttachPoint::SysEnter(_) | AttachPoint::SysEnterAlone(_) | AttachPoint::SysExit(_),
        ) = (self.registers, point)
        {
            fixed.bits |= params::COMPAT;
            fixed.compat_offset = registers.compat.task_offset;
            fixed.compat_mask = registers.compat.mask;
        }
    }

    /// Writes the CPUs' addresses into the map that programs read.
    pub(super) fn install(&self, maps: &SessionMaps) -> Result<(), Cause> {
        if let Preempt::PerCpu { addresses, .. } = &self.preempt {
            for (cpu, address) in addresses.iter().enumerate().take(maps.options().cpus as usize) {
                maps.set_cpu_base(cpu as u32, *address)?;
            }
        }
        Ok(())
    }
}

/// Candidate location of the preempt count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptLocation {
    /// This many bytes after the CPU's `__perf_regs`, four bytes wide.
    BehindRegs(i64),
    /// This many bytes after the start of the current `task_struct`, eight bytes wide.
    InTask(u32),
}

/// Finds the preempt count, and the amount that a hit adds to it, by a program at the event
/// `sched:sched_process_wait` with this id. This thread triggers the event on every CPU that has its own count: it
/// waits for a child that does not exist. `do_wait()` (kernel/exit.c) fires the event first, with no lock held. A
/// spinlock, as kernels before 6.13 hold at `task:task_rename`, would count too.
///
/// # Errors
/// When the kernel refuses the program. An implausible count is not an error but [`Preempt::Unknown`].
pub fn locate_preempt(wait_id: u16, place: PreemptLocation, cpus: u32) -> Result<Preempt, Cause> {
    let found = maps::array(16, cpus, "tracer_found")?;
    let thread = i64::from(super::ids::own()?.thread);
    let (distance, in_task) = match place {
        PreemptLocation::BehindRegs(distance) => (distance, 0),
        PreemptLocation::InTask(offset) => (0, i64::from(offset)),
    };
    let locate: Vec<u8> = [thread, distance, in_task].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let found_map = |map: &str| (map == FOUND).then(|| found.as_fd());
    let program =
        object::load_plain(ProgKind::Tracepoint, "locate_context", &[("LOCATE", &locate)], None, found_map)?;
    let link = tracepoint::attach(&program, wait_id)?;
    match place {
        PreemptLocation::BehindRegs(_) => on_every_cpu(cpus, wait_for_nobody)?,
        PreemptLocation::InTask(_) => wait_for_nobody()?,
    }
    // The kernel waits for every CPU when a perf tracepoint is closed, and meanwhile holds a lock that opening needs.
    std::thread::spawn(move || {
        drop(link.into_event().map(PerfEvent::new));
        drop(program);
    });
    let mut addresses = vec![0; cpus as usize];
    let mut bias = None;
    for (cpu, address) in addresses.iter_mut().enumerate() {
        let Ok(Some(value)) = found.lookup(&(cpu as u32).to_ne_bytes()) else { continue };
        let ([place, count, ..], _) = value.as_chunks() else { continue };
        let (place, count) = (u64::from_ne_bytes(*place), u64::from_ne_bytes(*count) as u32 & 0x7fff_ffff);
        if place == 0 {
            continue;
        }
        // In task context the count equals the amount that the hit itself adds, which is the same on every CPU.
        if count > 3 || bias.is_some_and(|bias| bias != count) {
            return Ok(Preempt::Unknown);
        }
        bias = Some(count);
        *address = place;
    }
    Ok(match (bias, place) {
        (Some(bias), PreemptLocation::BehindRegs(_)) => Preempt::PerCpu { addresses, bias },
        (Some(bias), PreemptLocation::InTask(offset)) => Preempt::Task { offset, bias },
        (None, _) => Preempt::Unknown,
    })
}

/// Runs `run` on each CPU that this thread may use.
fn on_every_cpu(cpus: u32, run: impl Fn() -> Result<(), Cause>) -> Result<(), Cause> {
    let before = sched_getaffinity(None).map_err(|errno| Cause::System("sched_getaffinity", errno))?;
    let mut result = Ok(());
    for cpu in (0..cpus).filter(|cpu| before.is_set(*cpu as usize)) {
        let mut one = CpuSet::new();
        one.set(cpu as usize);
        if sched_setaffinity(None, &one).is_ok() {
            result = result.and_then(|()| run());
        }
    }
    sched_setaffinity(None, &before).map_err(|errno| Cause::System("sched_setaffinity", errno))?;
    result
}

/// Waits for this process itself, which is not its own child.
fn wait_for_nobody() -> Result<(), Cause> {
    let own = WaitId::Pid(rustix::process::getpid());
    match rustix::process::waitid(own, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
        Ok(_) | Err(Errno::CHILD) => Ok(()),
        Err(errno) => Err(Cause::System("waitid", errno)),
    }
}
