//! Lowered filters, run by the interpreter and compared with the evaluator of plans.

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::*;
use crate::{
    code::{
        asm::{Assembler, CALL, Cond, Function, Insn, PSEUDO_CALL, Reg, Width},
        checker::{self, Argument},
        listing,
        machine::{Access, Machine},
        opt::{Known, improve},
    },
    event::Format,
    kernel::Cast,
    plan::{
        eval::{self, EvalEnv},
        filter::{CpusOp, CpusSubject, Filter, NumberOp, Pattern, Place, Test, Text},
        source::{CompatArgs, FieldSource, ProgramContext, Source, SwitchState, SyscallArgs},
    },
};

mod expression;
mod probe;
mod raw;
mod trigger;
mod user_data;

/// Bytes of the record's fixed part in these tests.
const FIXED: usize = 100;
/// Addresses that the text pointers of the record hold.
const USER_TEXT: u64 = 0x7000_0000_0000;
const KERNEL_TEXT: u64 = 0x7100_0000_0000;

/// Layout: common 0..8; numbers 8..32; `char[16]` at 32; `char[13]` at 48 (unaligned end); odd-aligned numbers at 61 to
/// 72; pointers at 72 (kernel) and 80 (user); `__data_loc` at 88, `__rel_loc` at 92; cpumask at 96; then the data.
fn number_place() -> impl Strategy<Value = Place> {
    prop_oneof![
        (1_u16..4, 0_u16..3).prop_map(|(word, _)| Place { offset: 8 * word, size: 8 }),
        (0_u16..6).prop_map(|word| Place { offset: 8 + 4 * word, size: 4 }),
        (0_u16..12).prop_map(|word| Place { offset: 8 + 2 * word, size: 2 }),
        (0_u16..24).prop_map(|byte| Place { offset: 8 + byte, size: 1 }),
        (61_u16..64, prop_oneof![Just(2_u16), Just(4), Just(8)])
            .prop_map(|(offset, size)| Place { offset, size }),
    ]
}

fn common_place() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place { offset: 0, size: 2 }),
        Just(Place { offset: 2, size: 1 }),
        Just(Place { offset: 3, size: 1 }),
        Just(Place { offset: 4, size: 4 }),
    ]
}

fn number_op() -> impl Strategy<Value = NumberOp> {
    prop::sample::select(vec![
        NumberOp::Eq,
        NumberOp::Ne,
        NumberOp::Lt,
        NumberOp::Le,
        NumberOp::Gt,
        NumberOp::Ge,
        NumberOp::And,
    ])
}

/// Common values of records, and edge cases.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..4,
        Just(u64::MAX),
        Just(0x7f),
        Just(0x80),
        Just(0x7fff_ffff),
        Just(0x8000_0000),
        Just(0xffff_ffff),
        Just(0x8000_0000_0000_0000),
        any::<u64>(),
    ]
}

/// Truncates to the size and sign-extends, as the resolver does.
fn fitted(value: u64, size: u16, signed: bool) -> u64 {
    let shift = 64 - 8 * u32::from(size);
    if signed { ((value << shift) as i64 >> shift) as u64 } else { value << shift >> shift }
}

fn letters(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(b"aab".to_vec()), 0..=max)
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let glob = prop::collection::vec(
        prop::sample::select(vec!["a", "b", "*", "?", "[ab]", "[!a]", "[b-z]", "\\a", "ab", "[a"]),
        0..8,
    )
    .prop_map(|parts| parts.concat().into_bytes());
    prop_oneof![
        letters(14).prop_map(Pattern::Full),
        letters(9).prop_map(Pattern::Front),
        letters(5).prop_map(Pattern::Middle),
        letters(5).prop_map(Pattern::End),
        glob.prop_map(Pattern::Glob),
    ]
}

fn text() -> impl Strategy<Value = Text> {
    prop::sample::select(vec![
        Text::Static(Place { offset: 32, size: 16 }),
        Text::Static(Place { offset: 48, size: 13 }),
        Text::Dyn { offset: 88 },
        Text::Rel { offset: 92 },
        Text::Pointer { place: Place { offset: 72, size: 8 }, user: false },
        Text::Pointer { place: Place { offset: 80, size: 8 }, user: true },
        Text::Open { offset: FIXED as u16 },
        Text::Comm,
    ])
}

fn cpu_set() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        prop::collection::btree_set(0_u32..8, 1..5),
        prop::collection::btree_set(0_u32..64, 8..20),
        prop::collection::btree_set(0_u32..200, 2..6),
    ]
    .prop_map(|set| set.into_iter().collect())
}

fn test() -> impl Strategy<Value = Test> {
    let numbers = |place| {
        (place, any::<bool>(), number_op(), number()).prop_map(
            |(place, signed, op, value): (Place, _, _, _)| Test::Number {
                place,
                signed,
                op,
                value: fitted(value, place.size, signed),
            },
        )
    };
    let cpus = prop_oneof![
        (prop::sample::select(vec![1_u16, 4]), cpu_set()).prop_map(|(size, set)| Test::Cpus {
            subject: CpusSubject::Scalar { place: Place { offset: 8, size } },
            op: CpusOp::And,
            set,
        }),
        cpu_set().prop_map(|set| Test::Cpus { subject: CpusSubject::Current, op: CpusOp::And, set }),
        (prop::sample::select(vec![CpusOp::Eq, CpusOp::Ne, CpusOp::And]), cpu_set())
            .prop_map(|(op, set)| Test::Cpus { subject: CpusSubject::Mask { offset: 96 }, op, set }),
    ];
    prop_oneof![
        3 => numbers(number_place().boxed()),
        1 => numbers(common_place().boxed()),
        1 => (number(), number(), any::<bool>()).prop_map(|(a, b, not)| Test::Function {
            place: Place { offset: 16, size: 8 },
            low: a.min(b),
            high: a.max(b),
            not,
        }),
        6 => (text(), pattern(), any::<bool>()).prop_map(|(text, pattern, not)| Test::Text { text, pattern, not }),
        1 => (number_op(), 0..4_i32).prop_filter("the kernel refuses it", |(op, _)| *op != NumberOp::And)
            .prop_map(|(op, value)| Test::Cpu { op, value }),
        1 => cpus,
    ]
}

fn filters(test: impl Strategy<Value = Test> + 'static) -> impl Strategy<Value = Filter> {
    test.prop_map(Filter::Test).prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..5).prop_map(Filter::And),
            prop::collection::vec(inner.clone(), 2..5).prop_map(Filter::Or),
            inner.prop_map(|filter| Filter::Not(Box::new(filter))),
        ]
    })
}

/// Contents of a record of the layout above.
#[derive(Clone, Debug)]
struct TestHit {
    common: [u8; 8],
    numbers: [u64; 3],
    texts: [Vec<u8>; 2],
    odd: [u8; 11],
    pointed: [Option<Vec<u8>>; 2],
    /// Texts of the `__data_loc` and `__rel_loc` words.
    data: [Vec<u8>; 2],
    mask: Vec<u64>,
    comm: Vec<u8>,
    cpu: u32,
}

fn given() -> impl Strategy<Value = TestHit> {
    let bytes = || prop::collection::vec(prop::sample::select(b"aaab\0".to_vec()), 0..20);
    let mask = prop::collection::vec(prop_oneof![0_u64..4, Just(0), any::<u64>()], 0..4);
    let pointed = || prop::option::weighted(0.8, letters(20));
    (
        (any::<[u8; 8]>(), [number(), number(), number()], [bytes(), bytes()], any::<[u8; 11]>()),
        ([pointed(), pointed()], [bytes(), bytes()], mask, letters(15), 0_u32..4),
    )
        .prop_map(|((common, numbers, texts, odd), (pointed, data, mask, comm, cpu))| TestHit {
            common,
            numbers,
            texts,
            odd,
            pointed,
            data,
            mask,
            comm,
            cpu,
        })
}

impl TestHit {
    fn comm(&self) -> [u8; 16] {
        let mut comm = [0; 16];
        comm[..self.comm.len()].copy_from_slice(&self.comm);
        comm
    }

    fn record(&self) -> Vec<u8> {
        let mut record = vec![0; FIXED];
        record[..8].copy_from_slice(&self.common);
        for (number, bytes) in self.numbers.iter().zip(record[8..32].chunks_mut(8)) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        for (text, (start, size)) in self.texts.iter().zip([(32, 16), (48, 13)]) {
            let taken = text.len().min(size);
            record[start..start + taken].copy_from_slice(&text[..taken]);
        }
        record[61..72].copy_from_slice(&self.odd);
        for (pointed, (start, address)) in self.pointed.iter().zip([(72, KERNEL_TEXT), (80, USER_TEXT)]) {
            let address = if pointed.is_some() { address } else { 0x10 };
            record[start..start + 8].copy_from_slice(&u64::to_le_bytes(address));
        }
        for (data, (word, relative)) in self.data.iter().zip([(88, false), (92, true)]) {
            let start = record.len() - if relative { word + 4 } else { 0 };
            let loc = data.len() << 16 | start;
            record[word..word + 4].copy_from_slice(&(loc as u32).to_le_bytes());
            record.extend(data);
        }
        let loc = (8 * self.mask.len()) << 16 | record.len();
        record[96..100].copy_from_slice(&(loc as u32).to_le_bytes());
        record.extend(self.mask.iter().flat_map(|word| word.to_le_bytes()));
        record
    }

    fn machine(&self) -> Machine {
        let mut machine = Machine::new();
        machine.cpu = self.cpu;
        machine.comm = self.comm();
        for (pointed, (address, access)) in
            self.pointed.iter().zip([(KERNEL_TEXT, Access::Kernel), (USER_TEXT, Access::User)])
        {
            if let Some(text) = pointed {
                let mut bytes = text.clone();
                bytes.push(0);
                machine.map_at(address, access, &bytes);
            }
        }
        machine
    }

    fn expected(&self, filter: &Filter) -> bool {
        let read = |address: u64, user: bool| match (address, user) {
            (KERNEL_TEXT, false) => self.pointed[0].clone(),
            (USER_TEXT, true) => self.pointed[1].clone(),
            _ => None,
        };
        eval::matches(filter, &self.record(), &EvalEnv { cpu: self.cpu, comm: self.comm(), read: &read })
    }

    /// Result of the code with the record as its context.
    fn by_record(&self, code: &Code, context: &ProgramContext) -> bool {
        let mut machine = self.machine();
        let mut bytes = self.record();
        bytes.resize(0x20_000, 0);
        let mut visible = FIXED;
        if *context == ProgramContext::Inject {
            // The record names its writer; another task runs the program.
            visible = tracer_abi::INJECT_SIZE;
            bytes[tracer_abi::INJECT_CPU..][..4].copy_from_slice(&self.cpu.to_le_bytes());
            bytes[tracer_abi::INJECT_COMM..][..16].copy_from_slice(&self.comm());
            machine.cpu = 99;
            machine.comm = *b"somebody else's\0";
        }
        let ctx = machine.map(Access::Context(visible), &bytes);
        self.run(machine, code, ctx)
    }

    fn run(&self, mut machine: Machine, code: &Code, ctx: u64) -> bool {
        // Garbage from an earlier hit.
        let scratch = machine.map(Access::Memory, &vec![b'a'; tracer_abi::FILTER_AREA]);
        let common = u64::from_le_bytes(self.common);
        let scratch = if code.needs.scratch { scratch } else { 0 };
        run(&mut machine, &code.functions, &[ctx, scratch, common]) != 0
    }
}

/// The result of the first function.
fn run(machine: &mut Machine, functions: &[Function], args: &[u64]) -> u64 {
    let result = machine.run(functions, args);
    result.unwrap_or_else(|trap| panic!("{trap}\n{}", listing::functions(functions)))
}

/// Runs the structural checker on a function with these arguments and on its callbacks.
fn checked(code: &Code, arguments: &[Argument]) {
    for (number, function) in code.functions.iter().enumerate() {
        let arguments = if number == 0 { arguments } else { &[Argument::Number, Argument::Memory] };
        if let Err(fault) = checker::check(function, arguments) {
            panic!("{}: {fault}\n{}", function.name, listing::functions(&code.functions));
        }
    }
}

/// A cast that [`Machine`] supports.
const CAST: Cast = Cast { function: 77, structure: 88, window: 65 };

/// A program, after all passes, that calls the function and checks its own registers and stack; -1 if one of them
/// changed.
fn whole(code: &Code, cast: Option<Cast>) -> Function {
    let mut asm = Assembler::new();
    let lost = asm.label();
    asm.mov(Reg::R6, 1006);
    asm.mov(Reg::R7, 1007);
    asm.mov(Reg::R8, 1008);
    asm.mov(Reg::R9, 1009);
    asm.mov(Reg::R0, 1010);
    asm.store(Width::D, Reg::R10, -24, Reg::R0);
    let call = Insn { op: CALL, src: PSEUDO_CALL, ..Insn::default() };
    asm.push(call);
    for (register, value) in [(Reg::R6, 1006), (Reg::R7, 1007), (Reg::R8, 1008), (Reg::R9, 1009)] {
        asm.jump_if(Cond::Ne, register, value, lost);
    }
    asm.load(Width::D, Reg::R1, Reg::R10, -24);
    asm.jump_if(Cond::Ne, Reg::R1, 1010, lost);
    asm.exit();
    asm.bind(lost);
    asm.mov(Reg::R0, -1);
    asm.exit();
    let mut insns = asm.finish("caller").insns;
    let at = insns.iter().position(|insn| *insn == call).unwrap();
    insns[at].imm = (insns.len() - at - 1) as i32;
    insns.extend(&code.functions[0].insns);
    Function {
        name: "whole".into(),
        insns: improve(insns, &Known { cast, ..Known::default() }),
        ..Function::default()
    }
}

fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn filters_over_records_agree_with_the_evaluator() {
    let passed = [const { std::cell::Cell::new(0) }; 2];
    runner(600)
        .run(&(filters(test()), prop::collection::vec(given(), 8)), |(plan, givens)| {
            for context in [ProgramContext::Tracepoint, ProgramContext::Inject] {
                let code = filter(&plan, &context).unwrap();
                let hidden = if context == ProgramContext::Tracepoint { 8 } else { 0 };
                checked(&code, &[Argument::Context(hidden), Argument::Memory, Argument::Number]);
                for given in &givens {
                    let expected = given.expected(&plan);
                    passed[usize::from(expected)].update(|seen| seen + 1);
                    prop_assert_eq!(given.by_record(&code, &context), expected, "{} at {:?}", plan, context);
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(passed[0].get().min(passed[1].get()) > 1500, "both outcomes are common: {passed:?}");
}
