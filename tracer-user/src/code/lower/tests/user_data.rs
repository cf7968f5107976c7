//! Records of system calls with data in user memory, and filters on them.

use std::fmt::Write as _;
use std::mem::offset_of;

use tracer_abi::Switches;

use super::*;
use crate::plan::source::UserData;

/// Address of the registers, and offsets in them.
const REGS: u64 = 0x7200_0000_0000;
const POINTERS: [u32; 3] = [112, 104, 88];
const LENGTH: u32 = 96;
/// Where the fields of the record end: three arguments and the words of the data.
const FIXED: usize = 16 + 3 * 8;

/// The data of a hit: what is at each pointer, or `None` for memory that cannot be read.
#[derive(Clone, Debug)]
struct Hit {
    data: [Option<Vec<u8>>; 3],
    length: u64,
    max: u32,
}

fn hit() -> impl Strategy<Value = Hit> {
    let byte = prop_oneof![8 => b'a'..=b'c', 1 => any::<u8>()];
    let data = || prop::option::weighted(0.9, prop::collection::vec(byte.clone(), 0..260));
    let length = prop_oneof![Just(0), 0_u64..260, any::<u64>()];
    let max = prop_oneof![Just(0_u32), Just(63), 0_u32..=165, any::<u32>()];
    ([data(), data(), data()], length, max).prop_map(|(data, length, max)| Hit { data, length, max })
}

/// `isprint()` of the kernel.
fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e | 0xa0..)
}

impl Hit {
    fn max(&self) -> usize {
        self.max.min(165) as usize
    }

    /// The recorded bytes of a text.
    fn text(&self, number: usize) -> Vec<u8> {
        let Some(bytes) = self.data[number].as_ref().filter(|_| self.max > 0) else { return Vec::new() };
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let shown = text.iter().map(|byte| if is_printable(*byte) { *byte } else { b'.' });
        if text.len() > self.max() {
            return shown.take(self.max()).chain(*b"...\0").collect();
        }
        shown.chain([0]).collect()
    }

    /// The recorded bytes of data with a length.
    fn bytes(&self, number: usize) -> Vec<u8> {
        let wanted = (self.length.min(169) as usize).min(self.max());
        let Some(bytes) = &self.data[number] else { return Vec::new() };
        bytes.iter().copied().chain(std::iter::repeat(0)).take(wanted).collect()
    }

    /// The record of data of these kinds, with zeroes up to the alignment.
    fn record(&self, fields: &[FieldSource]) -> Vec<u8> {
        let of = |number: usize, field: &FieldSource| match field.source {
            Source::UserData(UserData { length: None, .. }) => self.text(number),
            _ => self.bytes(number),
        };
        let with_data: Vec<&FieldSource> = data(fields).collect();
        let mut record = vec![0; FIXED + 4 * with_data.len()];
        record[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        for (number, pointer) in (0..3).zip(POINTERS) {
            let at = 16 + 8 * number;
            record[at..at + 8].copy_from_slice(&address(number).to_ne_bytes());
            assert_ne!(pointer, LENGTH);
        }
        for (number, field) in with_data.into_iter().enumerate() {
            let bytes = of(number, field);
            let word = record.len() as u32 | (bytes.len() as u32) << 16;
            let at = usize::from(field.offset);
            record[at..at + 4].copy_from_slice(&word.to_ne_bytes());
            record.extend(bytes);
        }
        record.resize(record.len().next_multiple_of(4), 0);
        record
    }

    /// A machine at this hit, and the address of the arguments.
    fn machine(&self) -> (Machine, u64) {
        let mut machine = Machine::new();
        let mut regs = vec![0; 168];
        let mut set = |at: u32, value: u64| regs[at as usize..][..8].copy_from_slice(&value.to_ne_bytes());
        for (number, (pointer, bytes)) in POINTERS.into_iter().zip(&self.data).enumerate() {
            set(pointer, address(number));
            if let Some(bytes) = bytes {
                // A text ends at the end of its memory.
                machine.map_at(address(number), Access::User, &[bytes.as_slice(), &[0; 200]].concat());
            }
        }
        set(LENGTH, self.length);
        machine.map_at(REGS, Access::Kernel, &regs);
        let mut switches = vec![0; size_of::<Switches>()];
        switches[offset_of!(Switches, user_data)..][..4].copy_from_slice(&self.max.to_ne_bytes());
        machine.map_value = machine.map(Access::Memory, &switches);
        let args: Vec<u8> = [REGS, 7].iter().flat_map(|arg| arg.to_ne_bytes()).collect();
        let ctx = machine.map(Access::Context(args.len()), &args);
        (machine, ctx)
    }
}

fn address(number: usize) -> u64 {
    0x7000_0000_0000 + ((number as u64) << 36)
}

fn data(fields: &[FieldSource]) -> impl Iterator<Item = &FieldSource> {
    fields.iter().filter(|field| matches!(field.source, Source::UserData(_)))
}

/// A system call with this many texts, or with data of a length.
fn fields(texts: usize) -> Vec<FieldSource> {
    let mut fields = vec![FieldSource { offset: 8, size: 4, source: Source::Const(7) }];
    for (number, pointer) in (0..).zip(POINTERS) {
        let source = Source::Memory { arg: 0, path: vec![pointer] };
        fields.push(FieldSource { offset: 16 + 8 * number, size: 8, source });
    }
    let length = (texts == 0).then_some(LENGTH);
    for (number, pointer) in (0..).zip(POINTERS).take(texts.max(1)) {
        let source = Source::UserData(UserData { regs: 0, pointer, length });
        fields.push(FieldSource { offset: FIXED as u16 + 4 * number, size: 4, source });
    }
    fields
}

fn format(fields: &[FieldSource]) -> Format {
    let mut text = String::from("name: sys_enter_made\nID: 1\nformat:\n");
    for (number, FieldSource { offset, size, source }) in fields.iter().enumerate() {
        let ty = match source {
            Source::UserData(_) => "__data_loc char[]",
            Source::Const(_) => "int",
            _ => "unsigned long",
        };
        writeln!(text, "\tfield:{ty} f{number};\toffset:{offset};\tsize:{size};\tsigned:0;").unwrap();
    }
    Format::parse("syscalls", &text).unwrap()
}

#[test]
fn data_of_system_calls_are_recorded_as_the_kernel_records_them() {
    let lengths = std::cell::RefCell::new(std::collections::BTreeSet::new());
    for texts in 0..=3 {
        let fields = fields(texts);
        let code = record(&format(&fields), &ProgramContext::RawTracepoint(fields.clone())).unwrap();
        assert_eq!(code.size, None);
        checked(&code, &[Argument::Context(0), Argument::Memory]);
        runner(500)
            .run(&hit(), |hit| {
                let (mut machine, ctx) = hit.machine();
                let payload = machine.map(Access::Memory, &[0xee; 1024]);
                let size = run(&mut machine, &code.functions, &[ctx, payload]) as usize;
                let expected = hit.record(&fields);
                lengths.borrow_mut().insert(expected.len());
                let shown = || listing::functions(&code.functions);
                prop_assert_eq!(&machine.bytes(payload)[8..size], &expected[8..], "{:?}\n{}", hit, shown());
                Ok(())
            })
            .unwrap();
    }
    assert!(lengths.borrow().len() > 100, "{lengths:?}");
}

#[test]
fn filters_on_data_of_system_calls_agree_with_the_evaluator() {
    let passed = [const { std::cell::Cell::new(0) }; 2];
    let one = (0_usize..4, pattern(), any::<bool>(), number_op(), number());
    let filters = prop::collection::vec((one, any::<bool>()), 1..4);
    let hits = prop::collection::vec(hit(), 6);
    runner(500)
        .run(&(0_usize..=3, filters, hits), |(texts, shape, hits)| {
            let fields = fields(texts);
            let test = |((which, pattern, not, op, value), inverted): &((usize, _, _, _, _), bool)| {
                let words: Vec<&FieldSource> = data(&fields).collect();
                let test = match words.get(*which) {
                    Some(field) => Test::Text {
                        text: Text::Dyn { offset: field.offset },
                        pattern: Pattern::clone(pattern),
                        not: *not,
                    },
                    None => Test::Number {
                        place: Place { offset: 16, size: 8 },
                        signed: false,
                        op: *op,
                        value: *value,
                    },
                };
                if *inverted { Filter::Not(Box::new(Filter::Test(test))) } else { Filter::Test(test) }
            };
            let plan = Filter::Or(shape.iter().map(test).collect());
            let code = filter(&plan, &ProgramContext::RawTracepoint(fields.clone())).unwrap();
            checked(&code, &[Argument::Context(0), Argument::Memory, Argument::Number]);
            for hit in &hits {
                let record = hit.record(&fields);
                let env = EvalEnv { cpu: 0, comm: [0; 16], read: &|_, _| None };
                let expected = eval::matches(&plan, &record, &env);
                let (mut machine, ctx) = hit.machine();
                let scratch = machine.map(Access::Memory, &vec![b'a'; tracer_abi::SCRATCH_SIZE]);
                // The template passes the place after the record's.
                let scratch = scratch + tracer_abi::RECORD_AREA as u64;
                let got = run(&mut machine, &code.functions, &[ctx, scratch, 0]) != 0;
                passed[usize::from(expected)].update(|seen| seen + 1);
                prop_assert_eq!(
                    got,
                    expected,
                    "{}\n{:?}\n{}",
                    plan,
                    hit,
                    listing::functions(&code.functions)
                );
            }
            Ok(())
        })
        .unwrap();
    assert!(passed[0].get().min(passed[1].get()) > 300, "both outcomes are common: {passed:?}");
}
