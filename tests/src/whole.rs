//! Builds complete programs from generated functions, without a template: scratch memory, filter, record.

use tracer_user::code::asm::{
    Assembler, CALL, Cond, Function, Insn, LD_IMM64, Operand, PSEUDO_CALL, Reg, Width,
};
use tracer_user::sys::bpf::map::{Map, MapKind, MapSpec};

use std::os::fd::{AsFd, AsRawFd};

/// `BPF_PSEUDO_MAP_FD`
const PSEUDO_MAP_FD: u8 = 1;
/// `bpf_map_lookup_elem`
const LOOKUP: i32 = 1;

/// The map with one value that is used as scratch memory.
///
/// # Errors
/// The kernel's errno.
pub fn scratch() -> Result<Map, rustix::io::Errno> {
    Map::create(&MapSpec {
        kind: MapKind::Array,
        key_size: 4,
        value_size: tracer_abi::SCRATCH_SIZE as u32,
        max_entries: 1,
        flags: 0,
        inner: None,
        name: "scratch",
    })
}

/// Links these functions with a main program. The main program calls the first of `filter` and the first of `record`,
/// and returns the filter's result. The common word is the map's first.
pub fn program(scratch: &Map, filter: &[Function], record: &[Function]) -> Vec<Insn> {
    let mut asm = Assembler::new();
    let none = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    asm.store(Width::W, Reg::R10, -4, 0);
    let load = Insn {
        op: LD_IMM64,
        dst: Reg::R1 as u8,
        src: PSEUDO_MAP_FD,
        imm: scratch.as_fd().as_raw_fd(),
        ..Insn::default()
    };
    asm.push_wide(load, Insn::default());
    asm.address(Reg::R2, Reg::R10, -4);
    asm.push(Insn { op: CALL, imm: LOOKUP, ..Insn::default() });
    asm.jump_if(Cond::Eq, Reg::R0, Operand::Imm(0), none);
    asm.mov(Reg::R7, Reg::R0);
    asm.mov(Reg::R1, Reg::R6);
    asm.address(Reg::R2, Reg::R7, tracer_abi::RECORD_AREA as i32);
    asm.load(Width::D, Reg::R3, Reg::R7, 0);
    let call = Insn { op: CALL, src: PSEUDO_CALL, ..Insn::default() };
    asm.push(call);
    asm.mov(Reg::R9, Reg::R0);
    asm.mov(Reg::R1, Reg::R6);
    asm.mov(Reg::R2, Reg::R7);
    asm.push(call);
    asm.mov(Reg::R0, Reg::R9);
    asm.exit();
    asm.bind(none);
    asm.mov(Reg::R0, 2);
    asm.exit();
    let main = asm.finish("main");

    let mut insns = main.insns;
    let calls: Vec<_> = (0..insns.len()).filter(|slot| insns[*slot] == call).collect();
    let mut starts = Vec::new();
    let all: Vec<_> = filter.iter().chain(record).collect();
    for function in &all {
        starts.push((function.name.as_str(), insns.len()));
        insns.extend(&function.insns);
    }
    let relative = |slot: usize, to: usize| (to as i64 - slot as i64 - 1) as i32;
    insns[calls[0]].imm = relative(calls[0], starts[0].1);
    insns[calls[1]].imm = relative(calls[1], starts[filter.len()].1);
    for (function, (_, start)) in all.iter().zip(&starts) {
        for (slot, name) in &function.addresses {
            let (_, target) = starts.iter().find(|(known, _)| known == name).expect("a generated function");
            insns[start + slot].imm = relative(start + slot, *target);
        }
    }
    insns
}

/// The instructions as bytes for the kernel.
pub fn encoded(insns: &[Insn]) -> Vec<u8> {
    insns.iter().flat_map(|insn| insn.encode()).collect()
}
