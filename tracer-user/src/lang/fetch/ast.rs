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
    /// `$current`, and the members accessed through it.
    Current(Path),
    /// A field of the probed event, by its name alone.
    Field(Vec<u8>),
    /// `this_cpu_ptr(FETCH)`
    ThisCpu {
        /// Whether it is `this_cpu_read(FETCH)`, the word there.
        read: bool,
        /// The address of the first CPU's variable.
        inner: Box<Fetch>,
    },
    /// `(STRUCT[,MEMBER])FETCH->FIELD`
    Cast(Box<Cast>),
    /// `\NUMBER`
    Immediate(u64),
    /// `\"TEXT"`
    Text(Vec<u8>),
    /// A syntax error.
    Broken(Stop),
}

/// A part of the structure that an address points into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cast {
    /// Name of the structure.
    pub structure: Vec<u8>,
    /// The member that the address is of. Without one it is of the structure.
    pub member: Option<Path>,
    /// The address.
    pub inner: Fetch,
    /// Whether the address is in parentheses.
    pub enclosed: bool,
    /// The accessed members.
    pub path: Path,
}

/// A member path: `NAME`, `NAME->FIELD.FIELD` and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The first name; for a return value and the current task it includes the `$`. Empty for members of a given
    /// structure.
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
            FetchKind::Deref { inner, .. } | FetchKind::ThisCpu { inner, .. } => inner.forget_places(),
            FetchKind::Named(path) | FetchKind::Retval(path) | FetchKind::Current(path) => {
                path.forget_places();
            }
            FetchKind::Cast(cast) => {
                cast.inner.forget_places();
                cast.path.forget_places();
                if let Some(member) = &mut cast.member {
                    member.forget_places();
                }
            }
            _ => {}
        }
    }
}

#[cfg(any(test, feature = "internals"))]
impl Path {
    fn forget_places(&mut self) {
        self.steps.iter_mut().for_each(|step| step.span = Span::default());
        self.hyphen = self.hyphen.map(|_| 0);
    }
}

impl Path {
    /// Reads a name and the members after it.
    pub(super) fn read(word: &[u8], span: Span) -> Self {
        Self::continued(word, span, None)
    }

    /// Reads members of a structure whose address is known.
    pub(super) fn members(word: &[u8], span: Span) -> Self {
        Self::continued(word, span, Some(true))
    }

    /// `arrow` is whether an arrow or a dot precedes the text, or `None` if it begins with the root.
    fn continued(word: &[u8], span: Span, mut arrow: Option<bool>) -> Self {
        let mut path = Self { root: Vec::new(), steps: Vec::new(), hyphen: None };
        let mut at = span.start;
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
            FetchKind::Retval(path) | FetchKind::Named(path) | FetchKind::Current(path) => {
                write!(f, "{path}")
            }
            FetchKind::Field(name) => f.write_str(&latin1(name)),
            FetchKind::ThisCpu { read, inner } => {
                write!(f, "this_cpu_{}({inner})", if *read { "read" } else { "ptr" })
            }
            FetchKind::Cast(cast) => write!(f, "{cast}"),
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

impl Display for Cast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}", latin1(&self.structure))?;
        if let Some(member) = &self.member {
            write!(f, ",{member}")?;
        }
        let inner = &self.inner;
        if self.enclosed {
            write!(f, ")({inner})->{}", self.path)
        } else {
            write!(f, "){inner}->{}", self.path)
        }
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&latin1(&self.root))?;
        for (at, step) in self.steps.iter().enumerate() {
            let is_first = at == 0 && self.root.is_empty();
            let sign = if step.arrow { "->" } else { "." };
            write!(f, "{}{}", if is_first { "" } else { sign }, latin1(&step.name))?;
        }
        Ok(())
    }
}
