//! Turns quoted text into a [`Pattern`]: the kernel's `filter_build_regex()` and `filter_parse_regex()`.

use crate::lang::filter::Op;
use crate::plan::filter::Pattern;

/// The pattern, and whether it is inverted.
pub(super) fn build(op: Op, text: &[u8]) -> (Pattern, bool) {
    if op != Op::Glob {
        return (Pattern::Full(text.to_vec()), op == Op::Ne);
    }
    match text.strip_prefix(b"!") {
        Some(rest) => (classify(rest), true),
        None => (classify(text), false),
    }
}

/// Chooses the cheapest comparison, as the kernel does. It reads byte by byte and stops at the first byte that
/// decides, so `a*b[` is a glob because of its star. A text that starts with a digit is compared as a whole, stars
/// included: `filter_parse_regex()` classifies it as an index, and filters compare an index like full text.
fn classify(text: &[u8]) -> Pattern {
    if text.first().is_some_and(u8::is_ascii_digit) {
        return Pattern::Full(text.to_vec());
    }
    let open_front = text.first() == Some(&b'*');
    for (at, &byte) in text.iter().enumerate().skip(usize::from(open_front)) {
        match byte {
            b'*' if at + 1 == text.len() => {
                return if open_front {
                    Pattern::Middle(text[1..at].to_vec())
                } else {
                    Pattern::Front(text[..at].to_vec())
                };
            }
            b'*' | b'[' | b'?' | b'\\' => return Pattern::Glob(without_loose_end(text).to_vec()),
            _ => {}
        }
    }
    if open_front { Pattern::End(text[1..].to_vec()) } else { Pattern::Full(text.to_vec()) }
}

/// Cuts a glob before a backslash at its end, which the kernel's matcher treats as the end of the pattern.
fn without_loose_end(glob: &[u8]) -> &[u8] {
    let mut at = 0;
    while let Some(&byte) = glob.get(at) {
        at = match byte {
            b'\\' if at + 1 == glob.len() => return &glob[..at],
            b'\\' => at + 2,
            b'[' => after_class(glob, at).unwrap_or(at + 1),
            _ => at + 1,
        };
    }
    glob
}

/// First byte after the class that opens at `at`; None if it is unclosed.
fn after_class(glob: &[u8], at: usize) -> Option<usize> {
    let first = at + 1 + usize::from(glob.get(at + 1) == Some(&b'!'));
    let mut member = first;
    while *glob.get(member)? != b']' || member == first {
        // A range includes its end, unless that is the bracket.
        let range = glob.get(member + 1) == Some(&b'-') && *glob.get(member + 2)? != b']';
        member += if range { 3 } else { 1 };
    }
    Some(member + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        let full = |text: &str| Pattern::Full(text.into());
        let front = |text: &str| Pattern::Front(text.into());
        let middle = |text: &str| Pattern::Middle(text.into());
        let end = |text: &str| Pattern::End(text.into());
        let glob = |text: &str| Pattern::Glob(text.into());
        for (text, expected) in [
            ("abc", (full("abc"), false)),
            ("abc*", (front("abc"), false)),
            ("*abc*", (middle("abc"), false)),
            ("*abc", (end("abc"), false)),
            ("a*c", (glob("a*c"), false)),
            ("*a*c*", (glob("*a*c*"), false)),
            ("a?c", (glob("a?c"), false)),
            ("a[b]*", (glob("a[b]*"), false)),
            ("a\\b", (glob("a\\b"), false)),
            ("a\\", (glob("a"), false)),
            ("a\\\\", (glob("a\\\\"), false)),
            ("[\\", (glob("["), false)),
            ("[a-\\]", (glob("[a-\\]"), false)),
            ("[]\\]", (glob("[]\\]"), false)),
            ("!abc", (full("abc"), true)),
            ("!*abc", (end("abc"), true)),
            ("!!a", (full("!a"), true)),
            ("!", (full(""), true)),
            ("", (full(""), false)),
            ("*", (end(""), false)),
            ("**", (middle(""), false)),
            ("***", (glob("***"), false)),
            ("1*", (full("1*"), false)),
            ("!1*", (full("1*"), true)),
            ("*1*", (middle("1"), false)),
        ] {
            assert_eq!(build(Op::Glob, text.as_bytes()), expected, "{text}");
        }
        assert_eq!(build(Op::Ne, b"a*"), (full("a*"), true));
        assert_eq!(build(Op::Eq, b"!a"), (full("!a"), false));
    }
}
