//! Lowered filters, run by the interpreter, against the evaluator of plans.

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::*;
use crate::{
    code::{
        asm::{CALL, Insn, PSEUDO_CALL},
        checker::{self, Argument},
        listing,
        machine::{Access, Machine},
        whole::improve,
    },
    event::Format,
    kernel::Cast,
    plan::{
        eval::{self, EvalEnv},
        filter::{CpusOp, CpusSubject, NumberOp, Pattern, Place, Text},
        source::{CompatArgs, FieldSource, Source, SwitchState, SyscallArgs},
    },
};

/// Bytes of the record's fixed part in these tests.
const FIXED: usize = 100;
/// Where text pointers of the record point to.
const USER_TEXT: u64 = 0x7000_0000_0000;
const KERNEL_TEXT: u64 = 0x7100_0000_0000;

/// Layout: common 0..8; numbers 8..32; char[16] at 32; char[13] at 48 (unaligned end); odd-aligned numbers at 61
/// to 72; pointers at 72 (kernel) and 80 (user); data_loc at 88, rel_loc at 92; cpumask at 96; data behind.
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

/// Numbers that records often hold and that lie at the edges.
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

/// As the resolver leaves it: cut to the size and extended again by the sign.
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

/// What a record of the layout above holds.
#[derive(Clone, Debug)]
struct Given {
    common: [u8; 8],
    numbers: [u64; 3],
    texts: [Vec<u8>; 2],
    odd: [u8; 11],
    pointed: [Option<Vec<u8>>; 2],
    /// Text and how much more than it the word claims.
    data: [Vec<u8>; 2],
    mask: Vec<u64>,
    comm: Vec<u8>,
    cpu: u32,
}

fn given() -> impl Strategy<Value = Given> {
    let bytes = || prop::collection::vec(prop::sample::select(b"aaab\0".to_vec()), 0..20);
    let mask = prop::collection::vec(prop_oneof![0_u64..4, Just(0), any::<u64>()], 0..4);
    let pointed = || prop::option::weighted(0.8, letters(20));
    (
        (any::<[u8; 8]>(), [number(), number(), number()], [bytes(), bytes()], any::<[u8; 11]>()),
        ([pointed(), pointed()], [bytes(), bytes()], mask, letters(15), 0_u32..4),
    )
        .prop_map(|((common, numbers, texts, odd), (pointed, data, mask, comm, cpu))| Given {
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

impl Given {
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

    /// What the code says, with the record as context.
    fn by_record(&self, code: &Code) -> bool {
        let mut machine = self.machine();
        let mut context = self.record();
        context.resize(0x20_000, 0);
        let ctx = machine.map(Access::Context(FIXED), &context);
        self.run(machine, code, ctx)
    }

    fn run(&self, mut machine: Machine, code: &Code, ctx: u64) -> bool {
        // Garbage from an earlier hit.
        let scratch = machine.map(Access::Memory, &vec![b'a'; tracer_abi::FILTER_AREA]);
        let common = u64::from_le_bytes(self.common);
        let scratch = if code.needs.scratch { scratch } else { 0 };
        match machine.run(&code.functions, &[ctx, scratch, common]) {
            Ok(result) => result != 0,
            Err(trap) => panic!("{trap}\n{}", listing::functions(&code.functions)),
        }
    }
}

/// The structural checker on a filter and its callbacks.
fn checked(code: &Code, hidden: u16) {
    let filter = [Argument::Context(hidden), Argument::Memory, Argument::Number];
    let callback = [Argument::Number, Argument::Memory];
    for (number, function) in code.functions.iter().enumerate() {
        let arguments = if number == 0 { &filter[..] } else { &callback[..] };
        if let Err(fault) = checker::check(function, arguments) {
            panic!("{}: {fault}\n{}", function.name, listing::functions(&code.functions));
        }
    }
}

/// A cast that [`Machine`] takes.
const CAST: Cast = Cast { function: 77, structure: 88, window: 65 };

/// The function called by a program that has its own registers and stack to lose, all passes run; -1 when it lost one.
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
    Function { name: "whole".into(), insns: improve(insns, cast), ..Function::default() }
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
            for hook in [Hook::Tracepoint, Hook::Inject] {
                let code = filter(&plan, &hook).unwrap();
                checked(&code, if hook == Hook::Tracepoint { 8 } else { 0 });
                for given in &givens {
                    let expected = given.expected(&plan);
                    passed[usize::from(expected)].update(|seen| seen + 1);
                    prop_assert_eq!(given.by_record(&code), expected, "{} at {:?}", plan, hook);
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(passed[0].get().min(passed[1].get()) > 1500, "both outcomes are common: {passed:?}");
}

/// Kernel memory behind the arguments in the tests of raw tracepoints: two objects, the second also reached
/// through a pointer at offset 64 of the first.
const OBJECTS: [u64; 2] = [0x7200_0000_0000, 0x7300_0000_0000];

/// Fields of any source at any place of a record, as `(size, source)` in their order.
fn sources() -> impl Strategy<Value = Vec<FieldSource>> {
    let offset = || 0_u32..24;
    let memory = (0_u8..2, offset(), prop::sample::select(vec![1_u32, 2, 4, 8, 16]), any::<bool>()).prop_map(
        |(arg, at, size, aligned)| {
            let at = if aligned { at * size.min(8) } else { at * 5 };
            (size as u16, Source::Memory { arg, path: vec![at] })
        },
    );
    let chain = (offset(), prop::sample::select(vec![4_u16, 8]))
        .prop_map(|(at, size)| (size, Source::Memory { arg: 0, path: vec![64, at * 8] }));
    let extended =
        (offset(), prop::sample::select(vec![1_u8, 2, 4]), any::<bool>()).prop_map(|(at, width, signed)| {
            (8, Source::Extended { arg: 1, path: vec![at * u32::from(width)], width, signed })
        });
    let args = any::<(bool, bool)>().prop_map(|(compat, on)| {
        let regs = [40, 88, 96, 104, 112, 32];
        let other = CompatArgs { task_offset: 128, mask: if on { 2 } else { 4 }, regs };
        let native = [112, 104, 96, 56, 72, 64];
        (48, Source::SyscallArgs(SyscallArgs { regs: 1, native, compat: compat.then_some(other) }))
    });
    let state = Just((8, Source::SwitchState(SwitchState { preempt: 2, state: 3, task: 1, exit_state: 20 })));
    let field = prop_oneof![
        (0_u8..4, prop::sample::select(vec![1_u16, 2, 4, 8]))
            .prop_map(|(arg, size)| (size, Source::Arg(arg))),
        (any::<u64>(), prop::sample::select(vec![4_u16, 8]))
            .prop_map(|(value, size)| (size, Source::Const(value))),
        memory,
        chain,
        extended,
        args,
        state,
    ];
    prop::collection::vec((field, 0_u16..2), 1..8).prop_map(placed)
}

/// Puts fields one behind the other, aligned, with gaps now and then.
fn placed(fields: Vec<((u16, Source), u16)>) -> Vec<FieldSource> {
    let mut offset = 8;
    fields
        .into_iter()
        .map(|((size, source), gap)| {
            offset = (offset + gap * 3).next_multiple_of(size.min(8));
            let field = FieldSource { offset, size, source };
            offset += size;
            field
        })
        .collect()
}

/// What a hit at a raw tracepoint finds.
#[derive(Clone, Debug)]
struct Hit {
    args: [u64; 4],
    objects: [Vec<u8>; 2],
    /// Whether the second object cannot be read.
    gone: bool,
    task: Vec<u8>,
}

fn hit() -> impl Strategy<Value = Hit> {
    let bytes = || prop::collection::vec(prop_oneof![Just(b'a'), any::<u8>()], 256);
    (bytes(), bytes(), prop::bool::weighted(0.1), bytes(), any::<bool>(), number()).prop_map(
        |(mut first, second, gone, task, preempted, state)| {
            first[64..72].copy_from_slice(&OBJECTS[1].to_le_bytes());
            let args = [OBJECTS[0], OBJECTS[1], u64::from(preempted), state & 0xffff];
            Hit { args, objects: [first, second], gone, task }
        },
    )
}

impl Hit {
    /// `size` bytes at the end of a path; zeroes where they cannot be read.
    fn memory(&self, arg: u8, path: &[u32], size: usize) -> Vec<u8> {
        let mut address = self.args[usize::from(arg)];
        let mut bytes = vec![0; size];
        for (number, offset) in path.iter().enumerate() {
            address = address.wrapping_add(u64::from(*offset));
            let wanted = if number + 1 < path.len() { 8 } else { size };
            bytes = self.at(address, wanted).unwrap_or_else(|| vec![0; wanted]);
            if wanted == 8 && number + 1 < path.len() {
                address = u64::from_le_bytes(bytes.clone().try_into().unwrap());
            }
        }
        bytes
    }

    fn at(&self, address: u64, size: usize) -> Option<Vec<u8>> {
        let number = OBJECTS.iter().position(|base| address >> 40 == base >> 40)?;
        let start = (address - OBJECTS[number]) as usize;
        let object = &self.objects[number];
        (!(number == 1 && self.gone)).then(|| object.get(start..start + size).map(<[u8]>::to_vec))?
    }

    fn field(&self, source: &Source, size: usize) -> Vec<u8> {
        let number = |value: u64| value.to_le_bytes()[..size].to_vec();
        match source {
            Source::Arg(arg) => number(self.args[usize::from(*arg)]),
            Source::Const(value) => number(*value),
            Source::Memory { arg, path } => self.memory(*arg, path, size),
            Source::Extended { arg, path, width, signed } => {
                let mut bytes = self.memory(*arg, path, usize::from(*width));
                let fill = if *signed && bytes[bytes.len() - 1] >= 0x80 { 0xff } else { 0 };
                bytes.resize(size, fill);
                bytes
            }
            Source::SyscallArgs(args) => {
                let flags = u32::from_le_bytes(self.task[128..132].try_into().unwrap());
                let regs = match args.compat {
                    Some(compat) if flags & compat.mask != 0 => compat.regs,
                    _ => args.native,
                };
                regs.iter().flat_map(|reg| self.memory(args.regs, &[*reg], 8)).collect()
            }
            Source::SwitchState(_) => {
                let exit = self.memory(1, &[20], 4);
                let exit = u64::from(u32::from_le_bytes(exit.try_into().unwrap()));
                let state = self.args[3];
                // As include/trace/events/sched.h and include/linux/sched.h say, bit by bit.
                let report = if self.args[2] != 0 {
                    0x100
                } else if state & 0x9000 != 0 {
                    2
                } else if state & 0x402 == 0x402 {
                    0x80
                } else {
                    (0..7).rev().map(|bit| 1 << bit).find(|bit| (state | exit) & bit != 0).unwrap_or(0)
                };
                number(report)
            }
        }
    }

    fn record(&self, fields: &[FieldSource], size: usize) -> Vec<u8> {
        let mut record = vec![0; size];
        for field in fields {
            let start = usize::from(field.offset);
            let bytes = self.field(&field.source, usize::from(field.size));
            record[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        record
    }

    /// A machine with this in memory, and the address of the arguments.
    fn machine(&self) -> (Machine, u64) {
        let mut machine = Machine::new();
        machine.map_at(OBJECTS[0], Access::Kernel, &self.objects[0]);
        if !self.gone {
            machine.map_at(OBJECTS[1], Access::Kernel, &self.objects[1]);
        }
        machine.task = machine.map(Access::Kernel, &self.task);
        let args: Vec<u8> = self.args.iter().flat_map(|arg| arg.to_le_bytes()).collect();
        let ctx = machine.map(Access::Context(args.len()), &args);
        (machine, ctx)
    }
}

/// A format that has these fields.
fn format_of(fields: &[FieldSource]) -> Format {
    let mut text = String::from("name: made\nID: 1\nformat:\n");
    for (number, FieldSource { offset, size, .. }) in fields.iter().enumerate() {
        let (ty, brackets) = match size {
            1 => ("u8", String::new()),
            2 => ("u16", String::new()),
            4 => ("u32", String::new()),
            8 => ("u64", String::new()),
            _ => ("char", format!("[{size}]")),
        };
        let place = format!("offset:{offset};\tsize:{size};\tsigned:0;");
        text.extend(["\tfield:", ty, &format!(" f{number}"), &brackets, ";\t", &place, "\n"]);
    }
    Format::parse("test", &text).unwrap()
}

#[test]
fn raw_records_hold_what_the_sources_say() {
    runner(1200)
        .run(&(sources(), hit()), |(fields, hit)| {
            let format = format_of(&fields);
            let code = record(&format, &Hook::RawTracepoint(fields.clone())).unwrap();
            let listed = listing::functions(&code.functions);
            checker::check(&code.functions[0], &[Argument::Context(0), Argument::Memory]).unwrap();
            let (mut machine, ctx) = hit.machine();
            let payload = machine.map(Access::Memory, &[0xee; 1024]);
            let size = match machine.run(&code.functions, &[ctx, payload]) {
                Ok(size) => size as usize,
                Err(trap) => panic!("{trap}\n{listed}"),
            };
            prop_assert_eq!(Some(size), code.size);
            prop_assert!(size >= format.fixed_size() && size < format.fixed_size() + 8);
            let expected = hit.record(&fields, size);
            prop_assert_eq!(&machine.bytes(payload)[8..size], &expected[8..], "{}", listed);
            prop_assert!(machine.bytes(payload)[size..].iter().all(|byte| *byte == 0xee), "{}", listed);
            // The same inside a whole program, with and without direct loads.
            for cast in [None, Some(CAST)] {
                let program = whole(&code, cast);
                let (mut machine, ctx) = hit.machine();
                machine.window = cast.map_or(0, |cast| u64::from(cast.window));
                let payload = machine.map(Access::Memory, &[0xee; 1024]);
                let listed = listing::functions(std::slice::from_ref(&program));
                match machine.run(std::slice::from_ref(&program), &[ctx, payload, 7]) {
                    Ok(got) => prop_assert_eq!(got as usize, size, "{}", listed),
                    Err(trap) => panic!("{trap}\n{listed}"),
                }
                prop_assert_eq!(&machine.bytes(payload)[8..size], &expected[8..], "{}", listed);
                prop_assert!(cast.is_none() || !machine.calls.contains(&113), "{}", listed);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn raw_filters_agree_with_the_evaluator() {
    let tests = (0_usize..8, any::<bool>(), number_op(), number(), pattern(), any::<bool>());
    let passed = [const { std::cell::Cell::new(0) }; 2];
    runner(600)
        .run(&(sources(), filters_of(tests), prop::collection::vec(hit(), 4)), |(fields, shape, hits)| {
            let plan = resolved(&shape, &fields);
            let code = filter(&plan, &Hook::RawTracepoint(fields.clone())).unwrap();
            checked(&code, 0);
            let size = format_of(&fields).fixed_size();
            for hit in &hits {
                let record = hit.record(&fields, size);
                let env = EvalEnv { cpu: 0, comm: [0; 16], read: &|_, _| None };
                let expected = eval::matches(&plan, &record, &env);
                let (mut machine, ctx) = hit.machine();
                let scratch = machine.map(Access::Memory, &vec![b'a'; tracer_abi::FILTER_AREA]);
                let got = match machine.run(&code.functions, &[ctx, scratch, 0]) {
                    Ok(got) => got != 0,
                    Err(trap) => panic!("{trap}\n{}", listing::functions(&code.functions)),
                };
                passed[usize::from(expected)].update(|seen| seen + 1);
                prop_assert_eq!(got, expected, "{}\n{}", plan, listing::functions(&code.functions));
                if code.functions.len() == 1 {
                    let program = whole(&code, Some(CAST));
                    let (mut machine, ctx) = hit.machine();
                    machine.window = u64::from(CAST.window);
                    let scratch = machine.map(Access::Memory, &vec![b'a'; tracer_abi::FILTER_AREA]);
                    let listed = listing::functions(std::slice::from_ref(&program));
                    match machine.run(std::slice::from_ref(&program), &[ctx, scratch, 0]) {
                        Ok(got) => prop_assert_eq!(got != 0, expected, "{}\n{}", plan, listed),
                        Err(trap) => panic!("{trap}\n{listed}"),
                    }
                }
                // Each piece of memory is read at most once for its fields.
                let limit = 2 * fields.len() + 2 * plan.tests().len();
                prop_assert!(machine.calls.len() <= limit, "{} calls", machine.calls.len());
            }
            Ok(())
        })
        .unwrap();
    assert!(passed[0].get().min(passed[1].get()) > 300, "both outcomes are common: {passed:?}");
}

/// A test before it is known which fields there are.
type Shape = (usize, bool, NumberOp, u64, Pattern, bool);

fn filters_of(
    shape: impl Strategy<Value = Shape> + 'static,
) -> impl Strategy<Value = Vec<Vec<(Shape, bool)>>> {
    prop::collection::vec(prop::collection::vec((shape, any::<bool>()), 1..4), 1..4)
}

/// All of some of these, each perhaps not.
fn resolved(shape: &[Vec<(Shape, bool)>], fields: &[FieldSource]) -> Filter {
    let one = |((field, signed, op, value, pattern, not), inverted): &(Shape, bool)| {
        let FieldSource { offset, size, source } = &fields[field % fields.len()];
        let place = Place { offset: *offset, size: *size };
        let test = match (size, source) {
            (1 | 2 | 4 | 8, _) => {
                Test::Number { place, signed: *signed, op: *op, value: fitted(*value, *size, *signed) }
            }
            (_, Source::Memory { .. }) => {
                Test::Text { text: Text::Static(place), pattern: pattern.clone(), not: *not }
            }
            // One of the six arguments.
            _ => Test::Number {
                place: Place { offset: offset + 8 * (field % 6) as u16, size: 8 },
                signed: *signed,
                op: *op,
                value: *value,
            },
        };
        if *inverted { Filter::Not(Box::new(Filter::Test(test))) } else { Filter::Test(test) }
    };
    Filter::And(shape.iter().map(|any| Filter::Or(any.iter().map(one).collect())).collect())
}
