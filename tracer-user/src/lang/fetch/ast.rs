//! The tree of a fetch argument. It prints as a text that parses to the same tree.

use std::fmt::{self, Display};

use super::super::{Span, ctype};
use super::error::Stop;
use crate::event::dynamic::latin1;

/// `[NAME=]FETCH[:TYPE]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The name, where one is given.
    pub name: Option<Vec<u8>>,
    /// What is fetched.
    pub fetch: Fetch,
    /// The type, where one is given.
    pub ty: Option<TypeSpec>,
}

/// A value's origin, and where the text says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// What it is.
    pub kind: FetchKind,
    /// Where it stands in the word.
    pub span: Span,
    /// Where the kernel believes it to stand, for its carets.
    pub offset: usize,
}

/// Kinds of origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchKind {
    /// `$NAME`
    Variable(Vec<u8>),
    /// `$retval`, and what is taken of it.
    Retval(Path),
    /// An argument of the function or tracepoint, by its name.
    Named(Path),
    /// `%NAME`
    Register(Vec<u8>),
    /// `@ADDRESS`
    Memory(u64),
    /// `@+OFFSET`
    File(i64),
    /// `@SYMBOL[+|-OFFSET]`, not split: whether it can be shows only when the probe is made.
    Symbol(Vec<u8>),
    /// `+|-[u]OFFSET(FETCH)`
    Deref {
        /// Whether it is memory of user space.
        user: bool,
        /// Bytes from the address.
        offset: i64,
        /// The address.
        inner: Box<Fetch>,
    },
    /// `\NUMBER`
    Immediate(u64),
    /// `\"TEXT"`
    Text(Vec<u8>),
    /// What cannot be read.
    Broken(Stop),
}

/// `NAME`, `NAME->FIELD.FIELD` and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The first name; for a returned value with its `$`.
    pub root: Vec<u8>,
    /// What follows it.
    pub steps: Vec<Step>,
    /// Where a hyphen stands that is no arrow: the text behind it is not looked at.
    pub hyphen: Option<usize>,
}

/// `->FIELD` or `.FIELD`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whether a pointer is followed.
    pub arrow: bool,
    /// The field.
    pub name: Vec<u8>,
    /// Where the name stands in the word.
    pub span: Span,
}

/// `NAME` or `NAME[COUNT]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeSpec {
    /// The type's name, or `bWIDTH@OFFSET/CONTAINER`.
    pub name: Vec<u8>,
    /// Elements of an array; 0 for none.
    pub count: u32,
    /// Where it stands in the word.
    pub span: Span,
}

impl Argument {
    /// The same with every place zero, for comparing trees of different texts.
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
    /// Reads a path that starts at `start` of the word.
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

/// What [`Display`] prints, as the bytes that the kernel takes.
impl Argument {
    /// The argument's text.
    pub fn to_bytes(&self) -> Vec<u8> {
        crate::event::dynamic::raw(&self.to_string())
    }
}

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
