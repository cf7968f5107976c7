//! Values of enumerators by name alone, across all enums: print fmts use constants of enums that headers do not
//! export.
//!
//! Built in one pass over the bytes, like [`super::index`]. Layout: `struct btf_enum` and `struct btf_enum64`,
//! include/uapi/linux/btf.h.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::index::{MAGIC, TYPE_SIZE, tail};

/// `BTF_KIND_ENUM`
const ENUM: u32 = 6;
/// `BTF_KIND_ENUM64`
const ENUM64: u32 = 19;

/// All enumerators of a BTF section.
#[derive(Debug)]
pub(super) struct Enumerators {
    /// Hash of the name, its offset in the strings, and the value; sorted by hash.
    entries: Vec<(u64, u32, i64)>,
    strings: Vec<u8>,
}

impl Enumerators {
    /// Reads a whole BTF section of this machine's byte order; None for any other content.
    pub(super) fn build(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?) != MAGIC {
            return None;
        }
        let header = word(4)? as usize;
        let types = header + word(8)? as usize;
        let types_end = types + word(12)? as usize;
        let strings = header + word(16)? as usize;
        let strings = bytes.get(strings..strings + word(20)? as usize)?;
        let mut entries = Vec::new();
        let mut at = types;
        while at < types_end {
            let info = word(at + 4)?;
            let (kind, count, signed) = (info >> 24 & 0x1f, (info & 0xffff) as usize, info >> 31 != 0);
            let body = at + TYPE_SIZE;
            let length = if kind == ENUM64 { 12 } else { 8 };
            for one in (0..count).map(|i| body + i * length).filter(|_| matches!(kind, ENUM | ENUM64)) {
                let low = word(one + 4)?;
                let value = match kind {
                    ENUM64 => ((u64::from(word(one + 8)?) << 32) | u64::from(low)) as i64,
                    _ if signed => i64::from(low as i32),
                    _ => i64::from(low),
                };
                let name = word(one)?;
                entries.push((hash(text(strings, name)?), name, value));
            }
            at = body + tail(info)?;
        }
        entries.sort_unstable();
        Some(Self { entries, strings: strings.to_vec() })
    }

    /// The value of the enumerators of this name; None if there are none or if their values differ.
    pub(super) fn value(&self, name: &str) -> Option<i64> {
        let hash = hash(name.as_bytes());
        let start = self.entries.partition_point(|entry| entry.0 < hash);
        let mut values = self
            .entries
            .iter()
            .skip(start)
            .take_while(|entry| entry.0 == hash)
            .filter(|entry| text(&self.strings, entry.1) == Some(name.as_bytes()))
            .map(|entry| entry.2);
        let value = values.next()?;
        values.all(|other| other == value).then_some(value)
    }
}

fn text(strings: &[u8], at: u32) -> Option<&[u8]> {
    let rest = strings.get(at as usize..)?;
    rest.get(..rest.iter().position(|byte| *byte == 0)?)
}

fn hash(name: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_hand_made_section() {
        let strings = b"\0A\0B\0C\0";
        let word = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        // enum { A = -1, B = 2 }, signed; enum { C = 1, A = -1 } of 64 bits; enum { C = 2 }.
        let types = word(&[
            0,
            ENUM << 24 | 1 << 31 | 2,
            4,
            1,
            u32::MAX,
            3,
            2, //
            0,
            ENUM64 << 24 | 2,
            8,
            5,
            1,
            0,
            1,
            u32::MAX,
            u32::MAX, //
            0,
            ENUM << 24 | 1,
            4,
            5,
            2,
        ]);
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        bytes.extend(word(&[24, 0, types.len() as u32, types.len() as u32, strings.len() as u32]));
        bytes.extend(types);
        bytes.extend(strings);
        let found = Enumerators::build(&bytes).unwrap();
        assert_eq!(found.value("A"), Some(-1));
        assert_eq!(found.value("B"), Some(2));
        assert_eq!(found.value("C"), None, "two enums give it different values");
        assert_eq!(found.value("D"), None);
        assert!(Enumerators::build(b"ELF").is_none());
    }
}
