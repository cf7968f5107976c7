//! Effects of the passes on small programs, and code that they must leave unchanged.

use proptest::prelude::*;

use super::*;
use crate::code::asm::{
    Alu, Assembler, Atomic, CALL, Cond, Function, Helper, LD_IMM64, Label, PSEUDO_CALL, Reg, Width,
};
use crate::code::listing;
use crate::kernel::{InterruptGuard, PreemptGuard};

const CAST: Cast = Cast { function: 77, structure: 88, window: 65 };

/// Concatenates functions; [`call`] makes a call by the number of the function.
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
    let statement = |line: &str| line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit()).to_owned();
    text.lines().map(statement).collect()
}

#[test]
fn a_function_whose_call_is_ruled_out_by_the_result_of_another_is_removed() {
    let main = function(|asm| {
        let end = asm.label();
        call(asm, 1);
        asm.jump_if(Cond::Eq, Reg::R0, 0, end);
        call(asm, 2);
        asm.bind(end);
    });
    let zero = function(|asm| asm.mov(Reg::R0, 0));
    // It calls another function, so it is not inlined.
    let outer = function(|asm| call(asm, 3));
    let inner = function(|asm| asm.mov(Reg::R0, 7));
    assert_eq!(listed(program(vec![main, zero, outer, inner]), None), ["r0 = 0", "exit"]);
}

#[test]
fn a_program_without_instructions_stays_so() {
    assert!(improve(Vec::new(), &Known::default()).is_empty());
}

#[test]
fn an_inlined_function_replaces_its_call_with_its_frame_below() {
    let main = function(|asm| {
        asm.mov(Reg::R6, Reg::R1);
        asm.store(Width::D, Reg::R10, -8, 5);
        call(asm, 1);
        asm.alu(Alu::Add, Reg::R0, Reg::R6);
        asm.load(Width::D, Reg::R6, Reg::R10, -8);
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
            "r6 = *(u64 *)(r10 - 8)",
            "r0 += r6",
            "exit",
        ]
    );
}

#[test]
fn a_register_that_an_atomic_operation_changes_is_saved() {
    let main = function(|asm| {
        asm.mov(Reg::R6, Reg::R1);
        call(asm, 1);
        asm.alu(Alu::Add, Reg::R0, Reg::R6);
    });
    // The exchange is all that changes R6.
    let callee = function(|asm| {
        asm.store(Width::D, Reg::R10, -8, 7);
        asm.push(Insn::atomic(Width::D, Atomic::Exchange, Reg::R10, -8, Reg::R6));
        asm.load(Width::D, Reg::R0, Reg::R10, -8);
    });
    let listed = listed(program(vec![main, callee]), None);
    let at = |wanted: &str| listed.iter().position(|line| line.contains(wanted));
    let (saved, exchanged) = (at(" = r6"), at("r6 = atomic_exchange"));
    let restored = at("r6 = *(u64 *)");
    assert!(saved.is_some() && saved < exchanged && exchanged < restored, "{listed:#?}");
}

#[test]
fn exits_of_inlined_functions_become_jumps() {
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
fn functions_with_calls_or_unknown_uses_of_the_frame_are_not_inlined() {
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
fn inlining_never_exceeds_the_stack() {
    let deep = |asm: &mut Assembler| {
        asm.store(Width::D, Reg::R10, -264, Reg::R1);
        asm.load(Width::D, Reg::R0, Reg::R10, -264);
    };
    let main = function(|asm| {
        deep(asm);
        asm.mov(Reg::R6, Reg::R0);
        call(asm, 1);
        asm.alu(Alu::Add, Reg::R0, Reg::R6);
    });
    let whole = program(vec![main, function(deep)]);
    assert_eq!(improve(whole.clone(), &Known::default()), whole);
}

fn reading(size: i32, requested: bool) -> Vec<Insn> {
    program(vec![function(|asm| {
        asm.load(Width::D, Reg::R3, Reg::R1, 8);
        asm.address(Reg::R1, Reg::R10, -16);
        asm.mov(Reg::R2, size);
        asm.call(Helper::ProbeReadKernel);
        if !requested {
            asm.load(Width::W, Reg::R0, Reg::R10, -16);
            asm.address(Reg::R3, Reg::R10, -16);
            asm.load(Width::W, Reg::R3, Reg::R3, 9);
            asm.alu(Alu::Add, Reg::R0, Reg::R3);
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
            "call kernel function 77",
            "r1 = *(u64 *)(r0 + 0)",
            "*(u64 *)(r10 - 16) = r1",
            "r1 = *(u32 *)(r0 + 8)",
            "*(u32 *)(r10 - 8) = r1",
            "r1 = *(u8 *)(r0 + 12)",
            "*(u8 *)(r10 - 4) = r1",
            "r0 = *(u32 *)(r10 - 16)",
            "r3 = r10",
            "r3 += -16",
            "r3 = *(u32 *)(r3 + 9)",
            "r0 += r3",
            "exit",
        ]
    );
}

#[test]
fn a_read_stays_without_a_cast_or_if_its_result_is_used() {
    for (insns, cast) in
        [(reading(8, false), None), (reading(8, true), Some(CAST)), (reading(300, false), Some(CAST))]
    {
        assert_eq!(improve(insns.clone(), &Known { cast, ..Known::default() }), insns);
    }
}

#[test]
fn unused_results_and_functions_are_removed() {
    let main = function(|asm| {
        asm.mov(Reg::R4, 4);
        asm.alu(Alu::Add, Reg::R4, 1);
        asm.load(Width::D, Reg::R5, Reg::R1, 0);
        asm.mov(Reg::R0, 0);
    });
    assert_eq!(listed(program(vec![main]), None), ["r0 = 0", "exit"]);
}

/// `if parameter { r0 = 1 } else { r0 = 2 }`; the parameter is at offset 4 of the frozen memory with descriptor 5.
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
fn branches_on_parameters_are_decided() {
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
fn lookups_in_one_entry_arrays_become_addresses() {
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
    // The passes remove the key and the test for a missing value.
    let improved = improve(looking_up(), &Known { singles: &[7], ..Known::default() });
    assert_eq!(improved.len(), 4, "{}", listing::program(&improved));
    assert_eq!((improved[0].op, improved[0].src, improved[0].imm), (LD_IMM64, 2, 7));
    assert_eq!(improve(looking_up(), &Known { singles: &[8], ..Known::default() }), looking_up());
}

#[test]
fn a_jump_with_a_known_condition_goes_to_its_target() {
    let main = function(|asm| {
        let no = asm.label();
        call(asm, 1);
        asm.jump_if(Cond::Eq, Reg::R0, 0, no);
        asm.mov(Reg::R0, 7);
        asm.exit();
        asm.bind(no);
        asm.mov(Reg::R0, 8);
    });
    let callee = function(|asm| {
        let no = asm.label();
        asm.jump_if(Cond::Ne, Reg::R1, 5, no);
        asm.mov(Reg::R0, 1);
        asm.exit();
        asm.bind(no);
        asm.mov(Reg::R0, 0);
    });
    assert_eq!(
        listed(program(vec![main, callee]), None),
        ["if r1 != 5 goto L1", "r0 = 7", "exit", "L1:", "r0 = 8", "exit"]
    );
}

#[test]
fn unread_stores_to_the_frame_are_removed() {
    let storing = |read: fn(&mut Assembler)| {
        let main = function(|asm| {
            asm.store(Width::D, Reg::R10, -8, 1);
            asm.store(Width::D, Reg::R10, -16, 2);
            read(asm);
            asm.store(Width::W, Reg::R10, -8, 3);
        });
        listed(program(vec![main]), None).into_iter().filter(|line| line.starts_with('*')).collect::<Vec<_>>()
    };
    assert!(storing(|asm| asm.mov(Reg::R0, 0)).is_empty());
    assert_eq!(storing(|asm| asm.load(Width::W, Reg::R0, Reg::R10, -12)), ["*(u64 *)(r10 - 16) = 2"]);
    // A read of half of a value keeps its store. So does an address that a helper or a load uses.
    assert_eq!(storing(|asm| asm.load(Width::W, Reg::R0, Reg::R10, -4)), ["*(u64 *)(r10 - 8) = 1"]);
    let both = ["*(u64 *)(r10 - 8) = 1", "*(u64 *)(r10 - 16) = 2"];
    assert_eq!(
        storing(|asm| {
            asm.address(Reg::R2, Reg::R10, -16);
            asm.mov(Reg::R1, 0);
            asm.call(Helper::MapLookupElem);
        }),
        both
    );
    assert_eq!(
        storing(|asm| {
            asm.mov(Reg::R2, Reg::R10);
            asm.load(Width::D, Reg::R0, Reg::R2, -8);
        }),
        both
    );
}

/// One step of a generated program.
#[derive(Clone, Debug)]
enum Step {
    Set(u8, i32),
    Copy(u8, u8),
    Alu(u8, u8),
    Add(u8, i32),
    Store(Width, i16, u8),
    Load(Width, u8, i16),
    /// Through a copy of the frame's address.
    Through(u8, i16),
    /// Skips this many steps.
    Skip(Cond, u8, i32, usize),
    Jump(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let register = || 0..5_u8;
    let width = || prop_oneof![Just(Width::B), Just(Width::W), Just(Width::D)];
    let slot = || (1..5_i16).prop_map(|n| n * -8);
    let cond = prop_oneof![Just(Cond::Eq), Just(Cond::Ne), Just(Cond::Gt), Just(Cond::SLt)];
    prop_oneof![
        (register(), -2..3).prop_map(|(to, value)| Step::Set(to, value)),
        (register(), register()).prop_map(|(to, from)| Step::Copy(to, from)),
        (register(), register()).prop_map(|(to, by)| Step::Alu(to, by)),
        (register(), -2..3).prop_map(|(to, by)| Step::Add(to, by)),
        (width(), slot(), register()).prop_map(|(width, at, from)| Step::Store(width, at, from)),
        (width(), register(), slot()).prop_map(|(width, to, at)| Step::Load(width, to, at)),
        (register(), slot()).prop_map(|(to, at)| Step::Through(to, at)),
        // rbpf does not sign-extend the value that a jump compares with.
        (cond, register(), 0..3, 0..6_usize)
            .prop_map(|(cond, of, with, over)| Step::Skip(cond, of, with, over)),
        (0..4_usize).prop_map(Step::Jump),
    ]
}

fn made_up(steps: &[Step]) -> Vec<Insn> {
    let reg = |number: u8| [Reg::R0, Reg::R2, Reg::R3, Reg::R6, Reg::R7][usize::from(number)];
    program(vec![function(|asm| {
        for number in 0..5 {
            asm.mov(reg(number), i32::from(number));
        }
        for slot in 1..5 {
            asm.store(Width::D, Reg::R10, slot * -8, i32::from(slot));
        }
        let labels: Vec<Label> = (0..=steps.len()).map(|_| asm.label()).collect();
        for (at, step) in steps.iter().enumerate() {
            asm.bind(labels[at]);
            let over = |count: usize| labels[(at + 1 + count).min(steps.len())];
            match step {
                Step::Set(to, value) => asm.mov(reg(*to), *value),
                Step::Copy(to, from) => asm.mov(reg(*to), reg(*from)),
                Step::Alu(to, by) => asm.alu(Alu::Xor, reg(*to), reg(*by)),
                Step::Add(to, by) => asm.alu(Alu::Add, reg(*to), *by),
                Step::Store(width, slot, from) => asm.store(*width, Reg::R10, *slot, reg(*from)),
                Step::Load(width, to, slot) => asm.load(*width, reg(*to), Reg::R10, *slot),
                Step::Through(to, slot) => {
                    asm.address(Reg::R8, Reg::R10, i32::from(*slot));
                    asm.load(Width::D, reg(*to), Reg::R8, 0);
                }
                Step::Skip(cond, of, with, count) => asm.jump_if(*cond, reg(*of), *with, over(*count)),
                Step::Jump(count) => asm.jump(over(*count)),
            }
        }
        asm.bind(labels[steps.len()]);
        for number in 1..5 {
            asm.alu(Alu::Mul, Reg::R0, 31);
            asm.alu(Alu::Add, Reg::R0, reg(number));
        }
    })])
}

fn run(insns: &[Insn]) -> u64 {
    let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
    rbpf::EbpfVmNoData::new(Some(&bytes)).unwrap().execute_program().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn optimised_programs_compute_the_same(steps in proptest::collection::vec(step(), 0..40)) {
        let insns = made_up(&steps);
        let better = improve(insns.clone(), &Known::default());
        prop_assert!(better.len() <= insns.len());
        prop_assert_eq!(run(&better), run(&insns), "{}", listing::program(&better));
    }
}

const GUARD: PreemptGuard = PreemptGuard { disable: 11, enable: 12, interrupts: None };

#[test]
fn preemption_is_disabled_from_the_start_to_every_exit_of_the_main_function() {
    let main = function(|asm| {
        let end = asm.label();
        asm.mov(Reg::R6, Reg::R1);
        asm.load(Width::D, Reg::R2, Reg::R6, 0);
        asm.mov(Reg::R0, 0);
        asm.jump_if(Cond::Eq, Reg::R2, 5, end);
        call(asm, 1);
        asm.exit();
        asm.bind(end);
    });
    let callee = function(|asm| asm.mov(Reg::R0, 7));
    insta::assert_snapshot!(listing::program(&guarded(&program(vec![main, callee]), GUARD).unwrap()), @r"
     0  r6 = r1
     1  call kernel function 11
     2  r1 = r6
     3  r6 = r1
     4  r2 = *(u64 *)(r6 + 0)
     5  r0 = 0
     6  if r2 == 5 goto L1
     7  call function 1
     8  r6 = r0
     9  call kernel function 12
    10  r0 = r6
    11  exit
    L1:
    12  r6 = r0
    13  call kernel function 12
    14  r0 = r6
    15  exit
       ; function 1
    16  r0 = 7
    17  exit
    ");
}

#[test]
fn a_program_that_a_nested_hit_skips_is_not_rescheduled_before_its_end() {
    let main = function(|asm| asm.mov(Reg::R0, 7));
    let interrupts = Some(InterruptGuard { save: 13, restore: 14 });
    let insns = guarded(&program(vec![main]), PreemptGuard { interrupts, ..GUARD }).unwrap();
    insta::assert_snapshot!(listing::program(&insns), @r"
     0  r6 = r1
     1  call kernel function 11
     2  r1 = r6
     3  r0 = 7
     4  r6 = r0
     5  r1 = r10
     6  r1 += -8
     7  call kernel function 13
     8  call kernel function 12
     9  r1 = r10
    10  r1 += -8
    11  call kernel function 14
    12  r0 = r6
    13  exit
    ");
}

#[test]
fn a_program_that_calls_another_is_not_guarded() {
    let gate = function(|asm| {
        asm.mov(Reg::R3, 0);
        asm.call(Helper::TailCall);
        asm.mov(Reg::R0, 0);
    });
    let gate = program(vec![gate]);
    assert_eq!(guarded(&gate, GUARD), None);
    let looping = function(|asm| {
        let start = asm.label();
        asm.bind(start);
        asm.alu(Alu::Add, Reg::R1, 1);
        asm.jump_if(Cond::Ne, Reg::R1, 9, start);
        asm.mov(Reg::R0, 0);
    });
    let looping = program(vec![looping]);
    assert_eq!(guarded(&looping, GUARD), None);
}
