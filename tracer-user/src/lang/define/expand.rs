//! Expansion of meta arguments: `$arg*` to all arguments of a function, `$argN` to its name, `%pd` and `%pD` to the
//! name of a directory entry (`traceprobe_expand_meta_args()`, `traceprobe_expand_dentry_args()`,
//! `kernel/trace/trace_probe.c`).

use memchr::memchr;
use rustix::io::Errno;

use super::super::Span;
use super::super::facts::{Facts, Feature};
use super::super::fetch::{Checker, ErrorKind, Stop};
use super::super::number;
use super::words::Line;
use crate::event::dynamic::{latin1, raw};

/// Maximum size in bytes of the expansion of `$arg`: `MAX_BTF_ARGS_LEN`.
const ARGS_SIZE: usize = 128;
/// Maximum size in bytes of the expansion of `%pd`: `MAX_DENTRY_ARGS_LEN`.
const DENTRY_SIZE: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: Vec<u8>,
    /// Number of the original word in the line.
    pub(super) origin: usize,
    /// Whether the text is unchanged.
    pub(super) own: bool,
}

/// The number of a word, and its error.
pub(super) type At = (usize, Stop);

/// Returns the words of the arguments without expansion.
pub(super) fn plain(line: &Line<'_>, from: usize) -> Vec<Word> {
    let words = line.words().enumerate().skip(from);
    words.map(|(origin, text)| Word { text: text.to_vec(), origin, own: true }).collect()
}

/// Replaces `$arg*` and `$argN` by names. Returns `None` if no word changes.
pub(super) fn arguments(words: &[Word], checker: &mut Checker<'_>) -> Result<Option<Vec<Word>>, At> {
    let at = checker.site().at;
    let mut star = None;
    let mut last = None;
    for (i, word) in words.iter().enumerate() {
        let Some(rest) = word.text.strip_prefix(b"$arg") else { continue };
        let refused = |kind| Err((i + 2, Stop::invalid(kind, Span::new(0, word.text.len()))));
        if !at.is_entry() && !at.is_exit() {
            return refused(ErrorKind::ArgsNotAtEntry);
        }
        match rest.first() {
            Some(b'0'..=b'9') => {}
            Some(b'*') if star.is_some() => return refused(ErrorKind::ArgsTwice),
            Some(b'*') => star = Some(i),
            _ => return refused(ErrorKind::BadVariable),
        }
        last = Some((i, Span::new(0, word.text.len())));
    }
    let Some((last, span)) = last else { return Ok(None) };
    let params: Vec<Vec<u8>> = checker.params().iter().map(|(name, _)| raw(name)).collect();
    if params.is_empty() {
        return match star {
            Some(_) => Err((last + 2, Stop::at(Errno::OPNOTSUPP, ErrorKind::NoTypes, span))),
            None => Ok(None),
        };
    }
    let mut used = 0;
    let mut made = Vec::new();
    for (i, word) in words.iter().enumerate() {
        let whole = Span::new(0, word.text.len());
        let refused = |errno, kind| Err((i + 2, Stop::at(errno, kind, whole)));
        let texts = if star == Some(i) {
            params.clone()
        } else if let Some(rest) = word.text.strip_prefix(b"$arg") {
            let (number, ty) = number::prefix(rest, 10);
            if !matches!(ty.first(), None | Some(b':')) {
                return refused(Errno::NOENT, ErrorKind::BadVariable);
            }
            if number == 0 {
                return refused(Errno::INVAL, ErrorKind::BadArgNumber);
            }
            let index = usize::try_from(number - 1).unwrap_or(usize::MAX);
            let Some(name) = params.get(index) else {
                return refused(Errno::NOENT, ErrorKind::NoVariable);
            };
            vec![[name, ty].concat()]
        } else {
            made.push(word.clone());
            continue;
        };
        for text in texts {
            if text.len() >= ARGS_SIZE - used {
                return refused(Errno::TOOBIG, ErrorKind::ArgsTooLong);
            }
            used += text.len() + 1;
            made.push(Word { text, origin: word.origin, own: false });
        }
    }
    Ok(Some(made))
}

/// Replaces `:%pd` and `:%pD` by dereferences. Returns whether a word changed.
pub(super) fn dentries(words: &mut [Word], facts: &dyn Facts) -> Result<bool, Stop> {
    if !facts.language().has(Feature::Dentry) {
        return Ok(false);
    }
    let (mut used, mut any) = (0, false);
    for word in words {
        let text = &word.text;
        let Some(head) = text.strip_suffix(b":%pd").or_else(|| text.strip_suffix(b":%pD")) else { continue };
        let Some(name) = facts.offset_of("dentry", "d_name.name") else { continue };
        let (left, of) = head.split_at(memchr(b'=', head).map_or(0, |equals| equals + 1));
        let (left, of) = (latin1(left), latin1(of));
        let made = if text.ends_with(b"D") {
            let Some(dentry) = facts.offset_of("file", "f_path.dentry") else { continue };
            format!("{left}+0x0(+{name:#x}(+{dentry:#x}({of}))):string")
        } else {
            format!("{left}+0x0(+{name:#x}({of})):string")
        };
        let made = raw(&made);
        if made.len() >= DENTRY_SIZE - used {
            return Err(Stop::at(Errno::NOMEM, ErrorKind::DentryTooLong, Span::new(0, text.len())));
        }
        used += made.len() + 1;
        (word.text, word.own, any) = (made, false, true);
    }
    Ok(any)
}
