//! Generates random filter plans over real formats from a seed, and records for them.
//!
//! Plans are built from fields instead of text, so that code generation is tested separately from the language. The
//! class of a field ([`FieldClass`]) determines the tests that the kernel's filter accepts for it.

use tracer_user::event::{Field, FieldClass, Format};
use tracer_user::plan::filter::{CpusOp, CpusSubject, Filter, NumberOp, Pattern, Place, Test, Text};

/// A small generator of numbers (xorshift64*), the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() >> 33) as usize % bound
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One element of the list.
    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// A number that tests and records often contain, or one at the edge of a size.
    pub fn number(&mut self) -> u64 {
        match self.below(8) {
            0..4 => self.below(4) as u64,
            4 => u64::MAX,
            5 => *self.of(&[0x7f, 0x80, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 63]),
            _ => self.word(),
        }
    }

    /// Up to `max` letters of a small alphabet, so that patterns match sometimes.
    pub fn letters(&mut self, max: usize) -> Vec<u8> {
        let count = self.below(max + 1);
        (0..count).map(|_| *self.of(b"aab")).collect()
    }
}

/// The fields that a filter may test: the event's own and the common ones.
fn testable(format: &Format) -> Vec<&Field> {
    let usable = |field: &&Field| match field.class {
        FieldClass::Number => matches!(field.size, 1 | 2 | 4 | 8),
        FieldClass::StaticString => field.size < 1024,
        FieldClass::PtrString => field.size == 8,
        FieldClass::DynString | FieldClass::RelString | FieldClass::CpuMask => field.size == 4,
        _ => false,
    };
    format.fields.iter().chain(&format.common).filter(usable).collect()
}

fn place(field: &Field) -> Place {
    Place { offset: field.offset as u16, size: field.size as u16 }
}

/// A pattern for texts.
pub fn pattern(random: &mut Random) -> Pattern {
    match random.below(6) {
        0 => Pattern::Full(random.letters(14)),
        1 => Pattern::Front(random.letters(9)),
        2 => Pattern::Middle(random.letters(5)),
        3 => Pattern::End(random.letters(5)),
        _ => {
            let parts = ["a", "b", "*", "?", "[ab]", "[!a]", "[b-z]", "\\a", "ab", "[a"];
            Pattern::Glob((0..random.below(8)).flat_map(|_| random.of(&parts).bytes()).collect())
        }
    }
}

fn test(random: &mut Random, field: &Field) -> Test {
    let text = match field.class {
        FieldClass::StaticString if field.size == 0 => Text::Open { offset: field.offset as u16 },
        FieldClass::StaticString => Text::Static(place(field)),
        FieldClass::DynString => Text::Dyn { offset: field.offset as u16 },
        FieldClass::RelString => Text::Rel { offset: field.offset as u16 },
        FieldClass::PtrString => Text::Pointer { place: place(field), user: random.once_in(2) },
        FieldClass::CpuMask => {
            return Test::Cpus {
                subject: CpusSubject::Mask { offset: field.offset as u16 },
                op: *random.of(&[CpusOp::Eq, CpusOp::Ne, CpusOp::And]),
                set: cpus(random),
            };
        }
        _ => {
            let place = place(field);
            if field.size == 8 && random.once_in(8) {
                let (a, b) = (random.number(), random.number());
                return Test::Function { place, low: a.min(b), high: a.max(b), not: random.once_in(2) };
            }
            if field.size <= 4 && random.once_in(10) {
                let subject = CpusSubject::Scalar { place };
                return Test::Cpus { subject, op: CpusOp::And, set: cpus(random) };
            }
            let shift = 64 - 8 * u32::from(place.size);
            let value = random.number();
            let value = if field.signed {
                ((value << shift) as i64 >> shift) as u64
            } else {
                value << shift >> shift
            };
            return Test::Number { place, signed: field.signed, op: number_op(random), value };
        }
    };
    Test::Text { text, pattern: pattern(random), not: random.once_in(2) }
}

fn number_op(random: &mut Random) -> NumberOp {
    use NumberOp::{And, Eq, Ge, Gt, Le, Lt, Ne};
    *random.of(&[Eq, Ne, Lt, Le, Gt, Ge, And])
}

fn cpus(random: &mut Random) -> Vec<u32> {
    let bound = *random.of(&[8, 64, 200]);
    let mut set: Vec<u32> = (0..2 + random.below(12)).map(|_| random.below(bound) as u32).collect();
    set.sort_unstable();
    set.dedup();
    set
}

/// A test of one of the event's fields, the CPU or the task's name.
pub fn any_test(random: &mut Random, format: &Format) -> Test {
    match random.below(16) {
        0 => Test::Text { text: Text::Comm, pattern: pattern(random), not: random.once_in(2) },
        1 => Test::Cpu { op: NumberOp::Eq, value: random.below(4) as i32 },
        2 => Test::Cpus { subject: CpusSubject::Current, op: CpusOp::And, set: cpus(random) },
        _ => {
            let fields = testable(format);
            // Texts are rarer than numbers and generate more code.
            let texts: Vec<_> = fields.iter().filter(|field| field.class != FieldClass::Number).collect();
            if texts.is_empty() || random.once_in(2) {
                let field = fields[random.below(fields.len())];
                test(random, field)
            } else {
                let field = texts[random.below(texts.len())];
                test(random, field)
            }
        }
    }
}

/// A filter of about `tests` tests at most.
pub fn filter(random: &mut Random, format: &Format, tests: usize) -> Filter {
    if tests <= 1 {
        return Filter::Test(any_test(random, format));
    }
    let parts = 2 + random.below(3);
    let list = (0..parts).map(|_| filter(random, format, tests / parts)).collect();
    match random.below(5) {
        0 | 1 => Filter::And(list),
        2 | 3 => Filter::Or(list),
        _ => Filter::Not(Box::new(Filter::Or(list))),
    }
}

/// A record of the event: random values in fixed fields, and data after the location words that refer to it.
/// `pointers` are the values of `char *` fields.
pub fn record(random: &mut Random, format: &Format, pointers: &[u64]) -> Vec<u8> {
    let mut record = vec![0; format.fixed_size()];
    record[4..8].copy_from_slice(&(random.below(3) as u32).to_le_bytes());
    record[..4].copy_from_slice(&(random.number() as u32).to_le_bytes());
    for field in &format.fields {
        let (start, size) = (field.offset, field.size);
        match field.class {
            FieldClass::PtrString if size == 8 => {
                record[start..start + 8].copy_from_slice(&random.of(pointers).to_le_bytes());
            }
            FieldClass::Number if size <= 8 && !field.is_data_loc() && !field.is_rel_loc() => {
                record[start..start + size].copy_from_slice(&random.number().to_le_bytes()[..size]);
            }
            _ if field.is_data_loc() || field.is_rel_loc() => {
                let data = match field.class {
                    FieldClass::CpuMask => (0..8 * random.below(4)).map(|_| random.below(4) as u8).collect(),
                    _ => bytes(random, 20),
                };
                let from = if field.is_rel_loc() { start + 4 } else { 0 };
                let word = (data.len() << 16 | (record.len() - from)) as u32;
                record[start..start + 4].copy_from_slice(&word.to_le_bytes());
                record.extend(data);
            }
            // An array without a length is the last field.
            _ if size == 0 => record.extend(bytes(random, 40)),
            _ => {
                let text = bytes(random, size);
                record[start..start + text.len()].copy_from_slice(&text);
            }
        }
    }
    record
}

/// Letters and NULs.
fn bytes(random: &mut Random, max: usize) -> Vec<u8> {
    let count = random.below(max + 1);
    (0..count).map(|_| *random.of(b"aaab\0")).collect()
}
