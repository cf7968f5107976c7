//! Evaluates a filter over the bytes of one record: the oracle that generated code is compared with.
//!
//! It is deliberately naive and used by tests only. It follows the kernel's comparison functions one by one
//! (`filter_pred_*()` and `regex_match_*()`, `kernel/trace/trace_events_filter.c`) and shares nothing with the
//! lowering. Bytes after a record's end are zero.

use super::filter::{CpusOp, CpusSubject, Filter, NumberOp, POINTER_TEXT_MAX, Pattern, Place, Test, Text};

/// Properties of a hit that a filter may read in addition to the record.
pub struct EvalEnv<'a> {
    /// The CPU of the hit.
    pub cpu: u32,
    /// Name of the current task, NUL-padded.
    pub comm: [u8; 16],
    /// Reads the string at an address, in user memory if the flag is set. Returns the bytes up to the NUL, or only
    /// the first of them; None for a fault.
    pub read: &'a dyn Fn(u64, bool) -> Option<Vec<u8>>,
}

/// Whether the record passes.
pub fn matches(filter: &Filter, record: &[u8], env: &EvalEnv<'_>) -> bool {
    match filter {
        Filter::Test(test) => holds(test, record, env),
        Filter::And(parts) => parts.iter().all(|part| matches(part, record, env)),
        Filter::Or(parts) => parts.iter().any(|part| matches(part, record, env)),
        Filter::Not(inner) => !matches(inner, record, env),
        Filter::Const(value) => *value,
    }
}

fn holds(test: &Test, record: &[u8], env: &EvalEnv<'_>) -> bool {
    match test {
        Test::Number { place, signed, op, value } => {
            let bits = word(record, *place);
            if *signed {
                let shift = 64 - 8 * u32::from(place.size);
                compare(((bits << shift) as i64) >> shift, *op, *value as i64)
            } else {
                compare(bits, *op, *value)
            }
        }
        Test::Function { place, low, high, not } => {
            let address = word(record, *place);
            (*low <= address && address < *high) != *not
        }
        Test::Text { text, pattern, not } => match fetch(*text, record, env) {
            Some((bytes, len)) => pattern_matches(pattern, &bytes, len) != *not,
            None => false,
        },
        Test::Cpu { op, value } => compare(env.cpu as i32, *op, *value),
        Test::Cpus { subject, op, set } => cpus(*subject, *op, set, record, env),
    }
}

fn word(record: &[u8], place: Place) -> u64 {
    (0..usize::from(place.size).min(8))
        .map(|n| u64::from(byte(record, usize::from(place.offset) + n)) << (8 * n))
        .fold(0, |bits, byte| bits | byte)
}

fn byte(record: &[u8], at: usize) -> u8 {
    record.get(at).copied().unwrap_or(0)
}

/// `T` is the number with its sign. `&` gives the same result for both signs.
fn compare<T>(left: T, op: NumberOp, right: T) -> bool
where
    T: Ord + Copy + std::ops::BitAnd<Output = T> + Default,
{
    match op {
        NumberOp::Eq => left == right,
        NumberOp::Ne => left != right,
        NumberOp::Lt => left < right,
        NumberOp::Le => left <= right,
        NumberOp::Gt => left > right,
        NumberOp::Ge => left >= right,
        NumberOp::And => left & right != T::default(),
    }
}

/// Returns the bytes of a text from its start, and the length that the kernel uses. If that length is 0, there may be
/// more bytes.
fn fetch(text: Text, record: &[u8], env: &EvalEnv<'_>) -> Option<(Vec<u8>, usize)> {
    let behind = |start: usize| record.get(start..).unwrap_or_default().to_vec();
    let loc = |offset: u16| {
        let word = word(record, Place { offset, size: 4 });
        ((word & 0xffff) as usize, (word >> 16) as usize)
    };
    match text {
        Text::Static(place) => Some((behind(place.offset.into()), place.size.into())),
        Text::Dyn { offset } => {
            let (start, len) = loc(offset);
            Some((behind(start), len))
        }
        Text::Rel { offset } => {
            let (start, len) = loc(offset);
            Some((behind(usize::from(offset) + 4 + start), len))
        }
        Text::Pointer { place, user } => {
            let mut bytes = (env.read)(word(record, place), user)?;
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            bytes.truncate(end.min(POINTER_TEXT_MAX - 1));
            let len = bytes.len() + 1;
            Some((bytes, len))
        }
        Text::Open { offset } => Some((behind(offset.into()), 0)),
        Text::Comm => Some((env.comm.to_vec(), env.comm.len())),
    }
}

fn pattern_matches(pattern: &Pattern, text: &[u8], len: usize) -> bool {
    match pattern {
        Pattern::Full(wanted) if len == 0 => string(text) == &wanted[..],
        Pattern::Full(wanted) => {
            if len < wanted.len() {
                return false;
            }
            for at in 0..len {
                if byte(text, at) != byte(wanted, at) {
                    return false;
                }
                if byte(text, at) == 0 {
                    break;
                }
            }
            true
        }
        Pattern::Front(wanted) => {
            (len == 0 || len >= wanted.len()) && (0..wanted.len()).all(|at| byte(text, at) == wanted[at])
        }
        Pattern::Middle(wanted) if len == 0 => {
            wanted.is_empty() || string(text).windows(wanted.len()).any(|window| window == &wanted[..])
        }
        Pattern::Middle(wanted) => (0..(len + 1).saturating_sub(wanted.len()))
            .any(|start| (0..wanted.len()).all(|at| byte(text, start + at) == wanted[at])),
        Pattern::End(wanted) => {
            let Some(start) = len.checked_sub(1 + wanted.len()) else { return false };
            (0..wanted.len()).all(|at| byte(text, start + at) == wanted[at])
        }
        Pattern::Glob(glob) => {
            let bounded: Vec<u8> = (0..len).map(|at| byte(text, at)).take_while(|byte| *byte != 0).collect();
            glob_matches(glob, &bounded)
        }
    }
}

/// The bytes up to the first NUL.
fn string(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Matches by the definition of `lib/glob.c` instead of backtracking to the last star: it tracks all prefixes of the
/// text that match.
fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
    // reach[t]: the pattern read so far matches the first t bytes.
    let mut reach = vec![false; text.len() + 1];
    reach[0] = true;
    let mut at = 0;
    while at < glob.len() {
        let mut next = vec![false; text.len() + 1];
        let after;
        if glob[at] == b'*' {
            after = at + 1;
            let mut any = false;
            for t in 0..=text.len() {
                any |= reach[t];
                next[t] = any;
            }
        } else {
            // A backslash at the pattern's end escapes that end, which must then meet the end of the text.
            let Some((element, behind)) = element(glob, at) else { break };
            after = behind;
            for t in 0..text.len() {
                next[t + 1] = reach[t] && element.holds(text[t]);
            }
        }
        reach = next;
        at = after;
    }
    reach[text.len()]
}

/// A part of a glob that matches one byte.
enum Element {
    Any,
    One(u8),
    Class { spans: Vec<(u8, u8)>, inverted: bool },
}

impl Element {
    fn holds(&self, byte: u8) -> bool {
        match self {
            Self::Any => true,
            Self::One(wanted) => *wanted == byte,
            Self::Class { spans, inverted } => {
                spans.iter().any(|(low, high)| *low <= byte && byte <= *high) != *inverted
            }
        }
    }
}

/// The element at `at`, and where the next one starts; None for a backslash at the end.
fn element(glob: &[u8], at: usize) -> Option<(Element, usize)> {
    Some(match glob[at] {
        b'?' => (Element::Any, at + 1),
        b'[' => class(glob, at + 1).unwrap_or((Element::One(b'['), at + 1)),
        b'\\' => (Element::One(*glob.get(at + 1)?), at + 2),
        byte => (Element::One(byte), at + 1),
    })
}

/// A class from the byte after its bracket on; None if the class is unclosed.
fn class(glob: &[u8], start: usize) -> Option<(Element, usize)> {
    let inverted = glob.get(start) == Some(&b'!');
    let mut at = start + usize::from(inverted);
    let mut spans = Vec::new();
    loop {
        let low = *glob.get(at)?;
        if low == b']' && !spans.is_empty() {
            return Some((Element::Class { spans, inverted }, at + 1));
        }
        at += 1;
        if glob.get(at) == Some(&b'-') && glob.get(at + 1) != Some(&b']') {
            spans.push((low, *glob.get(at + 1)?));
            at += 2;
        } else {
            spans.push((low, low));
        }
    }
}

fn cpus(subject: CpusSubject, op: CpusOp, set: &[u32], record: &[u8], env: &EvalEnv<'_>) -> bool {
    match subject {
        CpusSubject::Scalar { place } => op == CpusOp::And && set.contains(&(word(record, place) as u32)),
        CpusSubject::Current => op == CpusOp::And && set.contains(&env.cpu),
        CpusSubject::Mask { offset } => {
            let word = word(record, Place { offset, size: 4 });
            let (start, len) = ((word & 0xffff) as usize, (word >> 16) as usize);
            let mask: Vec<u32> = (0..8 * len as u32)
                .filter(|cpu| byte(record, start + (*cpu / 8) as usize) & (1 << (cpu % 8)) != 0)
                .collect();
            match op {
                CpusOp::Eq => mask == set,
                CpusOp::Ne => mask != set,
                CpusOp::And => mask.iter().any(|cpu| set.contains(cpu)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_matches(pattern: &Pattern, text: &[u8]) -> bool {
        pattern_matches(pattern, text, text.len())
    }

    #[test]
    fn text_in_a_char_array() {
        let comm = b"bash\0\0\0\0\0\0\0\0\0\0\0\0";
        assert!(text_matches(&Pattern::Full(b"bash".into()), comm));
        assert!(!text_matches(&Pattern::Full(b"bas".into()), comm));
        assert!(!text_matches(&Pattern::Full(b"bashful".into()), comm));
        assert!(text_matches(&Pattern::Front(b"ba".into()), comm));
        assert!(text_matches(&Pattern::Middle(b"as".into()), comm));
        // Peculiarities of the kernel: the end is the array's end, and bytes after the NUL are searched.
        assert!(!text_matches(&Pattern::End(b"sh".into()), comm));
        assert!(text_matches(&Pattern::End(b"sh".into()), b"ash\0"));
        assert!(text_matches(&Pattern::Middle(b"tail".into()), b"x\0tail"));
        assert!(text_matches(&Pattern::Full(b"full".into()), b"full"));
        assert!(!text_matches(&Pattern::Full(b"fuller".into()), b"full"));
        assert!(text_matches(&Pattern::End(Vec::new()), b"\0"));
        assert!(text_matches(&Pattern::Glob(b"b*h".into()), comm));
        assert!(text_matches(&Pattern::Glob(b"f?ll".into()), b"full"));
    }

    #[test]
    fn texts_without_a_length() {
        for (pattern, expected) in [
            (Pattern::Full(b"ab".into()), true),
            (Pattern::Full(b"a".into()), false),
            (Pattern::Front(b"a".into()), true),
            (Pattern::Middle(b"b".into()), true),
            (Pattern::Middle(Vec::new()), true),
            (Pattern::End(Vec::new()), false),
            (Pattern::Glob(b"ab".into()), false),
            (Pattern::Glob(b"*".into()), true),
        ] {
            assert_eq!(pattern_matches(&pattern, b"ab\0c", 0), expected, "{pattern}");
        }
    }

    #[test]
    fn globs() {
        for (glob, text, expected) in [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acb", false),
            ("*a*b*", "xxaxxbxx", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[]-a]", "^", true),
            ("[a-]", "-", true),
            ("[x", "[x", true),
            ("[a-", "[a-", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("a\\", "a", true),
            ("a\\", "ab", false),
            ("*\\", "ab", true),
            ("?", "", false),
        ] {
            assert_eq!(glob_matches(glob.as_bytes(), text.as_bytes()), expected, "{glob} on {text}");
        }
    }

    #[test]
    fn unreadable_text_matches_neither_comparison() {
        let env = EvalEnv { cpu: 0, comm: [0; 16], read: &|_, _| None };
        let place = Place { offset: 0, size: 8 };
        for not in [false, true] {
            let text = Text::Pointer { place, user: false };
            let test = Test::Text { text, pattern: Pattern::Full(b"x".into()), not };
            assert!(!matches(&Filter::Test(test.clone()), &[0; 8], &env));
            assert!(matches(&Filter::Not(Box::new(Filter::Test(test))), &[0; 8], &env));
        }
    }
}
