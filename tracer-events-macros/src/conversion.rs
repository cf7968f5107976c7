//! Conversions of a format, and the argument that each requires.
//!
//! The conversions are those of the kernel's `vsnprintf()` (Documentation/core-api/printk-formats.rst).

use std::fmt;

use crate::expr::Kind;

/// One conversion of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conversion {
    /// Its text in the format.
    pub(crate) text: String,
    /// The required argument. A `*` for width or precision is a separate conversion before this one.
    pub(crate) wants: RequiredArgument,
}

/// The argument that a conversion requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredArgument {
    /// A number of at most four bytes, or of exactly eight.
    Number { wide: bool },
    /// A character.
    Character,
    /// Text.
    Text,
    /// An address: a pointer, or, with letters after `%p`, bytes of the record.
    Address { extended: bool },
}

/// The text of a compile error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Diagnostic(String);

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn refuse<T>(message: impl Into<String>) -> Result<T, Diagnostic> {
    Err(Diagnostic(message.into()))
}

/// Parses the conversions of a format.
///
/// # Errors
/// If the kernel would not print a conversion.
pub(crate) fn conversions(format: &str) -> Result<Vec<Conversion>, Diagnostic> {
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
                found.push(Conversion {
                    text: "*".to_owned(),
                    wants: RequiredArgument::Number { wide: false },
                });
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
            return refuse("the format ends within a conversion; a percent sign is written `%%`");
        };
        rest = &rest[letter.len_utf8()..];
        let wants = match letter {
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => match length {
                "" | "h" | "hh" => RequiredArgument::Number { wide: false },
                "l" | "ll" | "L" | "q" | "z" | "t" => RequiredArgument::Number { wide: true },
                _ => return refuse(format!("`{length}` is no length of a number")),
            },
            'c' => RequiredArgument::Character,
            's' => RequiredArgument::Text,
            'p' => {
                let before = rest;
                rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
                RequiredArgument::Address { extended: before.len() != rest.len() }
            }
            'f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'a' | 'A' => {
                return refuse(format!("`%{letter}`: the kernel prints no floating-point numbers"));
            }
            'n' => return refuse("`%n` is not printed"),
            other => return refuse(format!("`%{other}` is no conversion; a percent sign is written `%%`")),
        };
        let text = format!("%{}", &start[..start.len() - rest.len()]);
        found.push(Conversion { text, wants });
    }
    Ok(found)
}

impl Conversion {
    /// Checks that it accepts a value. Returns the required size if only the compiler knows the value's size. The
    /// error is the reason for a refusal.
    pub(crate) fn takes(&self, kind: Kind) -> Result<Option<Width>, Diagnostic> {
        match (self.wants, kind) {
            (RequiredArgument::Number { wide }, Kind::Number { bytes, .. }) => match bytes {
                None => Ok(Some(if wide { Width::Eight } else { Width::FourAtMost })),
                Some(bytes) if (bytes == 8) == wide => Ok(None),
                Some(_) if wide => refuse("is narrower than eight bytes: leave the `l` out"),
                Some(_) => refuse("has eight bytes: say `l`, as in `%lu` or `%lld`"),
            },
            (RequiredArgument::Number { .. } | RequiredArgument::Character, Kind::Text) => {
                refuse("is text: `%s` prints it")
            }
            (RequiredArgument::Number { .. } | RequiredArgument::Character, Kind::Bytes) => {
                refuse("is an array: `__print_array` and `__print_hex` print it, or one element of it")
            }
            (RequiredArgument::Number { .. } | RequiredArgument::Character, Kind::Pointer) => {
                refuse("is a pointer: `%p` prints it")
            }
            (RequiredArgument::Character, Kind::Number { bytes, .. }) => match bytes {
                Some(8) => refuse("has eight bytes, a character one"),
                _ => Ok(None),
            },
            (RequiredArgument::Text, Kind::Text)
            | (RequiredArgument::Address { .. }, Kind::Pointer)
            | (RequiredArgument::Address { extended: true }, Kind::Bytes) => Ok(None),
            (RequiredArgument::Text, Kind::Number { bytes, .. }) => {
                let with = if bytes == Some(8) { "%ld` or `%lu" } else { "%d` or `%u" };
                refuse(format!("is a number: `{with}` prints it"))
            }
            (RequiredArgument::Text, Kind::Bytes) => {
                refuse("is not text: an array of `char` is, and a `string`")
            }
            (RequiredArgument::Text, Kind::Pointer) => {
                refuse("is a pointer, and what it points to is not in the record: make it a `string`")
            }
            (RequiredArgument::Address { .. }, Kind::Bytes) => refuse("is an array: say how, as in `%ph`"),
            (RequiredArgument::Address { .. }, Kind::Number { .. }) => {
                refuse("is a number: `%#lx` prints it, or a cast, `as *const ()`, makes it an address")
            }
            (RequiredArgument::Address { .. }, Kind::Text) => refuse("is text: `%s` prints it"),
        }
    }
}

/// The required size of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    FourAtMost,
    Eight,
}
