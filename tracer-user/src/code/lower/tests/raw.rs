//! Raw tracepoints: records and filters whose values come from arguments and the memory that they point to.

use super::{
    expression::{expression, worth},
    *,
};

/// Kernel memory behind the arguments: two objects. The second is also reachable through a pointer at offset 64 of the
/// first.
const OBJECTS: [u64; 2] = [0x7200_0000_0000, 0x7300_0000_0000];

/// Fields with any source at any place of a record, as `(size, source)` in order.
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
    let computed = (expression(), prop::sample::select(vec![1_u16, 2, 4, 8]))
        .prop_map(|(expression, size)| (size, Source::Computed(Box::new(expression))));
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
        computed,
    ];
    prop::collection::vec((field, 0_u16..2), 1..8).prop_map(placed)
}

/// Places fields one after the other, aligned, with occasional gaps.
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

/// Arguments and memory at a hit of a raw tracepoint.
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
        let start = usize::try_from(address.checked_sub(OBJECTS[number])?).ok()?;
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
            Source::Computed(expression) => {
                let memory = |arg, path: &[u32], width: u8| {
                    let mut bytes = self.memory(arg, path, usize::from(width));
                    bytes.resize(8, 0);
                    u64::from_le_bytes(bytes.try_into().unwrap())
                };
                let at = |address: u64, width: u8| {
                    let mut bytes = self.at(address, usize::from(width)).unwrap_or_default();
                    bytes.resize(8, 0);
                    u64::from_le_bytes(bytes.try_into().unwrap())
                };
                number(worth(expression, &self.args, &memory, &at))
            }
            Source::SyscallArgs(args) => {
                let flags = u32::from_le_bytes(self.task[128..132].try_into().unwrap());
                let regs = match args.compat {
                    Some(compat) if flags & compat.mask != 0 => compat.regs,
                    _ => args.native,
                };
                regs.iter().flat_map(|reg| self.memory(args.regs, &[*reg], 8)).collect()
            }
            Source::UserData(_) => panic!("`user_data` tests these"),
            Source::SwitchState(_) => {
                let exit = self.memory(1, &[20], 4);
                let exit = u64::from(u32::from_le_bytes(exit.try_into().unwrap()));
                let state = self.args[3];
                // As `include/trace/events/sched.h` and `include/linux/sched.h` define it, bit by bit.
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

    /// A machine with this memory, and the address of the arguments.
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

/// A format with these fields.
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
fn raw_records_agree_with_their_sources() {
    runner(1200)
        .run(&(sources(), hit()), |(fields, hit)| {
            let format = format_of(&fields);
            let code = record(&format, &ProgramContext::RawTracepoint(fields.clone())).unwrap();
            let listed = listing::functions(&code.functions);
            checked(&code, &[Argument::Context(0), Argument::Memory]);
            let (mut machine, ctx) = hit.machine();
            let payload = machine.map(Access::Memory, &[0xee; 1024]);
            let size = run(&mut machine, &code.functions, &[ctx, payload]) as usize;
            prop_assert_eq!(Some(size), code.size);
            prop_assert!(size >= format.fixed_size() && size < format.fixed_size() + 8);
            let expected = hit.record(&fields, size);
            prop_assert_eq!(&machine.bytes(payload)[8..size], &expected[8..], "{}", listed);
            prop_assert!(machine.bytes(payload)[size..].iter().all(|byte| *byte == 0xee), "{}", listed);
            // The same inside a whole program, with and without direct loads.
            for cast in [None, Some(CAST)] {
                let program = [whole(&code, cast)];
                let (mut machine, ctx) = hit.machine();
                machine.window = cast.map_or(0, |cast| u64::from(cast.window));
                let payload = machine.map(Access::Memory, &[0xee; 1024]);
                let listed = listing::functions(&program);
                prop_assert_eq!(run(&mut machine, &program, &[ctx, payload, 7]) as usize, size, "{}", listed);
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
            let code = filter(&plan, &ProgramContext::RawTracepoint(fields.clone())).unwrap();
            checked(&code, &[Argument::Context(0), Argument::Memory, Argument::Number]);
            let size = format_of(&fields).fixed_size();
            for hit in &hits {
                let record = hit.record(&fields, size);
                let env = EvalEnv { cpu: 0, comm: [0; 16], read: &|_, _| None };
                let expected = eval::matches(&plan, &record, &env);
                let (mut machine, ctx) = hit.machine();
                let scratch = machine.map(Access::Memory, &vec![b'a'; tracer_abi::FILTER_AREA]);
                let got = run(&mut machine, &code.functions, &[ctx, scratch, 0]) != 0;
                passed[usize::from(expected)].update(|seen| seen + 1);
                prop_assert_eq!(got, expected, "{}\n{}", plan, listing::functions(&code.functions));
                if code.functions.len() == 1 {
                    let program = [whole(&code, Some(CAST))];
                    let (mut machine, ctx) = hit.machine();
                    machine.window = u64::from(CAST.window);
                    let scratch = machine.map(Access::Memory, &vec![b'a'; tracer_abi::FILTER_AREA]);
                    let got = run(&mut machine, &program, &[ctx, scratch, 0]) != 0;
                    prop_assert_eq!(got, expected, "{}\n{}", plan, listing::functions(&program));
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

/// A test before the fields are known.
type Shape = (usize, bool, NumberOp, u64, Pattern, bool);

fn filters_of(
    shape: impl Strategy<Value = Shape> + 'static,
) -> impl Strategy<Value = Vec<Vec<(Shape, bool)>>> {
    prop::collection::vec(prop::collection::vec((shape, any::<bool>()), 1..4), 1..4)
}

/// A conjunction of disjunctions of tests, some of them inverted.
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
