//! Whether programs can disable preemption: the kernel functions `bpf_preempt_disable` and `bpf_preempt_enable` (6.10,
//! fc7566ad0a82).

use super::{Btf, Error};
use crate::sys::bpf::prog::{Prog, ProgKind, insn};

/// The functions with which programs disable preemption and enable it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptGuard {
    /// BTF id of `bpf_preempt_disable`.
    pub disable: u32,
    /// BTF id of `bpf_preempt_enable`.
    pub enable: u32,
}

impl PreemptGuard {
    /// Finds the functions in BTF; None if one is missing.
    pub(crate) fn find(btf: &Btf) -> Result<Option<Self>, Error> {
        let (disable, enable) =
            (btf.function_id("bpf_preempt_disable")?, btf.function_id("bpf_preempt_enable")?);
        Ok(disable.zip(enable).map(|(disable, enable)| Self { disable, enable }))
    }

    /// Whether this kernel loads programs that call the functions, of the types that may be run for a thread that
    /// preempts them: kprobe for uprobes, and tracepoint for system calls.
    pub(crate) fn is_taken(self) -> Result<(), rustix::io::Errno> {
        // call; call; r0 = 0; exit
        let insns = [
            insn(0x85, 0, 2, 0, self.disable.cast_signed()),
            insn(0x85, 0, 2, 0, self.enable.cast_signed()),
            insn(0xb7, 0, 0, 0, 0),
            insn(0x95, 0, 0, 0, 0),
        ];
        [ProgKind::Kprobe, ProgKind::Tracepoint].into_iter().try_for_each(|kind| {
            Prog::load(kind, insns.as_flattened(), "trial").map(drop).map_err(|error| error.errno)
        })
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
        match guard.is_taken() {
            Ok(()) => {}
            Err(rustix::io::Errno::PERM) => println!("skipped: cap_bpf: not privileged"),
            Err(error) => panic!("{guard:?}: {error}"),
        }
        // The kernel refuses a program that ends without preemption, so the trial can fail.
        let open = PreemptGuard { enable: guard.disable, ..guard };
        assert!(open.is_taken().is_err());
    }
}
