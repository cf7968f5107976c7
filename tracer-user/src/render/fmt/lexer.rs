//! Splits the text after `print fmt:` into C tokens.
//!
//! The kernel writes the macro's arguments as the preprocessor left them, so every token of a C expression can occur.
//! Strings keep C's escapes and may contain real newlines.

use super::ctype::CType;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// An identifier or keyword.
    Name(String),
    /// An integer or character constant with its C type.
    Number(u64, CType),
    /// A string constant with escapes resolved, without its NUL.
    Text(Vec<u8>),
    /// An operator or a bracket.
    Punct(&'static str),
}

/// A token and its byte offset.
pub(super) type Spanned = (Token, usize);

/// Why the text is not a valid print fmt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct SyntaxError {
    /// Byte offset in the print fmt's text.
    pub at: usize,
    /// The error.
    pub what: String,
}

impl SyntaxError {
    pub(super) fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at, what: what.into() }
    }
}

/// Longest first, so that `->` is not read as `-`.
const PUNCTS: [&str; 46] = [
    "<<=", ">>=", "...", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=",
    "/=", "%=", "&=", "|=", "^=", "(", ")", "[", "]", "{", "}", ",", ";", "?", ":", ".", "+", "-", "*", "/",
    "%", "&", "|", "^", "~", "!", "<", ">", "=",
];

pub(super) fn tokens(text: &str) -> Result<Vec<Spanned>, SyntaxError> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        let token = match byte {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => {
                at += 1;
                continue;
            }
            b'"' => Token::Text(quoted(bytes, &mut at, b'"')?),
            b'\'' => {
                let inner = quoted(bytes, &mut at, b'\'')?;
                let &[char] = inner.as_slice() else {
                    return Err(SyntaxError::new(start, "a character constant of other than one byte"));
                };
                // Plain `char` is signed on x86 and unsigned on arm64; no print fmt has a constant above 127.
                Token::Number(u64::from(char), CType::INT)
            }
            b'0'..=b'9' => number(text, &mut at)?,
            b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'$' => {
                while bytes.get(at).is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$')) {
                    at += 1;
                }
                Token::Name(text.get(start..at).unwrap_or_default().to_owned())
            }
            _ => {
                let rest = bytes.get(at..).unwrap_or_default();
                let Some(punct) = PUNCTS.iter().find(|punct| rest.starts_with(punct.as_bytes())) else {
                    return Err(SyntaxError::new(at, "a character that C has no use for"));
                };
                at += punct.len();
                Token::Punct(punct)
            }
        };
        found.push((token, start));
    }
    Ok(found)
}

/// Reads a constant between quotes. `at` starts at the opening quote and ends after the closing one.
fn quoted(bytes: &[u8], at: &mut usize, quote: u8) -> Result<Vec<u8>, SyntaxError> {
    let start = *at;
    let unclosed = || SyntaxError::new(start, "a quote that is not closed");
    *at += 1;
    let mut value = Vec::new();
    loop {
        let byte = *bytes.get(*at).ok_or_else(unclosed)?;
        *at += 1;
        if byte == quote {
            return Ok(value);
        }
        if byte != b'\\' {
            value.push(byte);
            continue;
        }
        let escape = *bytes.get(*at).ok_or_else(unclosed)?;
        *at += 1;
        value.push(match escape {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'v' => 11,
            b'e' => 27,
            b'0'..=b'7' => {
                let mut value = u32::from(escape - b'0');
                for _ in 0..2 {
                    let Some(digit @ b'0'..=b'7') = bytes.get(*at) else { break };
                    value = value * 8 + u32::from(digit - b'0');
                    *at += 1;
                }
                value as u8
            }
            b'x' => {
                let mut value = 0u32;
                while let Some(digit) = bytes.get(*at).and_then(|b| char::from(*b).to_digit(16)) {
                    value = value.wrapping_mul(16).wrapping_add(digit);
                    *at += 1;
                }
                value as u8
            }
            other => other,
        });
    }
}

/// Reads an integer constant. Its type is the first one in C's list that can hold it (C11 6.4.4.1).
fn number(text: &str, at: &mut usize) -> Result<Token, SyntaxError> {
    let start = *at;
    let bytes = text.as_bytes();
    while bytes.get(*at).is_some_and(u8::is_ascii_alphanumeric) {
        *at += 1;
    }
    let word = text.get(start..*at).unwrap_or_default().to_ascii_lowercase();
    let body = word.trim_end_matches(['u', 'l']);
    let suffix = word.strip_prefix(body).unwrap_or_default();
    let unsigned = suffix.contains('u');
    let long = suffix.contains('l');
    let (digits, radix) = if let Some(hex) = body.strip_prefix("0x") {
        (hex, 16)
    } else if let Some(binary) = body.strip_prefix("0b") {
        (binary, 2)
    } else if let Some(octal) = body.strip_prefix('0').filter(|digits| !digits.is_empty()) {
        (octal, 8)
    } else {
        (body, 10)
    };
    let value = u64::from_str_radix(digits, radix).map_err(|_| SyntaxError::new(start, "not a number"))?;
    let ty = if !long && !unsigned && i32::try_from(value).is_ok() {
        CType::INT
    } else if !long && (unsigned || radix != 10) && u32::try_from(value).is_ok() {
        CType::UINT
    } else if !unsigned && i64::try_from(value).is_ok() {
        CType::LONG
    } else {
        CType::ULONG
    };
    Ok(Token::Number(value, ty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_have_their_c_types() {
        for (text, value, ty) in [
            ("1", 1, CType::INT),
            ("2147483648", 1 << 31, CType::LONG),
            ("0x80000000", 1 << 31, CType::UINT),
            ("1U", 1, CType::UINT),
            ("1UL", 1, CType::ULONG),
            ("1ll", 1, CType::LONG),
            ("0xffffffffffffffff", u64::MAX, CType::ULONG),
            ("017", 15, CType::INT),
            ("'\\n'", 10, CType::INT),
        ] {
            assert_eq!(tokens(text).unwrap()[0].0, Token::Number(value, ty), "{text}");
        }
    }

    #[test]
    fn strings_and_operators() {
        let seen: Vec<_> = tokens("\"a\\t\\\"\n\" REC->x>>=1").unwrap().into_iter().map(|(t, _)| t).collect();
        assert_eq!(
            seen,
            [
                Token::Text(b"a\t\"\n".to_vec()),
                Token::Name("REC".into()),
                Token::Punct("->"),
                Token::Name("x".into()),
                Token::Punct(">>="),
                Token::Number(1, CType::INT)
            ]
        );
        assert_eq!(tokens("x \"y").unwrap_err().to_string(), "a quote that is not closed at byte 2");
    }
}
