//! Parser from words to trees (`traceprobe_parse_probe_arg()` and its callees, `kernel/trace/trace_probe.c`).

use rustix::io::Errno;

use super::super::Span;
use super::super::facts::{Feature, Language};
use super::super::number;
use super::ast::{Argument, Fetch, FetchKind, Path, TypeSpec};
use super::error::{ErrorKind, Fault, Stop};
use super::{ARG_NAME_MAX, ARRAY_MAX, At, TEXT_MAX, is_alpha, is_name};

/// A parsed argument that may contain errors. The fields are in the order of the kernel's checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The name, if written.
    pub name: Result<Option<Vec<u8>>, Stop>,
    /// The text after the name.
    pub body: Span,
    /// Result of the check of the body's length.
    pub length: Result<(), Stop>,
    /// The type, if written.
    pub ty: Result<Option<TypeSpec>, Stop>,
    /// The fetched value.
    pub fetch: Fetch,
}

impl Draft {
    /// Returns the tree.
    ///
    /// # Errors
    /// The first syntax error of the text.
    #[cfg(any(test, feature = "internals"))]
    pub fn tree(self) -> Result<Argument, Stop> {
        let name = self.name?;
        self.length?;
        let ty = self.ty?;
        match self.fetch.first_broken() {
            Some(stop) => Err(stop.clone()),
            None => Ok(Argument { name, fetch: self.fetch, ty }),
        }
    }
}

impl Fetch {
    /// Returns the first syntax error of the value.
    #[cfg(any(test, feature = "internals"))]
    fn first_broken(&self) -> Option<&Stop> {
        match &self.kind {
            FetchKind::Broken(stop) => Some(stop),
            FetchKind::Deref { inner, .. } => inner.first_broken(),
            _ => None,
        }
    }
}

/// Parses an argument of a probe at `at`.
pub fn parse(word: &[u8], at: At, language: Language) -> Draft {
    let equals = word.iter().position(|byte| *byte == b'=');
    let start = equals.map_or(0, |at| at + 1);
    let whole = Span::new(0, word.len());
    let body = Span::new(start, word.len());
    let stop = |errno, kind, span| Stop::new(errno, Fault::at(kind, span));
    let name = match equals {
        // The kernel puts the caret at the start of the word.
        Some(length) if length > ARG_NAME_MAX => {
            Err(stop(Errno::INVAL, ErrorKind::ArgNameTooLong, Span::new(0, length)))
        }
        Some(0) => Err(stop(Errno::INVAL, ErrorKind::NoArgName, Span::empty(0))),
        Some(length) if !is_name(Span::new(0, length).of(word), false) => {
            Err(stop(Errno::INVAL, ErrorKind::BadArgName, Span::new(0, length)))
        }
        Some(length) => Ok(Some(Span::new(0, length).of(word).to_vec())),
        None => Ok(None),
    };
    let length = match body.len() {
        0 => Err(stop(Errno::INVAL, ErrorKind::NoArgBody, body)),
        length if length > TEXT_MAX => {
            let later = language.has(Feature::LaterErrors);
            Err(stop(if later { Errno::TOOBIG } else { Errno::INVAL }, ErrorKind::ArgTooLong, body))
        }
        _ => Ok(()),
    };
    let colon = body.of(word).iter().position(|byte| *byte == b':').map(|at| start + at);
    let ty = colon.map(|colon| type_spec(word, Span::new(colon + 1, whole.end))).transpose();
    let fetch = Reader { word, at, language }.fetch(Span::new(start, colon.unwrap_or(whole.end)), start);
    Draft { name, body, length, ty, fetch }
}

fn type_spec(word: &[u8], span: Span) -> Result<TypeSpec, Stop> {
    let text = span.of(word);
    let Some(open) = text.iter().position(|byte| *byte == b'[') else {
        return Ok(TypeSpec { name: text.to_vec(), count: 0, span });
    };
    let name = Span::new(0, open).of(text);
    let inside = span.start + open + 1;
    let close = Span::new(inside, span.end).of(word).iter().position(|byte| *byte == b']');
    let Some(close) = close.map(|at| inside + at) else {
        return Err(Stop::invalid(ErrorKind::ArrayOpen, Span::empty(span.end)));
    };
    if close + 1 < span.end {
        return Err(Stop::invalid(ErrorKind::BadArraySuffix, Span::new(close + 1, span.end)));
    }
    let digits = Span::new(inside, close);
    let count = number::unsigned(digits.of(word)).and_then(|count| u32::try_from(count).ok());
    match count {
        None | Some(0) => Err(Stop::invalid(ErrorKind::BadArraySize, digits)),
        Some(count) if count > ARRAY_MAX => Err(Stop::invalid(ErrorKind::ArrayTooBig, digits)),
        Some(count) => Ok(TypeSpec { name: name.to_vec(), count, span }),
    }
}

struct Reader<'a> {
    word: &'a [u8],
    at: At,
    language: Language,
}

impl Reader<'_> {
    /// Parses the text at `span`; `offset` is the kernel's position of it.
    fn fetch(&self, span: Span, offset: usize) -> Fetch {
        let kind = self.kind(span, offset).unwrap_or_else(FetchKind::Broken);
        Fetch { kind, span, offset }
    }

    fn kind(&self, span: Span, offset: usize) -> Result<FetchKind, Stop> {
        let text = span.of(self.word);
        let refused =
            |errno, kind, offset| Err(Stop::new(errno, Fault { kind, offset, span, astray: false }));
        match text {
            [b'$', name @ ..] if self.is_retval(name) => Ok(FetchKind::Retval(Path::read(self.word, span))),
            [b'$', name @ ..] => Ok(FetchKind::Variable(name.to_vec())),
            [b'%', ..] if !self.at.has_registers() => {
                // The kernel continues after the first error and logs a second.
                let fault = |kind| Fault { kind, offset, span, astray: false };
                let faults = vec![fault(ErrorKind::BadVariable), fault(ErrorKind::BadFetchArg)];
                Err(Stop { errno: Errno::INVAL, faults })
            }
            [b'%', name @ ..] => Ok(FetchKind::Register(name.to_vec())),
            [b'@', digits @ ..] if matches!(digits, [b'0'..=b'9', ..]) => {
                match number::read_unsigned(digits, 0) {
                    Ok(address) => Ok(FetchKind::Memory(address)),
                    Err(errno) => refused(errno, ErrorKind::BadMemoryAddress, offset),
                }
            }
            [b'@', b'+', ..] if self.at.is_kernel() => refused(Errno::INVAL, ErrorKind::FileOnKprobe, offset),
            [b'@', b'+', digits @ ..] => match number::read_signed(digits) {
                Ok(offset) => Ok(FetchKind::File(offset)),
                Err(errno) => refused(errno, ErrorKind::BadFileOffset, offset),
            },
            [b'@', ..] if !self.at.is_kernel() => refused(Errno::INVAL, ErrorKind::SymbolOnUprobe, offset),
            [b'@', symbol @ ..] => Ok(FetchKind::Symbol(symbol.to_vec())),
            [b'+' | b'-', ..] => self.deref(span, offset),
            [b'\\', b'"', text @ ..] => quoted(text, span, offset),
            [b'\\', digits @ ..] => match immediate(digits) {
                Ok(value) => Ok(FetchKind::Immediate(value)),
                Err(errno) => refused(errno, ErrorKind::BadImmediate, offset + 1),
            },
            [first, ..] if (is_alpha(*first) || *first == b'_') && self.language.has(Feature::BtfArgs) => {
                if self.at.is_entry() || self.at.is_exit() {
                    Ok(FetchKind::Named(Path::read(self.word, span)))
                } else {
                    refused(Errno::INVAL, ErrorKind::NoTypes, offset)
                }
            }
            [b'(', ..] if self.language.has(Feature::Typecasts) => {
                refused(Errno::OPNOTSUPP, ErrorKind::NoTypes, offset)
            }
            _ => refused(Errno::INVAL, ErrorKind::BadFetchArg, offset),
        }
    }

    /// Whether a variable is the return value. Since 6.5 every name that starts with `retval` is.
    fn is_retval(&self, name: &[u8]) -> bool {
        let later = self.language.has(Feature::LaterErrors);
        self.at != At::Event && if later { name.starts_with(b"retval") } else { name == b"retval" }
    }

    fn deref(&self, span: Span, offset: usize) -> Result<FetchKind, Stop> {
        let text = span.of(self.word);
        let user = text.get(1) == Some(&b'u');
        // Start of the offset, without a plus sign, which the kernel skips.
        let digits = span.start + usize::from(user) + usize::from(text.first() == Some(&b'+'));
        let minus = text.first() == Some(&b'-');
        let refused =
            |errno, kind, offset, span| Err(Stop::new(errno, Fault { kind, offset, span, astray: false }));
        let rest = Span::new(digits, span.end).of(self.word);
        let Some(open) = rest.iter().position(|byte| *byte == b'(') else {
            return refused(Errno::INVAL, ErrorKind::DerefNeedsBrace, offset, span);
        };
        let number = Span::new(digits, digits + open);
        // With `-u` the sign precedes the `u`.
        let signed = if minus && user {
            number::read_signed(&[b"-", Span::new(digits + 1, number.end).of(self.word)].concat())
        } else {
            number::read_signed(number.of(self.word))
        };
        let value = match signed {
            Ok(value) => value,
            Err(errno) => return refused(errno, ErrorKind::BadDerefOffset, offset, number),
        };
        let negative = minus || rest.first() == Some(&b'-');
        let believed = offset + open + 1 + usize::from(!negative);
        let inside = Span::new(number.end + 1, span.end);
        let Some(close) = inside.of(self.word).iter().rposition(|byte| *byte == b')') else {
            let end = believed + inside.len();
            return refused(Errno::INVAL, ErrorKind::DerefOpen, end, Span::empty(span.end));
        };
        let inner = self.fetch(Span::new(inside.start, inside.start + close), believed);
        Ok(FetchKind::Deref { user, offset: value, inner: Box::new(inner) })
    }
}

/// `text` is the part of `span` after the opening quote.
fn quoted(text: &[u8], span: Span, offset: usize) -> Result<FetchKind, Stop> {
    if let Some(text) = text.strip_suffix(b"\"") {
        Ok(FetchKind::Text(text.to_vec()))
    } else {
        let fault = Fault {
            kind: ErrorKind::TextOpen,
            offset: offset + 2 + text.len(),
            span: Span::empty(span.end),
            astray: false,
        };
        Err(Stop::new(Errno::INVAL, fault))
    }
}

/// `str_to_immediate()`
fn immediate(text: &[u8]) -> Result<u64, Errno> {
    match text {
        [b'0'..=b'9', ..] => number::read_unsigned(text, 0),
        [b'-', ..] => number::read_signed(text).map(|value| value as u64),
        [b'+', digits @ ..] => number::read_signed(digits).map(|value| value as u64),
        _ => Err(Errno::INVAL),
    }
}
