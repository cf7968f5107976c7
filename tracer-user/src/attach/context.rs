//! The interrupted context, as far as programs can read it on this kernel: the location of the preempt count, and how
//! to recognise a 32-bit system call.
//!
//! On x86 the preempt count is a per-CPU variable whose address no symbol gives without `KALLSYMS_ALL`. To find it,
//! `support/context.rs` of `tracer-ebpf` runs once on every CPU. A perf tracepoint's program can read the address of the CPU's
//! `__perf_regs`, and BTF has the distance from there to the count. A count that is implausible for a thread in task
//! context is not used. On other architectures the count is in `thread_info`.

use std::{os::fd::AsFd, sync::Arc};

use rustix::{
    io::Errno,
    process::{WaitId, WaitIdOptions},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use tracer_abi::{FOUND, Params, params};

use super::{
    AttachPoint, Cause,
    attached::gate_pair::CountPlace,
    close::perf_event::PerfEvent,
    hooks::{call_pages::CallPages, raw_tracepoint, tracepoint},
    maps::{self, SessionMaps},
    program::{load, object},
};
use crate::{
    code::{
        asm::{Assembler, Cond, Function, Helper, Insn, MapRef, Reg, Width},
        opt,
    },
    event::irqs_off,
    kernel::{self, Cast, Change, PreemptGuard, syscalls::Registers},
    sys::bpf::prog::{ProgKind, Purpose},
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
        /// The amounts that a hit itself adds to the count.
        bias: Bias,
        /// The meaning of its bits.
        layout: CountLayout,
    },
    /// At this byte offset in the current `task_struct`: eight bytes with need-resched in the upper half.
    Task {
        /// Byte offset.
        offset: u32,
        /// The amounts that a hit itself adds to the count.
        bias: Bias,
        /// The meaning of its bits.
        layout: CountLayout,
    },
}

/// The meaning of the bits of the preempt count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountLayout {
    /// Whether it has eight bytes on x86, the top bit of which is that of the pending reschedule.
    pub is_long: bool,
    /// Whether a part of it counts how often interrupts were disabled.
    pub has_irqs: bool,
}

impl CountLayout {
    fn bits(self) -> u32 {
        let bit = |is: bool, bit: u32| if is { bit } else { 0 };
        bit(self.is_long, params::PREEMPT_LONG) | bit(self.has_irqs, params::PREEMPT_IRQS)
    }

    /// The bits that are set in interrupts: non-maskable, hard and soft ones (include/linux/preempt.h).
    pub(super) fn interrupts(self) -> u32 {
        if self.has_irqs { 0x7f00_0100 } else { 0x00ff_0100 }
    }
}

/// The amounts that hits themselves add to the preempt count, by the kind of hook. On 7.3 the kernel disables
/// preemption for perf tracepoints only, and not for those of system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bias {
    /// At a perf tracepoint.
    pub tracepoint: u32,
    /// At a raw tracepoint.
    pub raw: u32,
    /// At the raw tracepoints of system calls.
    pub call: u32,
}

impl Bias {
    /// The amount at a hook.
    fn at(self, point: &AttachPoint) -> u32 {
        match point {
            AttachPoint::RawTracepoint(name) if CALLS.contains(&name.as_str()) => self.call,
            AttachPoint::RawTracepoint(_) => self.raw,
            AttachPoint::SysEnter(_)
            | AttachPoint::SysEnterAlone(_)
            | AttachPoint::SysExit(_)
            | AttachPoint::CallTracepoint(_) => self.call,
            _ => self.tracepoint,
        }
    }
}

/// The raw tracepoints of system calls.
pub(super) const CALLS: [&str; 2] = ["sys_enter", "sys_exit"];

/// Byte offsets of a thread's ids in `task_struct`, four bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskIds {
    /// Of the thread id, `pid`.
    pub pid: u32,
    /// Of the process id, `tgid`.
    pub tgid: u32,
}

/// How programs read the interrupted context on this kernel, and what a session's programs share with others'.
#[derive(Clone, Debug, Default)]
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
    /// How programs disable preemption. `None` where they cannot or need not.
    pub guard: Option<PreemptGuard>,
    /// The program that makes the user memory of system calls present. `None` where such programs may not sleep.
    pub pages: Option<Arc<CallPages>>,
}

impl Context {
    pub(super) fn apply(&self, fixed: &mut Params, point: &AttachPoint) {
        match self.preempt {
            Preempt::Unknown => {}
            Preempt::PerCpu { bias, layout, .. } => {
                fixed.bits |= params::PREEMPT_CPU | layout.bits();
                fixed.preempt_bias = bias.at(point);
            }
            Preempt::Task { offset, bias, layout } => {
                fixed.bits |= params::PREEMPT_TASK | params::PREEMPT_SPLIT | layout.bits();
                fixed.preempt_offset = offset;
                fixed.preempt_bias = bias.at(point);
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

    /// Where the second gates of raw tracepoints read the preempt count. `None` where the kernel does not preempt
    /// programs there, and where they cannot disable preemption. The machine has this many CPU numbers.
    pub(super) fn second_gates(&self, cpus: u32) -> Option<CountPlace> {
        self.guard?.of_skipped()?;
        let (addresses, offset, layout) = match &self.preempt {
            Preempt::Unknown => return None,
            Preempt::PerCpu { addresses, layout, .. } => (addresses.clone(), None, layout),
            Preempt::Task { offset, layout, .. } => (Vec::new(), Some(*offset), layout),
        };
        Some(CountPlace { cpus, addresses, offset, mask: layout.interrupts() })
    }

    /// How programs at a hook disable preemption. `None` where they need not, or cannot. At a uprobe the kernel runs a
    /// program for a thread that preempts it, and since 6.13 it may give the program one stack for each CPU. Elsewhere it
    /// skips the program then.
    pub(super) fn guard(&self, point: &AttachPoint) -> Option<PreemptGuard> {
        let guard = self.guard?;
        match point {
            AttachPoint::Uprobe(_) | AttachPoint::Uretprobe(_) => Some(guard),
            AttachPoint::CallTracepoint(_) => guard.of_calls(),
            AttachPoint::RawTracepoint(name) if irqs_off::holds_at_tracepoint(name) => None,
            AttachPoint::RawTracepoint(_)
            | AttachPoint::SysEnter(_)
            | AttachPoint::SysEnterAlone(_)
            | AttachPoint::SysExit(_)
            | AttachPoint::Fentry(_)
            | AttachPoint::Fexit(_)
            | AttachPoint::SharedExit(_) => guard.of_skipped(),
            AttachPoint::Tracepoint(_)
            | AttachPoint::Kprobe(_)
            | AttachPoint::Kretprobe(_)
            | AttachPoint::KprobeMulti { .. }
            | AttachPoint::Shared { .. }
            | AttachPoint::Inject
            | AttachPoint::Emitted => None,
        }
    }

    /// Whether a program at a hook may run while it is preempted on that CPU.
    pub(super) fn nests(&self, point: &AttachPoint) -> bool {
        point.nests() && self.guard(point).is_none()
    }

    /// The amount that the program around an emission adds to the preempt count, with the amount of its hook. The hook
    /// is a perf tracepoint, or a raw one whose program has a guard where the kernel does not disable preemption. At
    /// events with interrupts off it has none.
    pub(super) fn emission_bias(&self, irqs_off: bool) -> u32 {
        match &self.preempt {
            Preempt::PerCpu { bias, .. } | Preempt::Task { bias, .. } if irqs_off => bias.raw,
            _ => self.tracepoint_bias(),
        }
    }

    /// The program for a hook with preemption disabled while it runs, if it is to be.
    pub(super) fn guarded(&self, point: &AttachPoint, insns: Vec<Insn>) -> Result<Vec<Insn>, Cause> {
        let Some(guard) = self.guard(point) else { return Ok(insns) };
        opt::guarded(&insns, guard).ok_or(Cause::Misplaced("a program that cannot disable preemption"))
    }

    /// The amount that a hit at a perf tracepoint adds to the preempt count.
    pub(super) fn tracepoint_bias(&self) -> u32 {
        match &self.preempt {
            Preempt::Unknown => 0,
            Preempt::PerCpu { bias, .. } | Preempt::Task { bias, .. } => bias.tracepoint,
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

/// Largest plausible amount that a hit adds to the count.
const BIAS_MAX: u32 = 3;

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
pub fn locate_preempt(
    wait_id: u16,
    place: PreemptLocation,
    layout: CountLayout,
    cpus: u32,
) -> Result<Preempt, Cause> {
    let found = maps::array(16, cpus, "tracer_found")?;
    let thread = i64::from(super::ids::own()?.thread);
    let (distance, in_task) = match place {
        PreemptLocation::BehindRegs(distance) => (distance, 0),
        PreemptLocation::InTask(offset) => (0, i64::from(offset)),
    };
    let locate: Vec<u8> = [thread, distance, in_task].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let found_map = |map: &str| (map == FOUND).then(|| found.as_fd());
    let program = object::load_plain(
        ProgKind::Tracepoint,
        "locate_context",
        &[("LOCATE", &locate)],
        None,
        None,
        found_map,
    )?;
    let link = tracepoint::attach(&program, wait_id)?;
    match place {
        PreemptLocation::BehindRegs(_) => on_cpus(0..cpus, wait_for_nobody)?,
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
        if count > BIAS_MAX || bias.is_some_and(|bias| bias != count) {
            return Ok(Preempt::Unknown);
        }
        bias = Some(count);
        *address = place;
    }
    let (Some(tracepoint), Some((cpu, address))) =
        (bias, addresses.iter().enumerate().find(|(_, address)| **address != 0))
    else {
        return Ok(Preempt::Unknown);
    };
    let measured = if Change::PreemptibleTracepoints.is_in(kernel::version()) {
        // A host may refuse raw tracepoints; then no program is at one.
        raw_biases(cpu as u32, *address).unwrap_or_else(|error| {
            tracing::debug!("the preempt count at raw tracepoints: {error}");
            [None; 2]
        })
    } else {
        // All hooks add the same amount.
        [None; 2]
    };
    let [raw, call] = measured.map(|bias| bias.unwrap_or(tracepoint));
    let bias = Bias { tracepoint, raw, call };
    Ok(match place {
        PreemptLocation::BehindRegs(_) => Preempt::PerCpu { addresses, bias, layout },
        PreemptLocation::InTask(offset) => Preempt::Task { offset, bias, layout },
    })
}

/// The amounts that a hit adds at a raw tracepoint and at those of system calls; `None` for one that is implausible or
/// was not seen. This thread's count is at an address while the thread is on a CPU.
fn raw_biases(cpu: u32, address: u64) -> Result<[Option<u32>; 2], Cause> {
    let thread = super::ids::own()?.thread;
    let measured = maps::array(8, 2, "tracer_bias")?;
    let unseen = u64::MAX.to_ne_bytes();
    let mut attached = Vec::new();
    for (number, tracepoint) in [(0_u32, "sched_process_wait"), (1, CALLS[0])] {
        measured.update(&number.to_ne_bytes(), &unseen).map_err(|errno| Cause::Map("tracer_bias", errno))?;
        let mut functions = [bias_program(cpu, thread, address, number)];
        load::bind(&mut functions, |map| (map == MapRef::Measured).then(|| measured.as_fd()))?;
        let program = load::load(ProgKind::RawTracepoint, Purpose::Any, &functions[0].insns, "tracer_bias")?;
        attached.push((raw_tracepoint::attach(&program, tracepoint)?, program));
    }
    on_cpus([cpu], wait_for_nobody)?;
    std::thread::spawn(move || drop(attached));
    Ok([0_u32, 1].map(|number| {
        let value = measured.lookup(&number.to_ne_bytes()).ok().flatten()?;
        let count = u64::from_ne_bytes(*value.first_chunk()?);
        u32::try_from(count).ok().map(|count| count & 0x7fff_ffff).filter(|count| *count <= BIAS_MAX)
    }))
}

/// A program that stores the preempt count of a thread on a CPU as the value of this number.
fn bias_program(cpu: u32, thread: u32, address: u64, number: u32) -> Function {
    let mut asm = Assembler::new();
    let end = asm.label();
    asm.call(Helper::GetCurrentPidTgid);
    asm.jump32_if(Cond::Ne, Reg::R0, thread.cast_signed(), end);
    asm.call(Helper::GetSmpProcessorId);
    asm.jump_if(Cond::Ne, Reg::R0, cpu.cast_signed(), end);
    asm.store(Width::D, Reg::R10, -8, 0);
    asm.address(Reg::R1, Reg::R10, -8);
    asm.mov(Reg::R2, 4);
    asm.constant(Reg::R3, address);
    asm.call(Helper::ProbeReadKernel);
    asm.store(Width::W, Reg::R10, -16, number.cast_signed());
    asm.map(Reg::R1, MapRef::Measured);
    asm.address(Reg::R2, Reg::R10, -16);
    asm.call(Helper::MapLookupElem);
    asm.jump_if(Cond::Eq, Reg::R0, 0, end);
    asm.load(Width::D, Reg::R1, Reg::R10, -8);
    asm.store(Width::D, Reg::R0, 0, Reg::R1);
    asm.bind(end);
    asm.mov(Reg::R0, 0);
    asm.exit();
    asm.finish("tracer_bias")
}

/// Runs `run` on each of these CPUs that this thread may use.
fn on_cpus(cpus: impl IntoIterator<Item = u32>, run: impl Fn() -> Result<(), Cause>) -> Result<(), Cause> {
    let before = sched_getaffinity(None).map_err(|errno| Cause::System("sched_getaffinity", errno))?;
    let mut result = Ok(());
    for cpu in cpus.into_iter().filter(|cpu| before.is_set(*cpu as usize)) {
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
