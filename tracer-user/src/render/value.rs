//! The typed value of one field of a record.
//!
//! JSON output and the public library read fields through [`of`], so both interpret a field in the same way.

use super::fields::data;
use super::fmt::{self, CType};
use super::printf::pointer::{take, until_nul};
use crate::event::{Field, FieldClass};

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldValue<'a> {
    /// An unsigned number. Pointers are numbers too.
    Unsigned(u64),
    /// A signed number.
    Signed(i64),
    /// A `bool`.
    Bool(bool),
    /// Text up to its NUL; not necessarily UTF-8.
    Text(&'a [u8]),
    /// A set of CPUs.
    Cpus(CpuSet<'a>),
    /// An array of numbers of two bytes or more.
    Numbers(Numbers<'a>),
    /// An array of bytes, or a value of unknown type.
    Bytes(&'a [u8]),
}

impl<'a> FieldValue<'a> {
    /// The value as a `u64`; `None` if it is not a number or does not fit. `bool` counts as 0 or 1.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(number) => Some(number),
            Self::Signed(number) => u64::try_from(number).ok(),
            Self::Bool(yes) => Some(u64::from(yes)),
            _ => None,
        }
    }

    /// The value as an `i64`; `None` if it is not a number or does not fit. `bool` counts as 0 or 1.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::Unsigned(number) => i64::try_from(number).ok(),
            Self::Signed(number) => Some(number),
            Self::Bool(yes) => Some(i64::from(yes)),
            _ => None,
        }
    }

    /// The text, with invalid UTF-8 replaced by U+FFFD; `None` if the value is not text.
    pub fn as_text(&self) -> Option<std::borrow::Cow<'a, str>> {
        match *self {
            Self::Text(text) => Some(String::from_utf8_lossy(text)),
            _ => None,
        }
    }
}

impl std::fmt::Display for FieldValue<'_> {
    /// Numbers are decimal, texts are unchanged, sets and arrays are lists with commas, bytes are hexadecimal digits.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn list(
            f: &mut std::fmt::Formatter<'_>,
            items: impl Iterator<Item = impl std::fmt::Display>,
        ) -> std::fmt::Result {
            for (at, item) in items.enumerate() {
                let comma = if at == 0 { "" } else { "," };
                write!(f, "{comma}{item}")?;
            }
            Ok(())
        }
        match *self {
            Self::Unsigned(number) => write!(f, "{number}"),
            Self::Signed(number) => write!(f, "{number}"),
            Self::Bool(yes) => write!(f, "{yes}"),
            Self::Text(text) => f.write_str(&String::from_utf8_lossy(text)),
            Self::Cpus(cpus) => list(f, cpus.iter()),
            Self::Numbers(numbers) => list(f, numbers.iter()),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

/// A set of CPUs (`cpumask_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSet<'a> {
    bytes: &'a [u8],
}

impl<'a> CpuSet<'a> {
    /// The numbers of the CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        let words = self.bytes.chunks(8).map(|chunk| u64::from_ne_bytes(take(chunk)));
        words.enumerate().flat_map(|(at, word)| {
            (0..u64::BITS).filter(move |bit| word >> bit & 1 != 0).map(move |bit| at as u32 * u64::BITS + bit)
        })
    }

    /// The words of the mask, in the kernel's layout.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// An array of numbers of the same size and sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers<'a> {
    bytes: &'a [u8],
    size: usize,
    signed: bool,
}

impl<'a> Numbers<'a> {
    /// The numbers, each [`FieldValue::Unsigned`] or [`FieldValue::Signed`].
    pub fn iter(&self) -> impl Iterator<Item = FieldValue<'a>> + use<'a> {
        let Self { bytes, size, signed } = *self;
        bytes.chunks_exact(size).map(move |bytes| number(bytes, size, signed))
    }
}

/// Reads a field's value; `None` if it is outside of the record.
pub(super) fn of<'a>(field: &Field, record: &'a [u8]) -> Option<FieldValue<'a>> {
    let bytes = if field.is_data_loc() || field.is_rel_loc() {
        data(field, record)
    } else if field.class == FieldClass::StaticString && field.size == 0 {
        // An array without a length extends to the end of the record.
        record.get(field.offset..)
    } else {
        record.get(field.offset..field.end())
    }?;
    Some(match field.class {
        FieldClass::StaticString | FieldClass::DynString | FieldClass::RelString | FieldClass::Comm => {
            FieldValue::Text(until_nul(bytes))
        }
        _ if field.ty.contains("cpumask_t") => FieldValue::Cpus(CpuSet { bytes }),
        _ => numeric(field, bytes),
    })
}

fn numeric<'a>(field: &Field, bytes: &'a [u8]) -> FieldValue<'a> {
    let (base, brackets) =
        field.ty.split_once('[').map_or((field.ty.as_str(), false), |(base, _)| (base, true));
    let size = if brackets {
        match field.array {
            Some(count) if count > 0 => field.size / count,
            _ => element(base),
        }
    } else {
        field.size
    };
    if !matches!(size, 1 | 2 | 4 | 8) || (brackets && size == 1) {
        return FieldValue::Bytes(bytes);
    }
    if brackets {
        return FieldValue::Numbers(Numbers { bytes, size, signed: field.signed });
    }
    if field.ty == "bool" {
        return FieldValue::Bool(bytes.first().is_some_and(|byte| *byte != 0));
    }
    number(bytes, size, field.signed)
}

/// Bytes per element of an array without a length in the format file; 0 if its type is unknown.
fn element(base: &str) -> usize {
    let base = base.trim_start_matches("__data_loc ").trim_start_matches("__rel_loc ");
    fmt::scalar(base).map_or(0, |ty| usize::from(ty.size))
}

fn number(bytes: &[u8], size: usize, signed: bool) -> FieldValue<'static> {
    let word = CType { size: size as u8, signed }.load(&take::<8>(bytes)).unwrap_or_default();
    if signed { FieldValue::Signed(word.cast_signed()) } else { FieldValue::Unsigned(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_as_rust_types_and_as_text() {
        let cpus = CpuSet { bytes: &(0b1011_u64 << 60).to_ne_bytes() };
        assert_eq!(cpus.iter().collect::<Vec<_>>(), [60, 61, 63]);
        let bytes = [(-1_i16).to_ne_bytes(), 2_i16.to_ne_bytes()].concat();
        let numbers = Numbers { bytes: &bytes, size: 2, signed: true };
        for (value, unsigned, signed, text) in [
            (FieldValue::Unsigned(u64::MAX), Some(u64::MAX), None, "18446744073709551615"),
            (FieldValue::Signed(-3), None, Some(-3), "-3"),
            (FieldValue::Bool(true), Some(1), Some(1), "true"),
            (FieldValue::Text(b"a\xff"), None, None, "a\u{fffd}"),
            (FieldValue::Cpus(cpus), None, None, "60,61,63"),
            (FieldValue::Numbers(numbers), None, None, "-1,2"),
            (FieldValue::Bytes(&[10, 255]), None, None, "0aff"),
        ] {
            assert_eq!((value.as_u64(), value.as_i64()), (unsigned, signed), "{value:?}");
            assert_eq!(value.to_string(), text);
            assert_eq!(value.as_text().is_some(), matches!(value, FieldValue::Text(_)));
        }
    }
}
