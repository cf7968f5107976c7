//! `%pE`: bytes with some of them escaped.

use crate::render::printf::hex::hex_pair;

/// The bytes that `%pE` escapes, and the forms it uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct Escapes {
    space: bool,
    special: bool,
    null: bool,
    octal: bool,
    hex: bool,
    keep_printable: bool,
}

impl Escapes {
    pub(super) fn parse(letters: &[u8]) -> Self {
        let mut flags = Self::default();
        for letter in letters {
            match letter {
                b'a' => flags = Self { space: true, special: true, null: true, octal: true, ..flags },
                b'c' => flags.special = true,
                b'h' => flags.hex = true,
                b'n' => flags.null = true,
                b'o' => flags.octal = true,
                b'p' => flags.keep_printable = true,
                b's' => flags.space = true,
                _ => break,
            }
        }
        if flags == Self::default() {
            return Self { keep_printable: true, ..Self::parse(b"a") };
        }
        flags
    }

    pub(super) fn write(self, out: &mut Vec<u8>, byte: u8) {
        if self.keep_printable && matches!(byte, 0x20..=0x7e | 0xa0..) {
            out.push(byte);
            return;
        }
        let short = match byte {
            b'\n' if self.space => b'n',
            b'\r' if self.space => b'r',
            b'\t' if self.space => b't',
            0x0b if self.space => b'v',
            0x0c if self.space => b'f',
            b'\\' if self.special => b'\\',
            7 if self.special => b'a',
            27 if self.special => b'e',
            b'"' if self.special => b'"',
            0 if self.null => b'0',
            _ => {
                if self.octal {
                    out.extend(format!("\\{byte:03o}").bytes());
                } else if self.hex {
                    out.extend_from_slice(b"\\x");
                    out.extend_from_slice(&hex_pair(byte));
                } else {
                    out.push(byte);
                }
                return;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
    }
}
