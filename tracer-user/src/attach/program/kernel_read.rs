//! Values that only a program can read: a word of kernel memory, and the hash that the kernel prints in place of a
//! pointer. User space runs the program once and finds the result in its context.
//!
//! The kernel decides whether this is allowed, as for every program that reads kernel memory (lockdown refuses it).

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, PoisonError},
};

use super::{load, object};
use crate::{
    attach::Cause,
    code::asm::{Assembler, Helper, Reg, Width},
    sys::bpf::{
        map::Map,
        prog::{LoadError, Prog, ProgKind, Purpose},
    },
};

/// The eight bytes at a kernel address.
///
/// # Errors
/// When the kernel refuses the program, or the helper fails at this address.
pub fn kernel_word(address: u64) -> Result<u64, Cause> {
    // Loaded once, because loading takes the kernel many times as long as a run.
    static PROGRAM: LazyLock<Result<Prog, LoadError>> = LazyLock::new(|| {
        let mut asm = Assembler::new();
        asm.mov(Reg::R6, Reg::R1);
        asm.load(Width::D, Reg::R3, Reg::R6, 0);
        asm.address(Reg::R1, Reg::R10, -8);
        asm.mov(Reg::R2, 8);
        asm.call(Helper::ProbeReadKernel);
        asm.load(Width::D, Reg::R1, Reg::R10, -8);
        asm.store(Width::D, Reg::R6, 0, Reg::R1);
        asm.exit();
        Prog::load(ProgKind::Syscall, &asm.finish("read").bytes(), "tracer_read")
    });
    let program = PROGRAM.as_ref().map_err(|error| Cause::Load(ProgKind::Syscall, error.clone()))?;
    let mut word = address.to_ne_bytes();
    match program.run(&mut word).map_err(|errno| Cause::System("test run of a program", errno))? {
        0 => Ok(u64::from_ne_bytes(word)),
        _ => Err(Cause::System("bpf_probe_read_kernel", crate::sys::Errno::FAULT)),
    }
}

/// Number of pointers whose hashes are cached.
const MOST: usize = 4096;
/// Bytes for a pointer's text: at least 16 digits and a NUL.
const TEXT: i16 = 24;

/// Hashes that the kernel prints in place of pointers. The hash key is secret, but a program can have the kernel print
/// a pointer.
#[derive(Debug)]
pub struct Hashes {
    program: Prog,
    _format: Map,
    known: Mutex<HashMap<u64, u64>>,
}

impl Hashes {
    /// Loads the program.
    ///
    /// # Errors
    /// When the kernel refuses it: `bpf_snprintf` is available since 5.13.
    pub fn new() -> Result<Self, Cause> {
        let format = object::constant_map(b"%p\0")?;
        let mut asm = Assembler::new();
        asm.mov(Reg::R6, Reg::R1);
        asm.load(Width::D, Reg::R1, Reg::R6, 0);
        asm.store(Width::D, Reg::R10, -8, Reg::R1);
        for at in (0..TEXT).step_by(8) {
            asm.store(Width::D, Reg::R10, at - 8 - TEXT, 0);
        }
        asm.address(Reg::R1, Reg::R10, i32::from(-8 - TEXT));
        asm.mov(Reg::R2, i32::from(TEXT));
        load::value_address(&mut asm, Reg::R3, &format);
        asm.address(Reg::R4, Reg::R10, -8);
        asm.mov(Reg::R5, 8);
        asm.call(Helper::Snprintf);
        for at in (0..TEXT).step_by(8) {
            asm.load(Width::D, Reg::R1, Reg::R10, at - 8 - TEXT);
            asm.store(Width::D, Reg::R6, at, Reg::R1);
        }
        asm.mov(Reg::R0, 0);
        asm.exit();
        let program = load::load(ProgKind::Syscall, Purpose::Any, &asm.finish("hash").insns, "tracer_hash")?;
        Ok(Self { program, _format: format, known: Mutex::default() })
    }

    /// The hash that the kernel prints in place of a pointer; `None` while the kernel has no hash key.
    pub fn of(&self, pointer: u64) -> Option<u64> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hash) = known.get(&pointer) {
            return Some(*hash);
        }
        let mut context = [0; TEXT as usize];
        context[..8].copy_from_slice(&pointer.to_ne_bytes());
        self.program.run(&mut context).ok()?;
        let text = context.split(|byte| *byte == 0).next()?;
        let hash = u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()?;
        if known.len() == MOST {
            known.clear();
        }
        known.insert(pointer, hash);
        Some(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_hashes_pointers() {
        let Ok(hashes) = Hashes::new() else {
            eprintln!("skipped: prog_syscall: no program can be loaded, or none with bpf_snprintf");
            return;
        };
        let [one, other] = [0xffff_8000_1234_5678, 0xffff_8000_1234_5680].map(|pointer| hashes.of(pointer));
        let (Some(one), Some(other)) = (one, other) else { return };
        assert_ne!(one, other);
        assert_eq!(hashes.of(0xffff_8000_1234_5678), Some(one));
        let shown = std::fs::read_to_string("/proc/cmdline").unwrap().contains("no_hash_pointers");
        assert!(shown || one >> 32 == 0, "{one:x}");
    }
}
