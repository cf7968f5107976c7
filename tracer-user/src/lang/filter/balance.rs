//! The kernel's first pass over a filter: quotes, parentheses and the maximum number of terms (`calc_stack()`).
//!
//! The pass ignores operators and fields, so its errors precede all others.

use rustix::io::Errno;

use super::super::{Span, ctype::is_space};
use super::error::{ErrorKind, Fault};

/// Limits for the second pass. The kernel sizes its stacks by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Depth of parentheses; the whole expression counts as one level.
    pub depth: usize,
    /// Number of terms.
    pub terms: usize,
}

/// Counts the parentheses and terms of a filter.
///
/// # Errors
/// - `Missing matching quote` (ESRCH) at the last opening quote.
/// - `Too few '('` (EPERM).
/// - `Too many '('` (ENOENT) at the innermost open parenthesis.
/// - The error without a text (EINVAL) for an empty expression.
pub fn check(text: &[u8]) -> Result<Counts, Fault> {
    let mut open = 1;
    let mut depth = 1;
    let mut terms = 0;
    let mut in_term = false;
    let mut quote = None;
    for (at, &byte) in text.iter().enumerate() {
        if is_space(byte) {
            continue;
        }
        if let Some((_, closing)) = quote {
            if byte == closing {
                quote = None;
            }
            continue;
        }
        let ends_term = match byte {
            b'\'' | b'"' => {
                quote = Some((at, byte));
                false
            }
            b'|' | b'&' => text.get(at + 1) == Some(&byte),
            b'(' => {
                open += 1;
                depth = depth.max(open);
                true
            }
            b')' if open == 1 => return Err(fault(ErrorKind::TooManyClose, Errno::PERM, at)),
            b')' => {
                open -= 1;
                true
            }
            _ => false,
        };
        terms += usize::from(!ends_term && !in_term);
        in_term = !ends_term;
    }
    if let Some((at, _)) = quote {
        return Err(fault(ErrorKind::MissingQuote, Errno::SRCH, at));
    }
    if open != 1 {
        return Err(fault(ErrorKind::TooManyOpen, Errno::NOENT, last_open(text)));
    }
    if terms == 0 {
        return Err(Fault::new(ErrorKind::Empty, Errno::INVAL, 0, Span::new(0, text.len())));
    }
    Ok(Counts { depth, terms })
}

fn fault(kind: ErrorKind, errno: Errno, at: usize) -> Fault {
    Fault::new(kind, errno, at, Span::new(at, at + 1))
}

/// Finds the last open parenthesis. Like the kernel, it searches from the end, so quotes may pair differently than in
/// the forward direction. Returns the first byte if the search finds none.
fn last_open(text: &[u8]) -> usize {
    let mut closed = 0;
    let mut quote = None;
    for (at, &byte) in text.iter().enumerate().skip(1).rev() {
        if let Some(closing) = quote {
            if byte == closing {
                quote = None;
            }
            continue;
        }
        match byte {
            b'(' if closed == 0 => return at,
            b'(' => closed -= 1,
            b')' => closed += 1,
            b'\'' | b'"' => quote = Some(byte),
            _ => {}
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(check(b"a == 1"), Ok(Counts { depth: 1, terms: 1 }));
        // The second byte of a junction starts a term of its own if a parenthesis follows.
        assert_eq!(check(b"((a) && b) || (c | d)"), Ok(Counts { depth: 3, terms: 4 }));
        assert_eq!(check(b"a == '(&&' && b"), Ok(Counts { depth: 1, terms: 2 }));
    }

    #[test]
    fn first_errors() {
        for (text, kind, errno, position) in [
            ("a == 'x", ErrorKind::MissingQuote, Errno::SRCH, 5),
            ("a == 'x' && \"'", ErrorKind::MissingQuote, Errno::SRCH, 12),
            ("a)", ErrorKind::TooManyClose, Errno::PERM, 1),
            ("(a", ErrorKind::TooManyOpen, Errno::NOENT, 0),
            ("a (b) ((c)", ErrorKind::TooManyOpen, Errno::NOENT, 6),
            ("(a ')'", ErrorKind::TooManyOpen, Errno::NOENT, 0),
            ("()", ErrorKind::Empty, Errno::INVAL, 0),
            ("", ErrorKind::Empty, Errno::INVAL, 0),
        ] {
            let fault = check(text.as_bytes()).unwrap_err();
            assert_eq!((fault.kind, fault.errno, fault.position), (kind, errno, position), "{text}");
        }
    }
}
