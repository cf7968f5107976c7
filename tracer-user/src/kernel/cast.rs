//! Whether programs may load kernel memory directly: the kernel function `bpf_rdonly_cast`.
//!
//! It turns any number into a readable pointer to a type of the kernel's BTF (6.2, a35b9af4ec2c). A load that faults
//! yields zero, as `bpf_probe_read_kernel` does. The chosen type begins with a long array of characters, because the
//! verifier accepts loads of any width inside an array.

use super::{Btf, Error};
use crate::sys::bpf::prog::{Prog, ProgKind, insn};

/// The function's name.
const FUNCTION: &str = "bpf_rdonly_cast";
/// The structure's name, and the array it begins with: 65 characters in every kernel (include/uapi/linux/utsname.h).
const STRUCTURE: (&str, &str) = ("new_utsname", "sysname");

/// The parameters for turning a number into a readable pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// BTF id of the function.
    pub function: u32,
    /// BTF id of the structure.
    pub structure: u32,
    /// Size in bytes of the array that the structure begins with.
    pub window: u32,
}

impl Cast {
    /// Finds the function and the structure in BTF; None if either is missing or unsuitable.
    pub(crate) fn find(btf: &Btf) -> Result<Option<Self>, Error> {
        let Some(function) = btf.function_id(FUNCTION)? else { return Ok(None) };
        let (Some(structure), Some(array)) =
            (btf.struct_id(STRUCTURE.0)?, btf.member(STRUCTURE.0, STRUCTURE.1)?)
        else {
            return Ok(None);
        };
        let fits = array.offset == 0 && array.ty.size >= 8;
        Ok(fits.then_some(Self { function, structure, window: array.ty.size }))
    }

    /// Whether this kernel loads programs of this kind that use the cast.
    pub(crate) fn try_in(self, kind: ProgKind) -> Result<(), rustix::io::Errno> {
        let (function, structure) = (self.function.cast_signed(), self.structure.cast_signed());
        // r1 = 0; r2 = structure; call; r0 = *(u64 *)(r0 + 8); r0 = 0; exit
        let insns = [
            insn(0xb7, 1, 0, 0, 0),
            insn(0xb7, 2, 0, 0, structure),
            insn(0x85, 0, 2, 0, function),
            insn(0x79, 0, 0, 8, 0),
            insn(0xb7, 0, 0, 0, 0),
            insn(0x95, 0, 0, 0, 0),
        ];
        Prog::load(kind, insns.as_flattened(), "trial").map(drop).map_err(|error| error.errno)
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
        let Some(cast) = Cast::find(&btf).unwrap() else {
            println!("skipped: direct_reads: no {FUNCTION}");
            return;
        };
        assert!(cast.window >= 64, "{cast:?}");
        match cast.try_in(ProgKind::RawTracepoint) {
            Ok(()) => {}
            Err(rustix::io::Errno::PERM) => println!("skipped: cap_bpf: not privileged"),
            Err(error) => panic!("{cast:?}: {error}"),
        }
        // The kernel refuses an id that is not the id of a function, so the trial can fail.
        let broken = Cast { function: cast.structure, ..cast };
        assert!(broken.try_in(ProgKind::RawTracepoint).is_err());
    }
}
