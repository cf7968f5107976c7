//! Whether programs can disable preemption: the kernel functions `bpf_preempt_disable` and `bpf_preempt_enable` (6.10,
//! fc7566ad0a82).

use super::{Btf, Change, Error, version};
use crate::sys::bpf::prog::{Prog, ProgKind, insn};

/// The functions with which programs disable preemption and enable it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptGuard {
    /// BTF id of `bpf_preempt_disable`.
    pub disable: u32,
    /// BTF id of `bpf_preempt_enable`.
    pub enable: u32,
    /// Functions that keep the second call from rescheduling.
    pub interrupts: Option<InterruptGuard>,
}

/// The functions with which programs disable interrupts and restore their state: `bpf_local_irq_save` and
/// `bpf_local_irq_restore` (6.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptGuard {
    /// BTF id of `bpf_local_irq_save`.
    pub save: u32,
    /// BTF id of `bpf_local_irq_restore`.
    pub restore: u32,
}

impl PreemptGuard {
    /// Finds the functions in BTF; None if one that disables preemption is missing.
    pub(crate) fn find(btf: &Btf) -> Result<Option<Self>, Error> {
        let both = |first, second| Ok(btf.function_id(first)?.zip(btf.function_id(second)?));
        let interrupts = both("bpf_local_irq_save", "bpf_local_irq_restore")?;
        let interrupts = interrupts.map(|(save, restore)| InterruptGuard { save, restore });
        let preemption = both("bpf_preempt_disable", "bpf_preempt_enable")?;
        Ok(preemption.map(|(disable, enable)| Self { disable, enable, interrupts }))
    }

    /// The guard as far as this kernel loads programs with it: without the functions for interrupts if it refuses them.
    /// It is tried with the types of programs that may be preempted: kprobe for uprobes, tracepoint for system calls,
    /// and raw tracepoint.
    ///
    /// # Errors
    /// The kernel's, if it refuses a program for a uprobe or a system call.
    pub(crate) fn accepted(self) -> Result<Self, rustix::io::Errno> {
        let all = [ProgKind::Kprobe, ProgKind::Tracepoint, ProgKind::RawTracepoint];
        if self.interrupts.is_some() && self.loads(&all).is_ok() {
            return Ok(self);
        }
        let plain = Self { interrupts: None, ..self };
        plain.loads(&[ProgKind::Kprobe, ProgKind::Tracepoint]).map(|()| plain)
    }

    /// Whether programs of these types that call the functions are loaded.
    fn loads(self, kinds: &[ProgKind]) -> Result<(), rustix::io::Errno> {
        // call; [r1 = r10; r1 -= 8; call;] call; [r1 = r10; r1 -= 8; call;] r0 = 0; exit
        let call = |function: u32| insn(0x85, 0, 2, 0, function.cast_signed());
        let with_slot = |function: u32| [insn(0xbf, 1, 10, 0, 0), insn(0x07, 1, 0, 0, -8), call(function)];
        let mut insns = vec![call(self.disable)];
        insns.extend(self.interrupts.into_iter().flat_map(|interrupts| with_slot(interrupts.save)));
        insns.push(call(self.enable));
        insns.extend(self.interrupts.into_iter().flat_map(|interrupts| with_slot(interrupts.restore)));
        insns.extend([insn(0xb7, 0, 0, 0, 0), insn(0x95, 0, 0, 0, 0)]);
        kinds.iter().try_for_each(|kind| {
            Prog::load(*kind, insns.as_flattened(), "trial").map(drop).map_err(|error| error.errno)
        })
    }

    /// The guard of programs at raw tracepoints and at functions, which the kernel skips for a thread that preempts
    /// them. `None` where it preempts none, or would reschedule inside the program.
    pub(crate) fn of_skipped(self) -> Option<Self> {
        let is_preempted = Change::PreemptibleTracepoints.is_in(version());
        (is_preempted && self.interrupts.is_some()).then_some(self)
    }

    /// The guard of programs at the perf tracepoints of system calls. `None` where the kernel disables preemption.
    pub(crate) fn of_calls(self) -> Option<Self> {
        Change::PreemptibleCalls.is_in(version()).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_answers() {
        let Ok(Some(btf)) = Btf::running() else {
            println!("skipped: btf: no types");
            return;
        };
        let Some(guard) = PreemptGuard::find(&btf).unwrap() else {
            println!("skipped: preempt_guard: no bpf_preempt_disable");
            return;
        };
        match guard.accepted() {
            Ok(accepted) => {
                // The kernel refuses a program that ends without preemption or interrupts, so the trial can fail.
                let open = PreemptGuard { enable: guard.disable, ..guard };
                assert!(open.accepted().is_err());
                let Some(interrupts) = accepted.interrupts else { return };
                let open = InterruptGuard { restore: interrupts.save, ..interrupts };
                let open = PreemptGuard { interrupts: Some(open), ..guard };
                assert_eq!(open.accepted(), Ok(PreemptGuard { interrupts: None, ..guard }));
            }
            Err(rustix::io::Errno::PERM) => println!("skipped: cap_bpf: not privileged"),
            Err(error) => panic!("{guard:?}: {error}"),
        }
    }
}
