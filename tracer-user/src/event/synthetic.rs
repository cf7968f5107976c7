//! Synthetic events: the event that a line of `synthetic_events` defines (kernel/trace/trace_events_synth.c).
//!
//! The language (`lang::synth`) parses the lines.
//!
//! A record consists of the common fields and then one or more eight-byte words for each field. A number takes one
//! word. `char[N]` takes 256 bytes for any N. A text or stack of variable length takes one word with the offset and
//! length of its data, which follows all fields.

use std::fmt::Write as _;

use super::dynamic::{common_fields, field, raw};
use super::{Field, FieldClass, Format};
use crate::kernel::Change;

/// The system of all synthetic events.
pub const SYSTEM: &str = "synthetic";

/// Maximum number of fields of an event: `SYNTH_FIELDS_MAX`.
pub const FIELDS_MAX: usize = 64;

/// Bytes that a `char[N]` takes in a record: `STR_VAR_LEN_MAX`.
pub const TEXT_SIZE: usize = 256;

/// A synthetic event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Name.
    pub name: String,
    /// The event's fields.
    pub fields: Vec<Member>,
}

/// A field of a synthetic event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name.
    pub name: String,
    /// Type, with an array's brackets after it: `u64`, `char[16]`, `unsigned long[]`.
    ty: String,
    /// Size in bytes; 0 for variable length.
    size: usize,
}

/// A value to store in a field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number, truncated to the field's size.
    Number(u64),
    /// A text, up to its first NUL.
    Text(&'a [u8]),
    /// Addresses, innermost first.
    Stack(&'a [u64]),
}

macro_rules! numbers {
    ($($ty:ty),+) => {
        $(impl From<$ty> for Value<'_> {
            /// The number, sign-extended like a C cast to `u64`.
            fn from(number: $ty) -> Self {
                Self::Number(i128::from(number) as u64)
            }
        })+
    };
}

numbers!(u8, u16, u32, u64, i8, i16, i32, i64, bool);

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(text: &'a [u8]) -> Self {
        Self::Text(text)
    }
}

/// A numeric type: name, size and conversion in the print fmt.
const NUMBERS: [(&str, usize, &str); 17] = [
    ("s64", 8, "%lld"),
    ("u64", 8, "%llu"),
    ("s32", 4, "%d"),
    ("u32", 4, "%u"),
    ("s16", 2, "%d"),
    ("u16", 2, "%u"),
    ("s8", 1, "%d"),
    ("u8", 1, "%u"),
    ("char", 1, "%d"),
    ("unsigned char", 1, "%u"),
    ("int", 4, "%d"),
    ("unsigned int", 4, "%u"),
    ("long", 8, "%ld"),
    ("unsigned long", 8, "%lu"),
    ("bool", 1, "%d"),
    ("pid_t", 4, "%d"),
    ("gfp_t", 4, "%x"),
];

fn number(ty: &str) -> Option<(usize, &'static str)> {
    NUMBERS.iter().find(|(name, ..)| *name == ty).map(|(_, size, conversion)| (*size, *conversion))
}

impl Member {
    /// A field of this type; None if the type does not exist. `length` parses the text in the brackets of a
    /// `char[N]`.
    pub fn new(name: String, ty: String, length: impl Fn(&str) -> Option<u32>) -> Option<Self> {
        let size = match number(&ty) {
            Some((size, _)) => size,
            None if ty.contains("char[") => text_size(&ty, length)?,
            None if ty.contains("long[") => 0,
            None => return None,
        };
        Some(Self { name, ty, size })
    }

    /// Type as defined.
    pub fn ty(&self) -> &str {
        &self.ty
    }

    /// Whether it is a text.
    pub fn is_text(&self) -> bool {
        self.ty.contains("char[")
    }

    /// Whether it is a stack of addresses.
    pub fn is_stack(&self) -> bool {
        !self.is_text() && self.ty.contains("long[")
    }

    /// Whether its length is variable.
    pub fn is_dynamic(&self) -> bool {
        self.size == 0
    }

    /// Bytes as stated in the format file; a `char[N]` takes more in the record.
    pub fn size(&self) -> usize {
        if self.is_dynamic() { 8 } else { self.size }
    }

    /// Whether the kernel treats it as signed, by the first letter of its type.
    pub fn is_signed(&self) -> bool {
        let ty = self.field_type();
        !ty.starts_with('u') && ty != "gfp_t"
    }

    /// Type in the format file.
    pub fn field_type(&self) -> String {
        if self.is_dynamic() { format!("__data_loc {}", self.ty) } else { self.ty.clone() }
    }

    /// Number of words that it takes in a record.
    pub fn words(&self) -> usize {
        if self.is_text() && !self.is_dynamic() { TEXT_SIZE / 8 } else { 1 }
    }

    /// Conversion in the print fmt.
    pub fn conversion(&self) -> &'static str {
        match number(&self.ty) {
            Some((_, conversion)) => conversion,
            None => "%s",
        }
    }
}

/// Size of `char[N]`; 0 for `char[]`.
fn text_size(ty: &str, length: impl Fn(&str) -> Option<u32>) -> Option<usize> {
    let (_, inside) = ty.split_once("char[")?;
    let close = ty.find(']')?;
    let start = ty.len() - inside.len();
    if close < start || close + 1 != ty.len() || close - start > 3 {
        return None;
    }
    match ty.get(start..close)? {
        "" => Some(0),
        digits => length(digits).map(|length| length as usize).filter(|length| *length <= TEXT_SIZE),
    }
}

/// Appends data to a record, and stores its offset and length in the word at `at`.
fn append(record: &mut Vec<u8>, at: usize, data: &[u8]) -> Option<()> {
    let place =
        u32::from(u16::try_from(record.len()).ok()?) | u32::from(u16::try_from(data.len()).ok()?) << 16;
    put(record, at, &place.to_ne_bytes())?;
    record.extend_from_slice(data);
    Some(())
}

/// Copies bytes into a record.
fn put(record: &mut [u8], at: usize, bytes: &[u8]) -> Option<()> {
    record.get_mut(at..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(())
}

impl Event {
    /// Bytes of a record before its texts and stacks.
    pub fn fixed_size(&self) -> usize {
        tracer_abi::COMMON_SIZE + 8 * self.fields.iter().map(Member::words).sum::<usize>()
    }

    /// The record's fields.
    pub fn record(&self) -> Vec<Field> {
        let mut offset = tracer_abi::COMMON_SIZE;
        let place = |member: &Member| {
            let mut own =
                field(&member.field_type(), &member.name, offset, member.size(), member.is_signed());
            if member.is_stack() {
                own.class = FieldClass::Stacktrace;
            }
            offset += 8 * member.words();
            own
        };
        self.fields.iter().map(place).collect()
    }

    /// Encodes a record with these values and common fields of 0 (`trace_event_raw_event_synth()`). None if the
    /// number or the kinds of the values do not match the fields.
    pub fn encode(&self, values: &[Value<'_>]) -> Option<Vec<u8>> {
        if values.len() != self.fields.len() {
            return None;
        }
        let mut record = vec![0; self.fixed_size()];
        let mut at = tracer_abi::COMMON_SIZE;
        for (member, value) in self.fields.iter().zip(values) {
            match *value {
                Value::Number(number) if !member.is_text() && !member.is_stack() => {
                    put(&mut record, at, number.to_le_bytes().get(..member.size())?)?;
                }
                Value::Text(text) if member.is_text() => {
                    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
                    if member.is_dynamic() {
                        let bytes = [text, &[0]].concat();
                        append(&mut record, at, &bytes)?;
                    } else {
                        put(&mut record, at, text.get(..TEXT_SIZE - 1).unwrap_or(text))?;
                    }
                }
                Value::Stack(stack) if member.is_stack() => {
                    // The first word is the number of addresses that follow.
                    let words = std::iter::once(stack.len() as u64).chain(stack.iter().copied());
                    let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
                    append(&mut record, at, &bytes)?;
                }
                _ => return None,
            }
            at += 8 * member.words();
        }
        Some(record)
    }

    /// The event's format, as used by the rest of the program and as in kernels of this version.
    pub fn format(&self, id: u16, version: (u32, u32)) -> Format {
        Format {
            system: SYSTEM.to_owned(),
            name: self.name.clone(),
            id,
            common: common_fields(),
            fields: self.record(),
            print_fmt: self.print_fmt(version),
        }
    }

    /// The print fmt (`__set_synth_event_print_fmt()`).
    pub fn print_fmt(&self, version: (u32, u32)) -> String {
        let separator = if Change::BlanksInFormats.is_in(version) { " " } else { ", " };
        let shown = self.fields.iter().map(|member| format!("{}={}", member.name, member.conversion()));
        let mut text = format!("\"{}\"", shown.collect::<Vec<_>>().join(separator));
        for member in &self.fields {
            let name = &member.name;
            let _ = if member.is_text() && member.is_dynamic() {
                write!(text, ", __get_str({name})")
            } else if member.is_stack() {
                write!(text, ", __get_stacktrace({name})")
            } else {
                write!(text, ", REC->{name}")
            };
        }
        text
    }

    /// The event's line in `synthetic_events`; in `dynamic_events` it has the prefix `s:synthetic/`.
    pub fn read_back(&self) -> Vec<u8> {
        let fields = self.fields.iter().map(|member| format!("{} {}", member.ty, member.name));
        raw(&format!("{}\t{}\n", self.name, fields.collect::<Vec<_>>().join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(fields: &[(&str, &str)]) -> Event {
        let member = |(ty, name): &(&str, &str)| {
            Member::new((*name).to_owned(), (*ty).to_owned(), |digits| digits.parse().ok()).unwrap()
        };
        Event { name: "e".to_owned(), fields: fields.iter().map(member).collect() }
    }

    #[test]
    fn layout_and_texts() {
        let event = event(&[
            ("u64", "lat"),
            ("char[16]", "comm"),
            ("pid_t", "pid"),
            ("char[]", "name"),
            ("unsigned long[]", "stack"),
        ]);
        assert_eq!(event.fixed_size(), 8 + 8 + 256 + 8 + 8 + 8);
        let seen: Vec<_> = event.record().iter().map(|f| (f.offset, f.size, f.signed, f.class)).collect();
        assert_eq!(
            seen,
            [
                (8, 8, false, FieldClass::Number),
                (16, 16, true, FieldClass::StaticString),
                (272, 4, true, FieldClass::Number),
                (280, 8, true, FieldClass::DynString),
                (288, 8, true, FieldClass::Stacktrace),
            ]
        );
        assert_eq!(
            event.print_fmt((6, 18)),
            "\"lat=%llu, comm=%s, pid=%d, name=%s, stack=%s\", REC->lat, REC->comm, REC->pid, __get_str(name), \
             __get_stacktrace(stack)"
        );
        assert!(
            event
                .print_fmt((7, 2))
                .starts_with("\"lat=%llu comm=%s pid=%d name=%s stack=%s\", REC->lat, REC->comm")
        );
        assert_eq!(
            String::from_utf8(event.read_back()).unwrap(),
            "e\tu64 lat; char[16] comm; pid_t pid; char[] name; unsigned long[] stack\n"
        );
    }

    #[test]
    fn records() {
        let event = event(&[("s16", "n"), ("char[4]", "c"), ("char[]", "d"), ("unsigned long[]", "s")]);
        let values =
            [Value::Number(0x1_fffe), Value::Text(b"four\0x"), Value::Text(b"dyn"), Value::Stack(&[7, 9])];
        let record = event.encode(&values).unwrap();
        assert_eq!(record[8..16], [0xfe, 0xff, 0, 0, 0, 0, 0, 0]);
        assert_eq!(record[16..22], *b"four\0\0");
        let fixed = event.fixed_size() as u16;
        assert_eq!(record[272..276], [fixed.to_ne_bytes(), 4_u16.to_ne_bytes()].concat());
        assert_eq!(record[280..284], [(fixed + 4).to_ne_bytes(), 24_u16.to_ne_bytes()].concat());
        assert_eq!(record[usize::from(fixed)..][..4], *b"dyn\0");
        assert_eq!(record[usize::from(fixed) + 4..][..8], 2_u64.to_ne_bytes());
        assert_eq!(record.len(), usize::from(fixed) + 28);
        assert_eq!(event.encode(&values[..3]), None);
        assert_eq!(event.encode(&[values[1], values[0], values[2], values[3]]), None);
    }

    #[test]
    fn types() {
        let is =
            |ty: &str| Member::new("x".to_owned(), ty.to_owned(), |digits| digits.parse().ok()).is_some();
        for ty in ["char[0]", "char[256]", "unsigned char[]", "long[5]", "bool", "xchar[1]"] {
            assert!(is(ty), "{ty}");
        }
        for ty in ["char[257]", "char[1024]", "char[x]", "char[1][2]", "int[2]", "void *", "unsigned"] {
            assert!(!is(ty), "{ty}");
        }
    }
}
