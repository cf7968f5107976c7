//! Reading a word of kernel memory, once: a program that user space runs by hand reads it into its own context.
//!
//! The kernel decides whether that is allowed, as for every program that reads kernel memory (lockdown refuses it).

use super::Cause;
use crate::{
    code::asm::{Assembler, Helper, Reg, Width},
    sys::prog::{Prog, ProgKind},
};

/// The eight bytes at an address of the kernel.
///
/// # Errors
/// When the program is refused, or the helper fails there.
pub fn kernel_word(address: u64) -> Result<u64, Cause> {
    let mut asm = Assembler::new();
    asm.mov(Reg::R6, Reg::R1);
    asm.address(Reg::R1, Reg::R10, -8);
    asm.mov(Reg::R2, 8);
    asm.constant(Reg::R3, address);
    asm.call(Helper::ProbeReadKernel);
    asm.load(Width::D, Reg::R1, Reg::R10, -8);
    asm.store(Width::D, Reg::R6, 0, Reg::R1);
    asm.exit();
    let program = Prog::load(ProgKind::Syscall, &asm.finish("peek").bytes(), "tracer_peek")
        .map_err(|error| Cause::Load(ProgKind::Syscall, error))?;
    let mut word = [0; 8];
    match program.run(&mut word).map_err(|errno| Cause::System("test run of a program", errno))? {
        0 => Ok(u64::from_ne_bytes(word)),
        _ => Err(Cause::System("bpf_probe_read_kernel", crate::sys::Errno::FAULT)),
    }
}
