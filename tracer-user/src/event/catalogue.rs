//! The catalogue of events by `system:name`, and patterns that select events.

/// The events of a kernel: all `system:name` pairs, in the kernel's order.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    names: Vec<(String, String)>,
}

impl Catalogue {
    /// Reads the text of `available_events`.
    pub fn parse(text: &str) -> Self {
        let names = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(system, name)| (system.to_owned(), name.to_owned()))
            .collect();
        Self { names }
    }

    /// All events, in order, as `(system, name)`.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.names.iter().map(|(system, name)| (system.as_str(), name.as_str()))
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are no events.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The events that a pattern selects: `sys:event`, `sys:`, or `sys` (a system or an event's name alone). Each
    /// part is a glob.
    pub fn matching(&self, pattern: &str) -> Vec<(&str, &str)> {
        if let Some((system, name)) = pattern.split_once(':') {
            let [system, name] =
                [system, name].map(|part| Glob::new(if part.is_empty() { "*" } else { part }));
            self.iter().filter(|(s, n)| system.matches(s) && name.matches(n)).collect()
        } else {
            let either = Glob::new(pattern);
            self.iter().filter(|(s, n)| either.matches(s) || either.matches(n)).collect()
        }
    }
}

/// A shell-like pattern with the kernel's semantics (lib/glob.c): `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before a
/// literal character.
#[derive(Clone, Debug)]
pub struct Glob {
    pattern: Vec<u8>,
}

impl Glob {
    /// Stores the pattern unchanged. Every pattern is valid (an unclosed bracket is a literal).
    pub fn new(pattern: &str) -> Self {
        Self { pattern: pattern.as_bytes().to_vec() }
    }

    /// Whether the whole text matches.
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (&self.pattern, text.as_bytes());
        let (mut p, mut t) = (0, 0);
        // Where to continue after a mismatch: after the last star, one byte further in the text.
        let mut retry: Option<(usize, usize)> = None;
        loop {
            let step = match pattern.get(p) {
                Some(b'*') => {
                    retry = Some((p + 1, t));
                    p += 1;
                    continue;
                }
                None if t == text.len() => return true,
                None => None,
                // A trailing backslash escapes the end of the pattern, which then matches only the end of the text.
                Some(b'\\') if p + 1 == pattern.len() && t == text.len() => return true,
                Some(b'\\') if p + 1 == pattern.len() => None,
                Some(_) if t == text.len() => return false,
                Some(_) => text.get(t).and_then(|byte| single(pattern, p, *byte)),
            };
            if let Some(next) = step {
                p = next;
                t += 1;
            } else if let Some((star, from)) = retry.filter(|(_, from)| *from < text.len()) {
                retry = Some((star, from + 1));
                p = star;
                t = from + 1;
            } else {
                return false;
            }
        }
    }
}

/// Matches one byte against the element at `p` and returns the position of the next element.
fn single(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => match class(pattern, p, byte) {
            Some((true, next)) => Some(next),
            Some((false, _)) => None,
            None => (byte == b'[').then_some(p + 1),
        },
        b'\\' => (*pattern.get(p + 1)? == byte).then_some(p + 2),
        literal => (literal == byte).then_some(p + 1),
    }
}

/// Parses the class at `p`: whether it contains the byte, and the position of the next element. None without a
/// closing bracket.
fn class(pattern: &[u8], p: usize, byte: u8) -> Option<(bool, usize)> {
    let mut at = p + 1;
    let inverted = pattern.get(at) == Some(&b'!');
    at += usize::from(inverted);
    let mut found = false;
    let mut first = true;
    loop {
        let low = *pattern.get(at)?;
        if low == b']' && !first {
            return Some((found != inverted, at + 1));
        }
        first = false;
        at += 1;
        let mut high = low;
        if pattern.get(at) == Some(&b'-')
            && let Some(end) = pattern.get(at + 1).filter(|end| **end != b']')
        {
            high = *end;
            at += 2;
        }
        // A range from high to low is empty.
        found |= (low..=high).contains(&byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("sched_*", "sched_switch", true),
            ("*_sw?tch", "sched_switch", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*ab", "aab", true),
            ("a", "", false),
            ("", "", true),
            ("*", "", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[x", "[x", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("ab", "abc", false),
            ("[c-a]x", "bx", false),
            ("a\\", "a", true),
            ("a\\", "a\\", false),
            ("*\\", "ab", true),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn patterns_name_events() {
        let catalogue = Catalogue::parse("sched:sched_switch\nsched:sched_waking\nirq:irq_handler_entry\n");
        assert_eq!(catalogue.matching("sched").len(), 2);
        assert_eq!(catalogue.matching("sched:").len(), 2);
        assert_eq!(catalogue.matching("sched_switch"), [("sched", "sched_switch")]);
        assert_eq!(catalogue.matching(":irq_*"), [("irq", "irq_handler_entry")]);
        assert_eq!(catalogue.matching("*:*").len(), 3);
        assert!(catalogue.matching("nothing").is_empty());
    }
}
