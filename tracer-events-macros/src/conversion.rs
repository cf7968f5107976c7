//! Conversions of a format, and the argument that each requires.
//!
//! The conversions are those of the kernel's `vsnprintf()` (Documentation/core-api/printk-formats.rst).

use crate::expr::Kind;

/// One conversion of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    /// Its text in the format.
    pub(crate) text: String,
    /// The required argument. A `*` for width or precision is a conversion of its own before this one.
    pub(crate) wants: Wants,
}

/// The argument that a conversion requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// A number of at most four bytes, or of exactly eight.
    Number { wide: bool },
    /// A character.
    Character,
    /// Text.
    Text,
    /// An address: a pointer, or, with letters after `%p`, bytes of the record.
    Address { extended: bool },
}

/// Parses the conversions of a format.
///
/// # Errors
/// If the kernel would not print a conversion.
pub(crate) fn conversions(format: &str) -> Result<Vec<Conversion>, String> {
    let mut found = Vec::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            rest = after;
            continue;
        }
        let start = rest;
        let skip = |rest: &mut &str, set: &str| *rest = rest.trim_start_matches(|c| set.contains(c));
        let star = |rest: &mut &str, found: &mut Vec<Conversion>| {
            if let Some(after) = rest.strip_prefix('*') {
                *rest = after;
                found.push(Conversion { text: "*".to_owned(), wants: Wants::Number { wide: false } });
            } else {
                skip(rest, "0123456789");
            }
        };
        skip(&mut rest, "-+ #0");
        star(&mut rest, &mut found);
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            star(&mut rest, &mut found);
        }
        let lengths = rest;
        skip(&mut rest, "hlLqzt");
        let length = &lengths[..lengths.len() - rest.len()];
        let Some(letter) = rest.chars().next() else {
            return Err("the format ends within a conversion; a percent sign is written `%%`".to_owned());
        };
        rest = &rest[letter.len_utf8()..];
        let wants = match letter {
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => match length {
                "" | "h" | "hh" => Wants::Number { wide: false },
                "l" | "ll" | "L" | "q" | "z" | "t" => Wants::Number { wide: true },
                _ => return Err(format!("`{length}` is no length of a number")),
            },
            'c' => Wants::Character,
            's' => Wants::Text,
            'p' => {
                let before = rest;
                rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
                Wants::Address { extended: before.len() != rest.len() }
            }
            'f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'a' | 'A' => {
                return Err(format!("`%{letter}`: the kernel prints no floating-point numbers"));
            }
            'n' => return Err("`%n` is not printed".to_owned()),
            other => return Err(format!("`%{other}` is no conversion; a percent sign is written `%%`")),
        };
        let text = format!("%{}", &start[..start.len() - rest.len()]);
        found.push(Conversion { text, wants });
    }
    Ok(found)
}

impl Conversion {
    /// Whether it accepts a value; else the reason. If only the compiler knows the value's size, returns the required
    /// size.
    pub(crate) fn takes(&self, kind: Kind) -> Result<Option<Width>, String> {
        match (self.wants, kind) {
            (Wants::Number { wide }, Kind::Number { bytes, .. }) => match bytes {
                None => Ok(Some(if wide { Width::Eight } else { Width::FourAtMost })),
                Some(bytes) if (bytes == 8) == wide => Ok(None),
                Some(_) if wide => Err("is narrower than eight bytes: leave the `l` out".to_owned()),
                Some(_) => Err("has eight bytes: say `l`, as in `%lu` or `%lld`".to_owned()),
            },
            (Wants::Number { .. } | Wants::Character, Kind::Text) => {
                Err("is text: `%s` prints it".to_owned())
            }
            (Wants::Number { .. } | Wants::Character, Kind::Bytes) => {
                Err("is an array: `__print_array` and `__print_hex` print it, or one element of it"
                    .to_owned())
            }
            (Wants::Number { .. } | Wants::Character, Kind::Pointer) => {
                Err("is a pointer: `%p` prints it".to_owned())
            }
            (Wants::Character, Kind::Number { bytes, .. }) => match bytes {
                Some(8) => Err("has eight bytes, a character one".to_owned()),
                _ => Ok(None),
            },
            (Wants::Text, Kind::Text) => Ok(None),
            (Wants::Text, Kind::Number { bytes, .. }) => {
                let with = if bytes == Some(8) { "%ld` or `%lu" } else { "%d` or `%u" };
                Err(format!("is a number: `{with}` prints it"))
            }
            (Wants::Text, Kind::Bytes) => Err("is no text: an array of `char` is, and a `string`".to_owned()),
            (Wants::Text, Kind::Pointer) => {
                Err("is a pointer, and what it points to is not in the record: make it a `string`".to_owned())
            }
            (Wants::Address { .. }, Kind::Pointer) | (Wants::Address { extended: true }, Kind::Bytes) => {
                Ok(None)
            }
            (Wants::Address { .. }, Kind::Bytes) => Err("is an array: say how, as in `%ph`".to_owned()),
            (Wants::Address { .. }, Kind::Number { .. }) => {
                Err("is a number: `%#lx` prints it, or a cast, `as *const ()`, makes it an address"
                    .to_owned())
            }
            (Wants::Address { .. }, Kind::Text) => Err("is text: `%s` prints it".to_owned()),
        }
    }
}

/// The required size of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    FourAtMost,
    Eight,
}
