//! Loading of generated instructions.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::{
    attach::Cause,
    code::asm::{self, Assembler, Function, Insn, MapRef, PSEUDO_MAP_VALUE, Reg},
    sys::bpf::{
        map::Map,
        prog::{Prog, ProgKind, Purpose},
    },
};

/// Replaces the references of functions to maps by descriptors.
pub(crate) fn bind<'a>(
    functions: &mut [Function],
    descriptor: impl Fn(MapRef) -> Option<BorrowedFd<'a>>,
) -> Result<(), Cause> {
    let descriptor = |map| descriptor(map).map(|map| map.as_raw_fd());
    let mut bound = functions.iter_mut().map(|function| asm::bind(&mut function.insns, descriptor));
    bound.try_for_each(|bound| bound.map_err(|map| Cause::NoHook(format!("there is no map {map}"))))
}

pub(crate) fn load(kind: ProgKind, purpose: Purpose<'_>, insns: &[Insn], name: &str) -> Result<Prog, Cause> {
    let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
    Prog::load_for(kind, purpose, &bytes, name).map_err(|error| Cause::Load(kind, error))
}

/// Emits the address of the value of a map that has one value.
pub(crate) fn value_address(asm: &mut Assembler, register: Reg, map: &Map) {
    let [mut first, second] = Insn::imm64(register, u64::from(map.as_fd().as_raw_fd().cast_unsigned()));
    first.src = PSEUDO_MAP_VALUE;
    asm.push_wide(first, second);
}

/// A function that returns 0.
pub(crate) fn nothing(name: &str) -> Function {
    let mut asm = Assembler::new();
    asm.mov(Reg::R0, 0);
    asm.exit();
    asm.finish(name)
}
