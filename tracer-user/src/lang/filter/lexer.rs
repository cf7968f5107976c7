//! Lexer: splits the text into tokens, like the kernel's second pass (`predicate_parse()` and `parse_pred()`).
//!
//! The meaning of a byte depends on the expected token: after an operator `&` starts a value, after a value a junction.
//! The kernel's syntax also depends on whether the event is `ftrace:function`, which is a parameter here. The resolver
//! checks everything that depends on the fields of the event.

use rustix::io::Errno;

use super::super::{
    Span,
    ctype::{is_alnum, is_space, rest, skip_space},
};
use super::balance::Counts;
use super::dialect::{Dialect, Feature};
use super::error::{ErrorKind, Fault};
use super::token::{Op, Token, TokenKind, ValueKind};
use super::{NUMBER_MAX, TEXT_MAX};

/// The result of the lexer: the tokens before the end or before the first error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lexed {
    /// The tokens.
    pub tokens: Vec<Token>,
    /// The error, if the lexer stopped before the end.
    pub fault: Option<Fault>,
    /// Whether the text ended after a junction, so that [`Feature::LooseEnd`] decides.
    pub loose_end: bool,
}

/// Splits a filter that [`super::balance::check`] has accepted. `function_event` selects the syntax of
/// `ftrace:function`.
pub fn lex(text: &[u8], counts: Counts, dialect: &Dialect, function_event: bool) -> Lexed {
    let mut lexer = Lexer { text, at: 0, tokens: Vec::new(), dialect, function_event, loose_end: false };
    let fault = lexer.expression(counts).err();
    Lexed { tokens: lexer.tokens, fault, loose_end: lexer.loose_end }
}

struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    tokens: Vec<Token>,
    dialect: &'a Dialect,
    function_event: bool,
    loose_end: bool,
}

impl Lexer<'_> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.text.get(at).copied()
    }

    fn push(&mut self, kind: TokenKind, span: Span) {
        self.tokens.push(Token { kind, span });
        self.at = span.end;
    }

    /// Adds the value after an operator, whose end may be invalid.
    fn push_value(&mut self, kind: ValueKind, span: Span, fault: Option<Fault>) -> Result<(), Fault> {
        let token = if fault.is_some() { TokenKind::Broken } else { TokenKind::Value };
        self.push(token(kind), span);
        fault.map_or(Ok(()), Err)
    }

    /// Returns the end of the bytes from `from` on that satisfy `wanted`.
    fn run(&self, from: usize, wanted: impl Fn(u8) -> bool) -> usize {
        self.text.iter().skip(from).position(|byte| !wanted(*byte)).map_or(self.text.len(), |n| from + n)
    }

    fn expression(&mut self, mut counts: Counts) -> Result<(), Fault> {
        if self.dialect.has(Feature::LooseCounts) {
            counts.depth += 2;
            counts.terms += 2;
        }
        let mut depth = 1;
        let mut terms = 0;
        while let Some(byte) = self.byte(self.at) {
            let here = self.at;
            let one = Span::new(here, here + 1);
            match byte {
                _ if is_space(byte) => self.at += 1,
                b'(' if depth >= counts.depth => {
                    return Err(Fault::new(ErrorKind::TooDeep, Errno::INVAL, 0, one));
                }
                b'(' => {
                    depth += 1;
                    self.push(TokenKind::Open, one);
                }
                b'!' if !matches!(self.byte(here + 1), Some(b'=' | b'~')) => self.push(TokenKind::Not, one),
                _ if terms >= counts.terms => {
                    return Err(Fault::new(ErrorKind::Miscounted, Errno::PERM, here, one));
                }
                _ => {
                    self.predicate()?;
                    terms += 1;
                    if self.junction(&mut depth)? {
                        return Ok(());
                    }
                }
            }
        }
        self.loose_end(terms, depth)
    }

    /// Handles a text that ends where a term is expected: after a junction, or after only `!`.
    fn loose_end(&mut self, terms: usize, depth: usize) -> Result<(), Fault> {
        let end = Span::empty(self.text.len());
        let fault = |kind, errno, position| Err(Fault::new(kind, errno, position, end));
        if terms == 0 {
            return fault(ErrorKind::NoFilter, Errno::INVAL, end.start);
        }
        self.loose_end = true;
        if !self.dialect.has(Feature::LooseEnd) {
            return fault(ErrorKind::InvalidFilter, Errno::INVAL, end.start);
        }
        if depth > 1 {
            return fault(ErrorKind::TooManyOpen, Errno::PERM, end.start);
        }
        let mut nested = 0;
        let mut either = false;
        for token in &self.tokens {
            match token.kind {
                TokenKind::Open => nested += 1,
                TokenKind::Close => nested -= 1,
                TokenKind::Or => either |= nested == 0,
                _ => {}
            }
        }
        let last = self.tokens.iter().rfind(|token| matches!(token.kind, TokenKind::And | TokenKind::Or));
        if either && last.is_some_and(|token| token.kind == TokenKind::And) {
            return fault(ErrorKind::LooseBranch, Errno::INVAL, 0);
        }
        Ok(())
    }

    /// Reads the closing parentheses after a predicate, then `&&` or `||`. Returns true at the end of the text.
    fn junction(&mut self, depth: &mut usize) -> Result<bool, Fault> {
        loop {
            let here = self.at;
            let one = Span::new(here, here + 1);
            let refused = |kind, position, span| Err(Fault::new(kind, Errno::PERM, position, span));
            match self.byte(here) {
                None if *depth > 1 => return refused(ErrorKind::TooManyOpen, here + 1, Span::empty(here)),
                None => return Ok(true),
                Some(byte) if is_space(byte) => self.at += 1,
                Some(b')') if *depth == 1 => return refused(ErrorKind::TooManyClose, here + 1, one),
                Some(b')') => {
                    *depth -= 1;
                    self.push(TokenKind::Close, one);
                }
                Some(byte @ (b'&' | b'|')) if self.byte(here + 1) == Some(byte) => {
                    let kind = if byte == b'&' { TokenKind::And } else { TokenKind::Or };
                    self.push(kind, Span::new(here, here + 2));
                    return Ok(false);
                }
                Some(_) => return refused(ErrorKind::TooManyTerms, here, one),
            }
        }
    }

    fn predicate(&mut self) -> Result<(), Fault> {
        let start = self.at;
        let end = self.run(start, |byte| is_alnum(byte) || byte == b'_');
        if end == start {
            let span = Span::new(start, start + 1);
            return Err(Fault::new(ErrorKind::NoField, Errno::PERM, 0, span));
        }
        self.push(TokenKind::Field, Span::new(start, end));
        self.suffix(".ustring", Feature::UserText, TokenKind::UserText);
        let function = self.suffix(".function", Feature::Function, TokenKind::Function);
        let at = skip_space(self.text, self.at);
        let rest = rest(self.text, at);
        let Some(op) = Op::ALL.into_iter().find(|op| rest.starts_with(op.text().as_bytes())) else {
            return Err(Fault::at(ErrorKind::InvalidOp, at, Span::new(at, self.text.len().min(at + 1))));
        };
        self.push(TokenKind::Op(op), Span::new(at, at + op.text().len()));
        self.at = skip_space(self.text, self.at);
        if function { self.symbol() } else { self.value() }
    }

    fn suffix(&mut self, text: &str, feature: Feature, kind: TokenKind) -> bool {
        let found = self.dialect.has(feature) && rest(self.text, self.at).starts_with(text.as_bytes());
        if found {
            self.push(kind, Span::new(self.at, self.at + text.len()));
        }
        found
    }

    /// Reads the value after `.function`: a number, or all bytes before white space, including a closing parenthesis.
    fn symbol(&mut self) -> Result<(), Fault> {
        let start = self.at;
        if self.byte(start).is_some_and(|byte| byte.is_ascii_digit()) {
            let end = self.run(start, is_alnum);
            return self.number(ValueKind::Symbol, start, end);
        }
        let end = self.run(start, |byte| !is_space(byte));
        self.push_value(ValueKind::Symbol, Span::new(start, end), None)
    }

    fn value(&mut self) -> Result<(), Fault> {
        let start = self.at;
        if self.function_event {
            return self.functions(start);
        }
        if self.dialect.has(Feature::CpuSets) && rest(self.text, start).starts_with(b"CPUS") {
            return self.cpus(start);
        }
        match self.byte(start) {
            Some(quote @ (b'\'' | b'"')) => self.quoted(quote, start),
            Some(byte) if byte == b'-' || byte.is_ascii_digit() => {
                let end = self.run(start + usize::from(byte == b'-'), is_alnum);
                self.number(ValueKind::Number, start, end)
            }
            _ => {
                let span = Span::new(start, self.text.len().min(start + 1));
                Err(Fault::at(ErrorKind::InvalidValue, start, span))
            }
        }
    }

    fn number(&mut self, kind: ValueKind, start: usize, end: usize) -> Result<(), Fault> {
        let span = Span::new(start, end);
        let is_long = span.len() >= NUMBER_MAX;
        self.push_value(kind, span, is_long.then(|| Fault::at(ErrorKind::OperandTooLong, end, span)))
    }

    fn quoted(&mut self, quote: u8, start: usize) -> Result<(), Fault> {
        let close = self.run(start + 1, |byte| byte != quote);
        let span = Span::new(start, self.text.len().min(close + 1));
        let fault = if close == self.text.len() {
            Some(ErrorKind::MissingQuote)
        } else {
            (close - (start + 1) >= TEXT_MAX).then_some(ErrorKind::OperandTooLong)
        };
        self.push_value(ValueKind::Text(quote), span, fault.map(|kind| Fault::at(kind, close, span)))
    }

    fn cpus(&mut self, start: usize) -> Result<(), Fault> {
        let open = start + "CPUS".len();
        if self.byte(open) != Some(b'{') {
            let fault = Fault::at(ErrorKind::MissingBraceOpen, open + 1, Span::empty(open));
            return self.push_value(ValueKind::Cpus, Span::new(start, open), Some(fault));
        }
        let close = self.run(open + 1, |byte| byte != b'}');
        let span = Span::new(start, self.text.len().min(close + 1));
        let fault = if close == self.text.len() {
            Some(Fault::at(ErrorKind::MissingBraceClose, close, Span::empty(close)))
        } else {
            (close == open + 1).then(|| Fault::at(ErrorKind::InvalidCpulist, close, span))
        };
        self.push_value(ValueKind::Cpus, span, fault)
    }

    /// Reads the functions of `ftrace:function`: all bytes before a junction or parenthesis, or a quoted text. The
    /// kernel does not skip the closing quote, so it rejects a quoted list at that byte.
    fn functions(&mut self, start: usize) -> Result<(), Fault> {
        let quote = self.byte(start).filter(|byte| matches!(byte, b'\'' | b'"'));
        let end = self.run((start + 1).min(self.text.len()), |byte| match quote {
            Some(quote) => byte != quote,
            None => !matches!(byte, b')' | b'&' | b'|'),
        });
        let span = Span::new(start, end);
        let is_long = span.len() - usize::from(quote.is_some()) >= TEXT_MAX;
        let fault = is_long.then(|| Fault::at(ErrorKind::OperandTooLong, end, span));
        self.push_value(ValueKind::Functions(quote.unwrap_or(0)), span, fault)
    }
}
