//! Lowered dynamic events, run by the interpreter and compared with a model that takes the kernel's steps one by one
//! (`process_fetch_insn_bottom()` and `store_trace_args()`, `kernel/trace/trace_probe_tmpl.h`).

use tracer_abi::{RECORD_AREA, SCRATCH_SIZE};

use super::*;
use crate::{
    lang::{facts::Arch, fetch::Store},
    plan::probe::{ArgPlan, BitShifts, Deref, Origin, ProbeContext, ProbePlan, Step, Value},
};

/// Addresses of kernel and user memory.
const KERNEL: u64 = 0xffff_8880_0000_0000;
const USER: u64 = 0x7f00_0000_0000;
/// Size of each in bytes.
const SIZE: usize = 256;
/// The CPU of the hits.
const CPU: u32 = 3;
/// Bytes of `struct pt_regs` on x86.
const REGISTERS: usize = 168;

/// Pointers into both memories, also near their ends, and texts.
fn memory(own: u64, other: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (n, word) in (0_u64..).zip([own + 128, other + 64, own + 8, 0, 5, other + 250, own + 132, own + 255])
    {
        bytes.extend((word + n % 2).to_le_bytes());
    }
    bytes.extend(b"a text of some length\0");
    bytes.resize(128, b'x');
    bytes.extend(b"\0second\0third \xff\0");
    bytes.resize(SIZE, 0x80);
    bytes
}

fn read(address: u64, size: usize) -> Option<Vec<u8>> {
    let (base, bytes) =
        if address >> 63 == 1 { (KERNEL, memory(KERNEL, USER)) } else { (USER, memory(USER, KERNEL)) };
    let at = usize::try_from(address.checked_sub(base)?).ok()?;
    bytes.get(at..at.checked_add(size)?).map(<[u8]>::to_vec)
}

fn word(address: u64) -> Option<u64> {
    Some(u64::from_le_bytes(read(address, 8)?.try_into().ok()?))
}

/// A text with its NUL. An empty text in user space counts as missing, as on kernels whose helper returns 0 for it.
fn string(address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    loop {
        text.push(read(address.wrapping_add(text.len() as u64), 1)?[0]);
        if text.last() == Some(&0) {
            return Some(text).filter(|text| text.len() > 1 || address >> 63 == 1);
        }
    }
}

/// The record that the model builds.
fn model(plan: &ProbePlan, registers: &[u64], comm: &[u8; 16]) -> Vec<u8> {
    let mut record = vec![0; plan.fixed];
    let mut texts: Vec<u8> = Vec::new();
    let value = |value: &Value| match value.from {
        Origin::Nothing => value.plus.cast_unsigned(),
        Origin::Context(at) => registers[usize::from(at) / 8].wrapping_add_signed(value.plus),
        _ => 0,
    };
    for (n, head) in plan.head.iter().enumerate() {
        record[8 + 8 * n..16 + 8 * n].copy_from_slice(&value(head).to_le_bytes());
    }
    for arg in &plan.args {
        let own = match &arg.value.from {
            Origin::Comm => Some(comm.split_inclusive(|byte| *byte == 0).next().unwrap_or(comm).to_vec()),
            Origin::Text(text) => Some([&text[..], b"\0"].concat()),
            _ => None,
        };
        let mut put = |record: &mut Vec<u8>, at: usize, text: Option<Vec<u8>>| {
            let text = text.unwrap_or_default();
            let place = (text.len() as u32) << 16 | (plan.fixed + texts.len()) as u32;
            record[at..at + 4].copy_from_slice(&place.to_le_bytes());
            texts.extend(text);
        };
        if let Some(own) = own {
            put(&mut record, arg.offset, Some(own));
            continue;
        }
        let at = |element: u32| arg.offset + (element * arg.size) as usize;
        let step = |from: Option<u64>, step: &Step| match step {
            Step::Deref(deref) => word(from?.wrapping_add_signed(deref.offset.into())),
            Step::ThisCpu { table } => Some(from?.wrapping_add(word(table + 8 * u64::from(CPU))?)),
        };
        let through = |steps: &[Step], from: Option<u64>| steps.iter().fold(from, step);
        let last = arg.steps.len() - usize::from(arg.is_text() && arg.count > 1);
        let base = through(&arg.steps[..last], Some(value(&arg.value)));
        for element in 0..arg.count {
            if arg.is_text() {
                let step = base.map(|base| base.wrapping_add(8 * u64::from(element)));
                let from = through(&arg.steps[last..], if arg.count > 1 { step } else { base });
                put(
                    &mut record,
                    at(element),
                    from.and_then(|from| string(from.wrapping_add_signed(arg.store_offset.into()))),
                );
                continue;
            }
            let size = arg.size as usize;
            let bytes = match arg.store {
                Store::Raw => base.map(|value| value.to_le_bytes()[..size].to_vec()),
                // The generated code reads all elements at once.
                _ => base.and_then(|base| {
                    let all = read(base.wrapping_add_signed(arg.store_offset.into()), arg.bytes())?;
                    Some(all[element as usize * size..][..size].to_vec())
                }),
            };
            let mut wide = [0; 8];
            wide[..size].copy_from_slice(&bytes.unwrap_or(vec![0; size]));
            let mut number = u64::from_le_bytes(wide);
            if let Some(BitShifts { left, right, size }) = arg.bits {
                let mask = u64::MAX >> (64 - 8 * size);
                number = (number << left & mask) >> right;
            }
            record[at(element)..at(element) + size].copy_from_slice(&number.to_le_bytes()[..size]);
        }
    }
    record.extend(texts);
    record.resize(record.len().next_multiple_of(4), 0);
    record
}

fn source() -> impl Strategy<Value = Value> {
    let register = (0_u16..20).prop_map(|n| Value { from: Origin::Context(8 * n), plus: 0 });
    prop_oneof![
        4 => register,
        1 => (0_u64..SIZE as u64).prop_map(|at| Value::number(KERNEL + at)),
        1 => (0_u64..SIZE as u64).prop_map(|at| Value::number(USER + at)),
        1 => Just(Value::number(0)),
    ]
}

/// An argument without its place.
fn plain(
    value: Value,
    steps: Vec<Step>,
    store: Store,
    store_offset: i32,
    size: u32,
    count: u32,
    bits: Option<BitShifts>,
) -> ArgPlan {
    ArgPlan { name: "a".to_owned(), offset: 0, size, count, value, steps, store, store_offset, bits }
}

/// Selections of bits: of the argument's own size, or, as for members of structs, of eight bytes.
fn shifts() -> impl Strategy<Value = Option<BitShifts>> {
    let shifts = |left, right| (left, right).prop_map(|(left, right)| BitShifts { left, right, size: 8 });
    prop_oneof![
        3 => Just(None),
        1 => shifts(0_u8..8, 0_u8..8).prop_map(Some),
        1 => shifts(32_u8..64, 32_u8..64).prop_map(Some),
    ]
}

fn argument() -> impl Strategy<Value = ArgPlan> {
    let size = prop::sample::select(vec![1_u32, 2, 4, 8]);
    let deref = |n: i32| Step::Deref(Deref { user: false, offset: 8 * n });
    let step = prop_oneof![
        6 => (0_i32..9).prop_map(deref),
        1 => (0_u64..SIZE as u64 / 8).prop_map(|n| Step::ThisCpu { table: KERNEL + 8 * n }),
    ];
    let steps = prop::collection::vec(step, 0..3);
    let numbers = (source(), steps.clone(), size, 1_u32..4, any::<bool>(), shifts(), 0_i32..200);
    let numbers = numbers.prop_map(move |(value, steps, size, count, raw, bits, offset)| {
        let bits =
            bits.map(|wide| if wide.left < 32 { BitShifts { size: size as u8, ..wide } } else { wide });
        if raw {
            plain(value, steps, Store::Raw, 0, size, 1, bits)
        } else {
            plain(value, steps, Store::Memory, offset, size, count, bits)
        }
    });
    let texts = (source(), steps, 0_i32..40, 1_u32..4).prop_map(move |(value, mut steps, offset, count)| {
        if count > 1 && !matches!(steps.last(), Some(Step::Deref(_))) {
            steps.push(deref(0));
        }
        plain(value, steps, Store::Text, offset, 4, count, None)
    });
    let own = prop_oneof![
        Just(Value { from: Origin::Comm, plus: 0 }),
        letters(20).prop_map(|text| Value { from: Origin::Text(text), plus: 0 }),
    ];
    let own = own.prop_map(move |value| plain(value, Vec::new(), Store::Text, 0, 4, 1, None));
    prop_oneof![3 => numbers, 3 => texts, 1 => own]
}

fn plan() -> impl Strategy<Value = ProbePlan> {
    prop::collection::vec(argument(), 0..6).prop_map(|mut args| {
        let mut fixed = 16;
        for arg in &mut args {
            arg.offset = fixed;
            fixed += arg.bytes();
        }
        let head = vec![Value { from: Origin::Context(128), plus: -1 }];
        let context = ProbeContext::Registers(Arch::X86_64);
        ProbePlan { context, user: false, head, args, fixed, entry_args: Vec::new(), when: None }
    })
}

fn registers() -> impl Strategy<Value = Vec<u64>> {
    let one = prop_oneof![
        (0_u64..SIZE as u64).prop_map(|at| KERNEL + at),
        (0_u64..SIZE as u64).prop_map(|at| USER + at),
        number(),
    ];
    prop::collection::vec(one, REGISTERS / 8)
}

/// A machine with both memories, with the addresses of the context and of the scratch memory.
fn machine(registers: &[u64], comm: &[u8; 16]) -> (Machine, u64, u64) {
    let mut machine = Machine::new();
    machine.comm = *comm;
    machine.cpu = CPU;
    machine.map_at(KERNEL, Access::Kernel, &memory(KERNEL, USER));
    machine.map_at(USER, Access::User, &memory(USER, KERNEL));
    let registers: Vec<u8> = registers.iter().flat_map(|word| word.to_le_bytes()).collect();
    let context = machine.map(Access::Context(REGISTERS), &registers);
    let scratch = machine.map(Access::Memory, &vec![0xee; SCRATCH_SIZE]);
    (machine, context, scratch)
}

proptest! {
    #![proptest_config(Config { cases: 2000, ..Config::default() })]

    #[test]
    fn records_are_the_models(plan in plan(), registers in registers()) {
        let comm = *b"somebody\0\0\0\0\0\0\0\0";
        let code = super::super::record::probe_record(&plan).unwrap();
        checked(&code, &[Argument::Context(0), Argument::Memory]);
        let (mut machine, context, payload) = machine(&registers, &comm);
        let length = run(&mut machine, &code.functions, &[context, payload]);
        let wanted = model(&plan, &registers, &comm);
        let made = machine.bytes(payload);
        prop_assert_eq!(length as usize, wanted.len(), "{}", &plan);
        prop_assert_eq!(&made[8..wanted.len()], &wanted[8..], "{}", &plan);
    }

    /// A filter sees the values that the record would hold.
    #[test]
    fn filters_see_the_record(
        plan in plan(),
        registers in registers(),
        which in any::<prop::sample::Index>(),
        op in number_op(),
        flip in any::<bool>(),
    ) {
        let comm = [0; 16];
        let numbers: Vec<_> = plan.args.iter().filter(|arg| !arg.is_text()).collect();
        // For a record without numbers, the filter tests the head.
        let head = ArgPlan { offset: 8, ..plain(Value::number(0), Vec::new(), Store::Raw, 0, 8, 1, None) };
        let arg = if numbers.is_empty() { &head } else { numbers[which.index(numbers.len())] };
        let place = Place { offset: arg.offset as u16, size: arg.size as u16 };
        let record = model(&plan, &registers, &comm);
        let mut value = [0; 8];
        value[..arg.size as usize].copy_from_slice(&record[arg.offset..][..arg.size as usize]);
        let value = u64::from_le_bytes(value) ^ u64::from(flip);
        let filter = Filter::Test(Test::Number { place, signed: false, op, value });
        let code = super::super::filter(&filter, &ProgramContext::Probe(Box::new(plan.clone()))).unwrap();
        let (mut machine, context, scratch) = machine(&registers, &comm);
        let common = 0x11_0203_8001;
        let passed = run(&mut machine, &code.functions, &[context, scratch + RECORD_AREA as u64, common]);
        let mut wanted = record.clone();
        wanted[..8].copy_from_slice(&common.to_le_bytes());
        let env = EvalEnv { cpu: 0, comm, read: &|_, _| None };
        let seen = eval::matches(&filter, &wanted, &env);
        prop_assert_eq!(passed != 0, seen, "{} of {}", &filter, &plan);
    }
}
