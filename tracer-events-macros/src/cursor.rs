//! A cursor over tokens, and errors with their spans.

use proc_macro::{Delimiter, Group, Ident, Literal, Span, TokenStream, TokenTree};

use crate::fill::fill;

/// An error message and its span.
#[derive(Debug)]
pub(crate) struct Error {
    span: Span,
    message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into() }
    }

    /// Tokens that make the compiler report the error.
    pub(crate) fn into_tokens(self) -> TokenStream {
        let mut message = Literal::string(&self.message);
        message.set_span(self.span);
        let tokens =
            fill("::core::compile_error! { MESSAGE }", &[("MESSAGE", TokenTree::from(message).into())]);
        let spanned = tokens.into_iter().map(|mut tree| {
            tree.set_span(self.span);
            tree
        });
        spanned.collect()
    }
}

/// Tokens, read one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    trees: Vec<TokenTree>,
    at: usize,
    /// The span for errors at the end.
    end: Span,
}

impl Cursor {
    pub(crate) fn new(tokens: TokenStream, end: Span) -> Self {
        Self { trees: tokens.into_iter().collect(), at: 0, end }
    }

    pub(crate) fn of_group(group: &Group) -> Self {
        Self::new(group.stream(), group.span_close())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.trees.len()
    }

    pub(crate) fn peek(&self) -> Option<&TokenTree> {
        self.trees.get(self.at)
    }

    fn peek_second(&self) -> Option<&TokenTree> {
        self.trees.get(self.at + 1)
    }

    pub(crate) fn next(&mut self) -> Option<TokenTree> {
        let tree = self.trees.get(self.at).cloned();
        self.at += usize::from(tree.is_some());
        tree
    }

    pub(crate) fn span(&self) -> Span {
        self.peek().map_or(self.end, TokenTree::span)
    }

    pub(crate) fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Error::new(self.span(), message))
    }

    pub(crate) fn is_punct(&self, wanted: char) -> bool {
        matches!(self.peek(), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
    }

    /// Whether these two characters are next and adjacent.
    pub(crate) fn is_pair(&self, first: char, second: char) -> bool {
        matches!(
            (self.peek(), self.peek_second()),
            (Some(TokenTree::Punct(a)), Some(TokenTree::Punct(b)))
                if a.as_char() == first && b.as_char() == second && a.spacing() == proc_macro::Spacing::Joint
        )
    }

    pub(crate) fn is_word(&self, wanted: &str) -> bool {
        matches!(self.peek(), Some(TokenTree::Ident(ident)) if ident.to_string() == wanted)
    }

    pub(crate) fn take_punct(&mut self, wanted: char) -> bool {
        let is = self.is_punct(wanted);
        self.at += usize::from(is);
        is
    }

    pub(crate) fn take_word(&mut self, wanted: &str) -> bool {
        let is = self.is_word(wanted);
        self.at += usize::from(is);
        is
    }

    pub(crate) fn punct(&mut self, wanted: char) -> Result<()> {
        if self.take_punct(wanted) { Ok(()) } else { self.fail(format!("`{wanted}` is expected here")) }
    }

    pub(crate) fn word(&mut self, wanted: &str) -> Result<()> {
        if self.take_word(wanted) { Ok(()) } else { self.fail(format!("`{wanted}` is expected here")) }
    }

    pub(crate) fn ident(&mut self, what: &str) -> Result<Ident> {
        match self.peek() {
            Some(TokenTree::Ident(ident)) => {
                let ident = ident.clone();
                self.at += 1;
                Ok(ident)
            }
            _ => self.fail(format!("{what} is expected here")),
        }
    }

    pub(crate) fn group(&mut self, delimiter: Delimiter, what: &str) -> Result<Group> {
        match self.peek() {
            Some(TokenTree::Group(group)) if group.delimiter() == delimiter => {
                let group = group.clone();
                self.at += 1;
                Ok(group)
            }
            _ => self.fail(format!("{what} is expected here")),
        }
    }

    /// A plain string literal: its text and its span.
    pub(crate) fn text(&mut self, what: &str) -> Result<(String, Span)> {
        // A literal that a `macro_rules!` passes on may be in a group without delimiters.
        let found = match self.peek() {
            Some(TokenTree::Literal(literal)) => Some(literal.clone()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::None => {
                match group.stream().into_iter().next() {
                    Some(TokenTree::Literal(literal)) => Some(literal),
                    _ => None,
                }
            }
            _ => None,
        };
        let read = found.and_then(|literal| Some((unquote(&literal.to_string())?, literal.span())));
        match read {
            Some(read) => {
                self.at += 1;
                Ok(read)
            }
            None => self.fail(format!("{what} is expected here")),
        }
    }

    /// All tokens up to a comma or the end. The comma is consumed but not returned. Commas in angle brackets do not
    /// count.
    pub(crate) fn until_comma(&mut self) -> TokenStream {
        let mut depth = 0_usize;
        let mut taken = Vec::new();
        while let Some(tree) = self.next() {
            if let TokenTree::Punct(punct) = &tree {
                match punct.as_char() {
                    ',' if depth == 0 => break,
                    '<' => depth += 1,
                    '>' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            taken.push(tree);
        }
        taken.into_iter().collect()
    }

    /// Attributes, unchanged.
    pub(crate) fn attributes(&mut self) -> TokenStream {
        let mut taken = Vec::new();
        while self.is_punct('#') {
            taken.extend(self.next());
            taken.extend(self.next());
        }
        taken.into_iter().collect()
    }

    /// A visibility, or nothing.
    pub(crate) fn visibility(&mut self) -> TokenStream {
        let mut taken = Vec::new();
        if self.is_word("pub") {
            taken.extend(self.next());
            if matches!(self.peek(), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis)
                && matches!(self.peek_second(), Some(TokenTree::Ident(_)))
            {
                taken.extend(self.next());
            }
        }
        taken.into_iter().collect()
    }
}

/// The text of a string literal; `None` for other literals.
fn unquote(literal: &str) -> Option<String> {
    if let Some(raw) = literal.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let inner = raw.get(hashes..raw.len().checked_sub(hashes)?)?;
        return Some(inner.strip_prefix('"')?.strip_suffix('"')?.to_owned());
    }
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::new();
    let mut rest = inner.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\\' {
            text.push(c);
            continue;
        }
        match rest.next()? {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            '0' => text.push('\0'),
            'x' => {
                let digits: String = [rest.next()?, rest.next()?].iter().collect();
                text.push(char::from(u8::from_str_radix(&digits, 16).ok()?));
            }
            'u' => {
                let digits: String =
                    rest.by_ref().skip_while(|c| *c == '{').take_while(|c| *c != '}').collect();
                text.push(char::from_u32(u32::from_str_radix(&digits.replace('_', ""), 16).ok()?)?);
            }
            '\n' => while rest.next_if(|c| c.is_whitespace()).is_some() {},
            other => text.push(other),
        }
    }
    Some(text)
}
