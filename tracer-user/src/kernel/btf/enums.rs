//! Values of enumerators by name alone, across all enums: print fmts use constants of enums that headers do not
//! export.
//!
//! Built in one pass over the bytes, like [`super::index`]. Layout: `struct btf_enum` and `struct btf_enum64`,
//! include/uapi/linux/btf.h.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::index::{RawType, sections, word};

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
        let (mut types, strings) = sections(bytes)?;
        let mut entries = Vec::new();
        while !types.is_empty() {
            let ty = RawType::split(&mut types)?;
            let length = match ty.kind() {
                ENUM => 8,
                ENUM64 => 12,
                _ => continue,
            };
            for one in ty.entries.chunks_exact(length) {
                let (name, low) = (word(one, 0)?, word(one, 4)?);
                let value = match word(one, 8) {
                    Some(high) => (u64::from(high) << 32 | u64::from(low)) as i64,
                    None if ty.info >> 31 != 0 => i64::from(low as i32),
                    None => i64::from(low),
                };
                entries.push((hash(text(strings, name)?), name, value));
            }
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
    use super::super::build::Build;
    use super::*;

    #[test]
    fn values_of_a_hand_made_section() {
        let mut build = Build::new();
        build.enumeration(4, true, &[("A", -1), ("B", 2)]);
        build.enumeration(8, false, &[("C", 1), ("A", -1)]);
        build.enumeration(4, false, &[("C", 2)]);
        let found = Enumerators::build(&build.bytes()).unwrap();
        assert_eq!(found.value("A"), Some(-1));
        assert_eq!(found.value("B"), Some(2));
        assert_eq!(found.value("C"), None, "two enums give it different values");
        assert_eq!(found.value("D"), None);
        assert!(Enumerators::build(b"ELF").is_none());
    }
}
