//! Splits format strings into conversions.

use super::pointer::Extension;

/// Flags (`-`, `+`, a space, `#`, `0`), width and precision of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct Spec {
    pub(crate) left: bool,
    pub(crate) plus: bool,
    pub(crate) space: bool,
    pub(crate) special: bool,
    pub(crate) zero: bool,
    /// -1 if absent.
    pub(crate) width: i32,
    /// -1 if absent.
    pub(crate) precision: i32,
}

impl Spec {
    /// No flags, no width, no precision.
    pub(crate) const PLAIN: Self = Self {
        left: false,
        plus: false,
        space: false,
        special: false,
        zero: false,
        width: -1,
        precision: -1,
    };

    /// Whether only the value itself is printed.
    pub(crate) fn is_plain(&self) -> bool {
        self.width <= 1 && self.precision <= 1 && !self.plus && !self.space && !self.special
    }
}

/// A number's base and the type of its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    /// 8, 10 or 16.
    pub(crate) base: u8,
    /// Whether digits above 9 are lower case.
    pub(crate) lower: bool,
    /// Bytes of the argument that are used: 1, 2, 4 or 8.
    pub(crate) size: u8,
    /// `%d`, `%i`
    pub(crate) signed: bool,
}

impl Number {
    /// `%x` of this many bytes.
    pub(crate) const fn hex(size: u8) -> Self {
        Self { base: 16, lower: true, size, signed: false }
    }
}

/// The kind of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Number(Number),
    Char,
    Text,
    /// `%p` and its extension.
    Pointer(Extension),
}

/// A piece of a format string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Literal(Vec<u8>),
    Conversion {
        /// Flags and the fixed width and precision.
        spec: Spec,
        /// Whether the width is an argument (`*`).
        width_arg: bool,
        /// Whether the precision is an argument (`.*`).
        precision_arg: bool,
        kind: Kind,
    },
}

/// Largest width and precision (`FIELD_WIDTH_MAX`, `PRECISION_MAX`); larger ones would only fill the page.
pub(crate) const LARGEST: i32 = (1 << 15) - 1;

/// Splits a format string into pieces. An unknown conversion ends the text there, as in the kernel.
pub(crate) fn pieces(format: &[u8]) -> Vec<Piece> {
    let mut found = Vec::new();
    let mut literal = Vec::new();
    let mut at = 0;
    // A NUL in the constant ends the string.
    while let Some(byte) = format.get(at).copied().filter(|byte| *byte != 0) {
        if byte != b'%' {
            literal.push(byte);
            at += 1;
            continue;
        }
        let mut reader = Reader { format, at: at + 1 };
        let Some(piece) = reader.conversion() else { break };
        at = reader.at;
        match piece {
            Piece::Literal(percent) => literal.extend(percent),
            conversion @ Piece::Conversion { .. } => {
                if !literal.is_empty() {
                    found.push(Piece::Literal(std::mem::take(&mut literal)));
                }
                found.push(conversion);
            }
        }
    }
    if !literal.is_empty() {
        found.push(Piece::Literal(literal));
    }
    found
}

struct Reader<'a> {
    format: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn next(&self) -> u8 {
        self.format.get(self.at).copied().unwrap_or(0)
    }

    fn eat(&mut self, byte: u8) -> bool {
        let seen = byte != 0 && self.next() == byte;
        self.at += usize::from(seen);
        seen
    }

    fn digits(&mut self) -> Option<i32> {
        let mut value = None;
        while self.next().is_ascii_digit() {
            value = Some((value.unwrap_or(0) * 10 + i32::from(self.next() - b'0')).min(LARGEST));
            self.at += 1;
        }
        value
    }

    fn conversion(&mut self) -> Option<Piece> {
        let mut spec = Spec::PLAIN;
        loop {
            match self.next() {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.special = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            self.at += 1;
        }
        let width_arg = self.eat(b'*');
        if !width_arg {
            spec.width = self.digits().unwrap_or(-1);
        }
        let mut precision_arg = false;
        if self.eat(b'.') {
            precision_arg = self.eat(b'*');
            if !precision_arg {
                // A dot without digits leaves the precision unset in the kernel; in C it means zero.
                spec.precision = self.digits().unwrap_or(-1);
            }
        }
        let size = self.size();
        let number = |base, lower, signed| Kind::Number(Number { base, lower, size, signed });
        let letter = self.next();
        self.at += 1;
        let kind = match letter {
            b'%' => return Some(Piece::Literal(vec![b'%'])),
            b'c' => Kind::Char,
            b's' => Kind::Text,
            b'd' | b'i' => number(10, true, true),
            b'u' => number(10, true, false),
            b'x' => number(16, true, false),
            b'X' => number(16, false, false),
            b'o' => number(8, true, false),
            b'p' => {
                let start = self.at;
                while self.next().is_ascii_alphanumeric() {
                    self.at += 1;
                }
                Kind::Pointer(Extension::parse(self.format.get(start..self.at).unwrap_or_default()))
            }
            _ => return None,
        };
        Some(Piece::Conversion { spec, width_arg, precision_arg, kind })
    }

    /// Reads a length modifier. Returns the bytes of the argument.
    fn size(&mut self) -> u8 {
        match self.next() {
            b'h' => {
                self.at += 1;
                if self.eat(b'h') { 1 } else { 2 }
            }
            long @ (b'l' | b'L') => {
                self.at += 1;
                self.eat(long);
                8
            }
            // Current kernels have no `j` and `q`; events of old modules may.
            b'z' | b't' | b'j' | b'q' => {
                self.at += 1;
                8
            }
            _ => 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(format: &str) -> String {
        pieces(format.as_bytes())
            .into_iter()
            .map(|piece| match piece {
                Piece::Literal(text) => format!("{:?}", String::from_utf8_lossy(&text)),
                Piece::Conversion { spec, width_arg, precision_arg, kind } => format!(
                    "<{}{}{} {kind:?}>",
                    if width_arg { "*".into() } else { spec.width.to_string() },
                    if precision_arg { ".*".into() } else { format!(".{}", spec.precision) },
                    [("-", spec.left), ("#", spec.special), ("0", spec.zero), ("+", spec.plus)]
                        .iter()
                        .filter(|(_, on)| *on)
                        .map(|(flag, _)| *flag)
                        .collect::<String>(),
                ),
            })
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn pieces_of_formats() {
        insta::assert_snapshot!(shape("a%%b %#08llx|%-5.3hhd"), @r#""a%b " <8.-1#0 Number(Number { base: 16, lower: true, size: 8, signed: false })> "|" <5.3- Number(Number { base: 10, lower: true, size: 1, signed: true })>"#);
        insta::assert_snapshot!(shape("%*pbl%.*s%c"), @"<*.-1 Pointer(BitmapList)> <-1.* Text> <-1.-1 Char>");
        insta::assert_snapshot!(shape("x%yz"), @r#""x""#);
    }
}
