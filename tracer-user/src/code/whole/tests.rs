//! What the passes do to small programs, and what they leave alone.

use super::*;
use crate::code::asm::{Alu, Assembler, Cond, Function, Helper, Label, Reg, Width};
use crate::code::listing;

const CAST: Cast = Cast { function: 77, structure: 88, window: 65 };

/// Functions behind one another; calls are made by [`call`] with the number of the function.
fn program(functions: Vec<Function>) -> Vec<Insn> {
    let mut starts = Vec::new();
    let mut at = 0;
    for function in &functions {
        starts.push(at);
        at += function.insns.len();
    }
    let mut insns: Vec<Insn> = functions.into_iter().flat_map(|function| function.insns).collect();
    for (slot, insn) in insns.iter_mut().enumerate() {
        if insn.op == CALL && insn.src == PSEUDO_CALL {
            insn.imm = starts[insn.imm as usize] as i32 - slot as i32 - 1;
        }
    }
    insns
}

fn call(asm: &mut Assembler, function: i32) {
    asm.push(Insn { op: CALL, src: PSEUDO_CALL, imm: function, ..Insn::default() });
}

fn function(write: impl FnOnce(&mut Assembler)) -> Function {
    let mut asm = Assembler::new();
    write(&mut asm);
    asm.exit();
    asm.finish("f")
}

fn listed(insns: Vec<Insn>, cast: Option<Cast>) -> Vec<String> {
    let text = listing::program(&improve(insns, &Known { cast, ..Known::default() }));
    text.lines()
        .map(|line| {
            line.trim_start_matches([' ', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']).to_owned()
        })
        .collect()
}

#[test]
fn a_function_takes_the_place_of_its_call_and_its_frame_goes_below() {
    let main = function(|asm| {
        asm.mov(Reg::R6, Reg::R1);
        asm.store(Width::D, Reg::R10, -8, 5);
        call(asm, 1);
        asm.alu(Alu::Add, Reg::R0, Reg::R6);
    });
    let callee = function(|asm| {
        asm.mov(Reg::R6, 9);
        asm.store(Width::D, Reg::R10, -8, Reg::R6);
        asm.load(Width::D, Reg::R0, Reg::R10, -8);
    });
    assert_eq!(
        listed(program(vec![main, callee]), None),
        [
            "r6 = r1",
            "*(u64 *)(r10 - 8) = 5",
            "*(u64 *)(r10 - 24) = r6",
            "r6 = 9",
            "*(u64 *)(r10 - 16) = r6",
            "r0 = *(u64 *)(r10 - 16)",
            "r6 = *(u64 *)(r10 - 24)",
            "r0 += r6",
            "exit",
        ]
    );
}

#[test]
fn exits_in_the_middle_become_jumps() {
    let main = function(|asm| call(asm, 1));
    let callee = function(|asm| {
        let other: Label = asm.label();
        asm.jump_if(Cond::Eq, Reg::R1, 0, other);
        asm.mov(Reg::R0, 1);
        asm.exit();
        asm.bind(other);
        asm.mov(Reg::R0, 2);
    });
    assert_eq!(
        listed(program(vec![main, callee]), None),
        ["if r1 == 0 goto L1", "r0 = 1", "goto L2", "L1:", "r0 = 2", "L2:", "exit"]
    );
}

#[test]
fn functions_that_call_or_use_their_frame_in_other_ways_stay() {
    let nested = program(vec![
        function(|asm| call(asm, 1)),
        function(|asm| call(asm, 2)),
        function(|asm| asm.mov(Reg::R0, 3)),
    ]);
    assert_eq!(improve(nested.clone(), &Known::default()), nested);
    let leaking = program(vec![
        function(|asm| call(asm, 1)),
        function(|asm| {
            asm.mov(Reg::R2, Reg::R10);
            asm.alu(Alu::Sub, Reg::R2, 8);
            asm.mov(Reg::R0, Reg::R2);
        }),
    ]);
    assert_eq!(improve(leaking.clone(), &Known::default()), leaking);
}

#[test]
fn a_program_never_needs_more_stack_than_there_is() {
    let deep = |asm: &mut Assembler| asm.store(Width::D, Reg::R10, -264, 1);
    let main = function(|asm| {
        deep(asm);
        call(asm, 1);
    });
    let callee = function(|asm| {
        deep(asm);
        asm.mov(Reg::R0, 0);
    });
    let whole = program(vec![main, callee]);
    assert_eq!(improve(whole.clone(), &Known::default()), whole);
}

fn reading(size: i32, asked: bool) -> Vec<Insn> {
    program(vec![function(|asm| {
        asm.load(Width::D, Reg::R3, Reg::R1, 8);
        asm.address(Reg::R1, Reg::R10, -16);
        asm.mov(Reg::R2, size);
        asm.call(Helper::ProbeReadKernel);
        if !asked {
            asm.load(Width::W, Reg::R0, Reg::R10, -16);
        }
    })])
}

#[test]
fn a_read_becomes_loads_where_the_kernel_casts() {
    assert_eq!(
        listed(reading(13, false), Some(CAST)),
        [
            "r3 = *(u64 *)(r1 + 8)",
            "r1 = r3",
            "r2 = 88",
            "call helper 77",
            "r1 = *(u64 *)(r0 + 0)",
            "*(u64 *)(r10 - 16) = r1",
            "r1 = *(u32 *)(r0 + 8)",
            "*(u32 *)(r10 - 8) = r1",
            "r1 = *(u8 *)(r0 + 12)",
            "*(u8 *)(r10 - 4) = r1",
            "r0 = *(u32 *)(r10 - 16)",
            "exit",
        ]
    );
}

#[test]
fn a_read_stays_without_a_cast_or_when_its_answer_is_asked_for() {
    for (insns, cast) in
        [(reading(8, false), None), (reading(8, true), Some(CAST)), (reading(300, false), Some(CAST))]
    {
        assert_eq!(improve(insns.clone(), &Known { cast, ..Known::default() }), insns);
    }
}

#[test]
fn what_nobody_reads_or_calls_goes() {
    let main = function(|asm| {
        asm.mov(Reg::R4, 4);
        asm.alu(Alu::Add, Reg::R4, 1);
        asm.load(Width::D, Reg::R5, Reg::R1, 0);
        asm.mov(Reg::R0, 0);
    });
    assert_eq!(listed(program(vec![main]), None), ["r0 = 0", "exit"]);
}

/// `if parameter { r0 = 1 } else { r0 = 2 }`, the parameter at offset 4 of the frozen memory that 5 names.
fn parametrised() -> Vec<Insn> {
    program(vec![function(|asm| {
        let (other, end) = (asm.label(), asm.label());
        let [first, second] = Insn::imm64(Reg::R2, 4 << 32 | 5);
        asm.push_wide(Insn { src: 2, ..first }, second);
        asm.load(Width::W, Reg::R3, Reg::R2, 0);
        asm.alu(Alu::And, Reg::R3, 2);
        asm.jump_if(Cond::Eq, Reg::R3, 0, other);
        asm.mov(Reg::R0, 1);
        asm.jump(end);
        asm.bind(other);
        asm.mov(Reg::R0, 2);
        asm.bind(end);
    })])
}

#[test]
fn parameters_decide_in_advance() {
    for (bits, expected) in [(2, "r0 = 1"), (5, "r0 = 2")] {
        let bytes = [9, 9, 9, 9, bits, 0, 0, 0];
        let known = Known { frozen: &[Frozen { fd: 5, bytes: &bytes }], ..Known::default() };
        assert_eq!(
            listing::program(&improve(parametrised(), &known)),
            format!("    0  {expected}\n    1  exit\n")
        );
    }
    // Memory that is not known decides nothing.
    let other = Known { frozen: &[Frozen { fd: 6, bytes: &[0; 8] }], ..Known::default() };
    assert_eq!(improve(parametrised(), &other), parametrised());
}

#[test]
fn the_only_value_of_a_map_is_named() {
    let looking_up = || {
        program(vec![function(|asm| {
            let none = asm.label();
            asm.store(Width::W, Reg::R10, -4, 0);
            asm.address(Reg::R2, Reg::R10, -4);
            let [first, second] = Insn::imm64(Reg::R1, 7);
            asm.push_wide(Insn { src: 1, ..first }, second);
            asm.push(Insn { op: CALL, imm: 1, ..Insn::default() });
            asm.jump_if(Cond::Eq, Reg::R0, 0, none);
            asm.load(Width::W, Reg::R0, Reg::R0, 0);
            asm.bind(none);
        })])
    };
    let improved = improve(looking_up(), &Known { singles: &[7], ..Known::default() });
    assert_eq!(improved.len(), 6, "{}", listing::program(&improved));
    assert_eq!((improved[1].op, improved[1].src, improved[1].imm), (LD_IMM64, 2, 7));
    assert_eq!(improve(looking_up(), &Known { singles: &[8], ..Known::default() }), looking_up());
}
