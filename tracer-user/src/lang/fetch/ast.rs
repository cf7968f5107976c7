//! Syntax tree of a fetch argument.
//!
//! The tree prints as a text that parses to the same tree.

use std::fmt::{self, Display};

use super::super::{Span, ctype};
use super::error::Stop;
use crate::event::dynamic::latin1;

/// `[NAME=]FETCH[:TYPE]`
#[cfg(any(test, feature = "internals"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The name, if written.
    pub name: Option<Vec<u8>>,
    /// The fetched value.
    pub fetch: Fetch,
    /// The type, if written.
    pub ty: Option<TypeSpec>,
}

/// The origin of a value, and its place in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Kind of the origin.
    pub kind: FetchKind,
    /// Place in the word.
    pub span: Span,
    /// Offset that the kernel uses for its carets.
    pub offset: usize,
}

/// Kinds of origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchKind {
    /// `$NAME`
    Variable(Vec<u8>),
    /// `$retval`, and the members accessed through it.
    Retval(Path),
    /// An argument of the function or tracepoint, by name.
    Named(Path),
    /// `%NAME`
    Register(Vec<u8>),
    /// `@ADDRESS`
    Memory(u64),
    /// `@+OFFSET`
    File(i64),
    /// `@SYMBOL[+|-OFFSET]`, as one text. The registration of the definition splits it.
    Symbol(Vec<u8>),
    /// `+|-[u]OFFSET(FETCH)`
    Deref {
        /// Whether the memory is in user space.
        user: bool,
        /// Offset from the address in bytes.
        offset: i64,
        /// The address.
        inner: Box<Fetch>,
    },
    /// `\NUMBER`
    Immediate(u64),
    /// `\"TEXT"`
    Text(Vec<u8>),
    /// A syntax error.
    Broken(Stop),
}

/// A member path: `NAME`, `NAME->FIELD.FIELD` and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The first name; for a return value it includes the `$`.
    pub root: Vec<u8>,
    /// The member accesses after the root.
    pub steps: Vec<Step>,
    /// Place of a hyphen that is not part of an arrow. The parser ignores the text after it.
    pub hyphen: Option<usize>,
}

/// `->FIELD` or `.FIELD`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whether the step dereferences a pointer.
    pub arrow: bool,
    /// Name of the field.
    pub name: Vec<u8>,
    /// Place of the name in the word.
    pub span: Span,
}

/// `NAME` or `NAME[COUNT]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeSpec {
    /// Name of the type, or `bWIDTH@OFFSET/CONTAINER`.
    pub name: Vec<u8>,
    /// Number of array elements; 0 if the type is not an array.
    pub count: u32,
    /// Place in the word.
    pub span: Span,
}

#[cfg(any(test, feature = "internals"))]
impl Argument {
    /// Returns the text that [`Display`] prints, as the bytes that the kernel reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        crate::event::dynamic::raw(&self.to_string())
    }

    /// Sets every place to zero, to compare trees of different texts.
    #[must_use]
    pub fn without_places(mut self) -> Self {
        self.fetch.forget_places();
        if let Some(ty) = &mut self.ty {
            ty.span = Span::default();
        }
        self
    }
}

impl Fetch {
    #[cfg(any(test, feature = "internals"))]
    fn forget_places(&mut self) {
        self.span = Span::default();
        self.offset = 0;
        match &mut self.kind {
            FetchKind::Deref { inner, .. } => inner.forget_places(),
            FetchKind::Named(path) | FetchKind::Retval(path) => {
                path.steps.iter_mut().for_each(|step| step.span = Span::default());
                path.hyphen = path.hyphen.map(|_| 0);
            }
            _ => {}
        }
    }
}

impl Path {
    pub(super) fn read(word: &[u8], span: Span) -> Self {
        let mut path = Self { root: Vec::new(), steps: Vec::new(), hyphen: None };
        let mut at = span.start;
        let mut arrow = None;
        loop {
            let text = Span::new(at, span.end).of(word);
            let end = text.iter().position(|byte| matches!(byte, b'.' | b'-'));
            let here = Span::new(at, end.map_or(span.end, |end| at + end));
            let sign = end.map_or(&b""[..], |end| ctype::rest(text, end));
            let is_arrow = sign.starts_with(b"->");
            let lone = !is_arrow && sign.first() == Some(&b'-');
            let name = if lone { text } else { here.of(word) }.to_vec();
            match arrow {
                None => path.root = name,
                Some(arrow) => path.steps.push(Step { arrow, name, span: here }),
            }
            let Some(end) = end else { return path };
            if lone {
                path.hyphen = Some(at + end);
                return path;
            }
            at += end + 1 + usize::from(is_arrow);
            arrow = Some(is_arrow);
        }
    }
}

#[cfg(any(test, feature = "internals"))]
impl Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{}=", latin1(name))?;
        }
        write!(f, "{}", self.fetch)?;
        match &self.ty {
            None => Ok(()),
            Some(TypeSpec { name, count: 0, .. }) => write!(f, ":{}", latin1(name)),
            Some(TypeSpec { name, count, .. }) => write!(f, ":{}[{count}]", latin1(name)),
        }
    }
}

impl Display for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            FetchKind::Variable(name) => write!(f, "${}", latin1(name)),
            FetchKind::Retval(path) | FetchKind::Named(path) => write!(f, "{path}"),
            FetchKind::Register(name) => write!(f, "%{}", latin1(name)),
            FetchKind::Memory(address) => write!(f, "@{address:#x}"),
            FetchKind::File(offset) => write!(f, "@+{offset}"),
            FetchKind::Symbol(symbol) => write!(f, "@{}", latin1(symbol)),
            FetchKind::Deref { user, offset, inner } => {
                let sign = if *offset < 0 { '-' } else { '+' };
                let user = if *user { "u" } else { "" };
                write!(f, "{sign}{user}{}({inner})", offset.unsigned_abs())
            }
            FetchKind::Immediate(value) => write!(f, "\\{}", *value as i64),
            FetchKind::Text(text) => write!(f, "\\\"{}\"", latin1(text)),
            FetchKind::Broken(_) => f.write_str("?"),
        }
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&latin1(&self.root))?;
        for step in &self.steps {
            write!(f, "{}{}", if step.arrow { "->" } else { "." }, latin1(&step.name))?;
        }
        Ok(())
    }
}
