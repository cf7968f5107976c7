//! Parser from words to trees (`traceprobe_parse_probe_arg()` and its callees, `kernel/trace/trace_probe.c`).

use rustix::io::Errno;

use super::super::Span;
use super::super::facts::{Feature, Language};
use super::super::{ctype, number};
#[cfg(any(test, feature = "internals"))]
use super::ast::Argument;
use super::ast::{Cast, Fetch, FetchKind, Path, TypeSpec};
use super::error::{ErrorKind, Fault, Stop};
use super::{ARG_NAME_MAX, ARRAY_MAX, At, LONG_TEXT_MAX, NESTING_MAX, TEXT_MAX, is_alpha, is_name};

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
    #[cfg(any(test, feature = "internals"))]
    fn first_broken(&self) -> Option<&Stop> {
        match &self.kind {
            FetchKind::Broken(stop) => Some(stop),
            FetchKind::Deref { inner, .. } | FetchKind::ThisCpu { inner, .. } => inner.first_broken(),
            FetchKind::Cast(cast) => cast.inner.first_broken(),
            _ => None,
        }
    }
}

/// Parses an argument of a probe at `at`.
pub fn parse(word: &[u8], at: At, language: Language) -> Draft {
    let equals = word.iter().position(|byte| *byte == b'=');
    let start = equals.map_or(0, |at| at + 1);
    let body = Span::new(start, word.len());
    let name = match equals.map(|end| Span::new(0, end)) {
        None => Ok(None),
        // The kernel puts the caret at the start of the word.
        Some(name) if name.len() > ARG_NAME_MAX => Err(Stop::invalid(ErrorKind::ArgNameTooLong, name)),
        Some(name) if name.is_empty() => Err(Stop::invalid(ErrorKind::NoArgName, name)),
        Some(name) if !is_name(name.of(word), false) => Err(Stop::invalid(ErrorKind::BadArgName, name)),
        Some(name) => Ok(Some(name.of(word).to_vec())),
    };
    let length = match body.len() {
        0 => Err(Stop::invalid(ErrorKind::NoArgBody, body)),
        1..=TEXT_MAX => Ok(()),
        _ if body.len() <= LONG_TEXT_MAX && language.has(Feature::LongArguments) => Ok(()),
        _ => {
            let later = language.has(Feature::LaterErrors);
            Err(Stop::at(if later { Errno::TOOBIG } else { Errno::INVAL }, ErrorKind::ArgTooLong, body))
        }
    };
    let colon = body.of(word).iter().position(|byte| *byte == b':').map(|at| start + at);
    let ty = colon.map(|colon| type_spec(word, Span::new(colon + 1, body.end))).transpose();
    let reader = Reader { word, at, language };
    let span = Span::new(start, colon.unwrap_or(body.end));
    // A text without a limit could nest without one.
    let fetch = match &length {
        Ok(()) => reader.fetch(span, start, 0),
        Err(stop) => Fetch { kind: FetchKind::Broken(stop.clone()), span, offset: start },
    };
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
    /// Parses the text at `span`; `offset` is the kernel's position of it, `depth` the number of texts around it.
    fn fetch(&self, span: Span, offset: usize, depth: usize) -> Fetch {
        let kind = self.kind(span, offset, depth).unwrap_or_else(FetchKind::Broken);
        Fetch { kind, span, offset }
    }

    fn kind(&self, span: Span, offset: usize, depth: usize) -> Result<FetchKind, Stop> {
        let text = span.of(self.word);
        let refused = |errno, kind, offset| Err(Stop::new(errno, Fault::new(kind, offset, span)));
        let has = |feature| self.language.has(feature);
        let this_cpu = self.this_cpu(text);
        let nests = matches!(text, [b'+' | b'-' | b'(', ..]) || this_cpu.is_some();
        if nests && depth >= NESTING_MAX && has(Feature::LatestErrors) {
            return refused(Errno::TOOBIG, ErrorKind::TooMuchNested, offset);
        }
        match text {
            [b'$', name @ ..] if self.is_retval(name) => Ok(FetchKind::Retval(Path::read(self.word, span))),
            [b'$', name @ ..] if self.is_current(name) => Ok(FetchKind::Current(Path::read(self.word, span))),
            [b'$', name @ ..] => Ok(FetchKind::Variable(name.to_vec())),
            [b'%', ..] if !self.at.has_registers() => {
                // Before 7.3, the kernel continues after the first error and logs a second.
                let kinds = [ErrorKind::BadVariable, ErrorKind::BadFetchArg];
                let count = if has(Feature::LatestErrors) { 1 } else { 2 };
                let faults =
                    kinds.into_iter().take(count).map(|kind| Fault::new(kind, offset, span)).collect();
                Err(Stop { errno: Errno::INVAL, faults })
            }
            [b'%', name @ ..] => Ok(FetchKind::Register(name.to_vec())),
            [b'@', digits @ ..] if digits.first().is_some_and(u8::is_ascii_digit) => {
                let address = number::read_unsigned(digits, 0).map(FetchKind::Memory);
                address.or_else(|errno| refused(errno, ErrorKind::BadMemoryAddress, offset))
            }
            [b'@', b'+', ..] if self.at.is_kernel() => {
                let latest = has(Feature::LatestErrors);
                let kind = if latest { ErrorKind::FileOnKernelProbe } else { ErrorKind::FileOnKprobe };
                refused(Errno::INVAL, kind, offset)
            }
            [b'@', b'+', digits @ ..] => number::read_signed(digits)
                .map(FetchKind::File)
                .or_else(|errno| refused(errno, ErrorKind::BadFileOffset, offset)),
            [b'@', ..] if !self.at.is_kernel() => refused(Errno::INVAL, ErrorKind::SymbolOnUprobe, offset),
            [b'@', symbol @ ..] => Ok(FetchKind::Symbol(symbol.to_vec())),
            [b'+' | b'-', ..] => self.deref(span, offset, depth),
            [b'\\', b'"', text @ ..] => quoted(text, span, offset),
            [b'\\', digits @ ..] => immediate(digits)
                .map(FetchKind::Immediate)
                .or_else(|errno| refused(errno, ErrorKind::BadImmediate, offset + 1)),
            _ if let Some((read, length)) = this_cpu => {
                if !self.at.is_kernel() || self.at == At::Event {
                    return refused(Errno::INVAL, ErrorKind::ThisCpuOutside, offset);
                }
                let (inside, offset) = (Span::new(span.start + length, span.end), offset + length);
                let inner = self.enclosed(inside, offset, depth)?;
                Ok(FetchKind::ThisCpu { read, inner: Box::new(inner) })
            }
            [first, ..] if is_letter(*first) && self.at == At::Event && has(Feature::FieldNames) => {
                Ok(FetchKind::Field(text.to_vec()))
            }
            [first, ..] if is_letter(*first) && has(Feature::BtfArgs) => {
                if self.at.is_entry() || self.at.is_exit() {
                    Ok(FetchKind::Named(Path::read(self.word, span)))
                } else {
                    refused(Errno::INVAL, ErrorKind::NoTypes, offset)
                }
            }
            [b'(', ..] if self.has_casts() => self.cast(span, offset, depth),
            [b'(', ..] if has(Feature::Typecasts) => refused(Errno::OPNOTSUPP, ErrorKind::NoTypes, offset),
            _ => refused(Errno::INVAL, ErrorKind::BadFetchArg, offset),
        }
    }

    /// Whether a variable is the current task, with or without members. In user-space files there is none.
    fn is_current(&self, name: &[u8]) -> bool {
        let is_here = self.at.is_kernel() && self.at != At::Event && self.language.has(Feature::Current);
        let has_members = self.language.has(Feature::BtfArgs);
        is_here && (name == b"current" || has_members && name.starts_with(b"current-"))
    }

    /// Whether the text begins with `this_cpu_read(` or else with `this_cpu_ptr(`, and the length of that.
    fn this_cpu(&self, text: &[u8]) -> Option<(bool, usize)> {
        let known = self.language.has(Feature::ThisCpu);
        let all = [(true, &b"this_cpu_read("[..]), (false, b"this_cpu_ptr(")];
        let found = all.into_iter().find(|(_, start)| known && text.starts_with(start));
        found.map(|(read, start)| (read, start.len()))
    }

    /// Whether casts are available: only where types are.
    fn has_casts(&self) -> bool {
        let at = self.at.is_entry() || self.at.is_exit() || self.at == At::Event;
        at && self.language.has(Feature::Casts) && self.language.has(Feature::BtfArgs)
    }

    /// Parses the text up to the last closing parenthesis in `span`.
    fn enclosed(&self, span: Span, offset: usize, depth: usize) -> Result<Fetch, Stop> {
        let Some(close) = span.of(self.word).iter().rposition(|byte| *byte == b')') else {
            let fault = Fault::new(ErrorKind::DerefOpen, offset + span.len(), Span::empty(span.end));
            return Err(Stop::new(Errno::INVAL, fault));
        };
        Ok(self.fetch(Span::new(span.start, span.start + close), offset, depth + 1))
    }

    /// `(STRUCT[,MEMBER])FETCH->FIELD` (`handle_typecast()`)
    fn cast(&self, span: Span, offset: usize, depth: usize) -> Result<FetchKind, Stop> {
        let refused = |kind, offset, span| Err(Stop::new(Errno::INVAL, Fault::new(kind, offset, span)));
        let text = span.of(self.word);
        let end = Span::empty(span.end);
        let Some(close) = text.iter().position(|byte| *byte == b')') else {
            return refused(ErrorKind::DerefOpen, offset + text.len(), end);
        };
        let ty = Span::new(span.start + 1, span.start + close);
        let (rest, offset) = (Span::new(ty.end + 1, span.end), offset + close + 1);
        let text = rest.of(self.word);
        let arrow_at = |at| ctype::rest(text, at).starts_with(b"->");
        let nests = matches!(text, [b'+' | b'-', ..]) || self.this_cpu(text).is_some();
        let enclosed = text.first() == Some(&b'(');
        // Where the address ends, and the arrow begins.
        let (inner_end, arrow) = if enclosed {
            let Some(close) = closing(text) else { return refused(ErrorKind::DerefOpen, offset, end) };
            (close, close + 1)
        } else if nests {
            let Some(open) = text.iter().skip(1).position(|byte| *byte == b'(') else {
                return refused(ErrorKind::DerefNeedsBrace, offset, rest);
            };
            let Some(close) = closing(ctype::rest(text, open + 1)) else {
                return refused(ErrorKind::DerefOpen, offset + text.len(), end);
            };
            (open + 1 + close + 1, open + 1 + close + 1)
        } else {
            let sign = text.iter().position(|byte| matches!(byte, b'+' | b'-'));
            let digit = sign.and_then(|sign| text.get(sign + 1)).is_some_and(u8::is_ascii_digit);
            if text.first() == Some(&b'@') && digit {
                return refused(ErrorKind::CastSymbolOffset, offset, rest);
            }
            let hyphen = text.iter().position(|byte| *byte == b'-').filter(|hyphen| arrow_at(*hyphen));
            (hyphen.unwrap_or(text.len()), hyphen.unwrap_or(text.len()))
        };
        if !arrow_at(arrow) {
            return refused(ErrorKind::CastNeedsField, offset + arrow, Span::empty(rest.start + arrow));
        }
        let skipped = usize::from(enclosed);
        let inner = Span::new(rest.start + skipped, rest.start + inner_end);
        let comma = ty.of(self.word).iter().position(|byte| *byte == b',').map(|comma| ty.start + comma);
        let member = comma.map(|comma| Path::members(self.word, Span::new(comma + 1, ty.end)));
        Ok(FetchKind::Cast(Box::new(Cast {
            structure: Span::new(ty.start, comma.unwrap_or(ty.end)).of(self.word).to_vec(),
            member,
            inner: self.fetch(inner, offset + skipped, depth + 1),
            enclosed,
            path: Path::members(self.word, Span::new(rest.start + arrow + 2, span.end)),
        })))
    }

    /// Whether a variable is the return value. Since 6.5 every name that starts with `retval` is.
    fn is_retval(&self, name: &[u8]) -> bool {
        let later = self.language.has(Feature::LaterErrors);
        self.at != At::Event && if later { name.starts_with(b"retval") } else { name == b"retval" }
    }

    fn deref(&self, span: Span, offset: usize, depth: usize) -> Result<FetchKind, Stop> {
        let text = span.of(self.word);
        let user = text.get(1) == Some(&b'u');
        // Start of the offset, without a plus sign, which the kernel skips.
        let digits = span.start + usize::from(user) + usize::from(text.first() == Some(&b'+'));
        let minus = text.first() == Some(&b'-');
        let refused = |errno, kind, offset, span| Err(Stop::new(errno, Fault::new(kind, offset, span)));
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
        let inner = self.enclosed(Span::new(number.end + 1, span.end), believed, depth)?;
        Ok(FetchKind::Deref { user, offset: value, inner: Box::new(inner) })
    }
}

/// Whether a name can begin with the byte.
fn is_letter(byte: u8) -> bool {
    is_alpha(byte) || byte == b'_'
}

/// The parenthesis that closes the one at the start of a text.
fn closing(text: &[u8]) -> Option<usize> {
    let mut open = 0_usize;
    text.iter().position(|byte| {
        match byte {
            b'(' => open += 1,
            b')' => open = open.saturating_sub(1),
            _ => {}
        }
        *byte == b')' && open == 0
    })
}

/// `text` is the part of `span` after the opening quote.
fn quoted(text: &[u8], span: Span, offset: usize) -> Result<FetchKind, Stop> {
    let open = Fault::new(ErrorKind::TextOpen, offset + 2 + text.len(), Span::empty(span.end));
    let text = text.strip_suffix(b"\"").ok_or_else(|| Stop::new(Errno::INVAL, open))?;
    Ok(FetchKind::Text(text.to_vec()))
}

/// `str_to_immediate()`
fn immediate(text: &[u8]) -> Result<u64, Errno> {
    match text {
        [b'0'..=b'9', ..] => number::read_unsigned(text, 0),
        [b'-', ..] => number::read_signed(text).map(i64::cast_unsigned),
        [b'+', digits @ ..] => number::read_signed(digits).map(i64::cast_unsigned),
        _ => Err(Errno::INVAL),
    }
}
