//! The kernel's first sweep over a filter: quotes, parentheses, and how many terms there are at most
//! (`calc_stack()`). It knows nothing of operators or fields, so its errors come before all others.

use rustix::io::Errno;

use super::super::{Span, ctype::is_space};
use super::error::{ErrorKind, Fault};

/// What the second sweep is meant to make do with: the kernel sizes its stacks by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Depth of parentheses, the whole expression counted as one.
    pub depth: usize,
    /// Number of terms.
    pub terms: usize,
}

/// Counts, or finds a quote or parenthesis without its other half, or no term at all.
///
/// # Errors
/// `Missing matching quote` (ESRCH) at the last opening quote, `Too few '('` (EPERM), `Too many '('` (ENOENT) at
/// the innermost parenthesis left open, or the wordless error (EINVAL) of an empty expression.
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
        match byte {
            b'\'' | b'"' => quote = Some((at, byte)),
            b'|' | b'&' if text.get(at + 1) == Some(&byte) => {
                in_term = false;
                continue;
            }
            b'(' => {
                in_term = false;
                open += 1;
                depth = depth.max(open);
                continue;
            }
            b')' => {
                in_term = false;
                if open == 1 {
                    return Err(fault(ErrorKind::TooManyClose, Errno::PERM, at));
                }
                open -= 1;
                continue;
            }
            _ => {}
        }
        if !in_term {
            in_term = true;
            terms += 1;
        }
    }
    if let Some((at, _)) = quote {
        return Err(fault(ErrorKind::MissingQuote, Errno::SRCH, at));
    }
    if open != 1 {
        return Err(fault(ErrorKind::TooManyOpen, Errno::NOENT, last_open(text)));
    }
    if terms == 0 {
        return Err(Fault {
            kind: ErrorKind::Empty,
            errno: Errno::INVAL,
            position: 0,
            span: Span::new(0, text.len()),
        });
    }
    Ok(Counts { depth, terms })
}

fn fault(kind: ErrorKind, errno: Errno, at: usize) -> Fault {
    Fault { kind, errno, position: at, span: Span::new(at, at + 1) }
}

/// The last parenthesis that nothing closes, sought from the end as the kernel does. Read backwards, a quote
/// may pair differently from how it paired forwards; the first byte is what is left when nothing is found.
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
        // The second half of a junction starts a term of its own where a parenthesis follows.
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
