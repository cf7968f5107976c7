//! A minimal program for probing which hooks the kernel offers.

use crate::code::asm::{Assembler, Reg};

/// A program that returns 0.
pub(super) fn program() -> Vec<u8> {
    let mut asm = Assembler::new();
    asm.mov(Reg::R0, 0);
    asm.exit();
    asm.finish("trial").bytes()
}
