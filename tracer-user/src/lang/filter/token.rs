//! Tokens of a filter.

use std::fmt;

use super::super::Span;

/// One token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: TokenKind,
    /// Where it stands.
    pub span: Span,
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// `(`
    Open,
    /// `)`
    Close,
    /// `!` in front of a term
    Not,
    /// `&&`
    And,
    /// `||`
    Or,
    /// A field's name.
    Field,
    /// `.ustring`
    UserText,
    /// `.function`
    Function,
    /// An operator.
    Op(Op),
    /// What stands behind the operator.
    Value(ValueKind),
    /// A value that the lexer could not read to its end; the last token, and the error says why.
    Broken(ValueKind),
}

/// An operator of a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `~`, text that looks like a pattern
    Glob,
    /// `!=`
    Ne,
    /// `==`
    Eq,
    /// `<=`
    Le,
    /// `<`
    Lt,
    /// `>=`
    Ge,
    /// `>`
    Gt,
    /// `&`, bits in common
    And,
}

/// The form of a value, which the kernel tells by its first bytes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// A number.
    Number,
    /// Text in quotes of this kind (`'` or `"`).
    Text(u8),
    /// `CPUS{...}`
    Cpus,
    /// An address or a symbol behind a `.function` field.
    Symbol,
    /// The functions of the event `ftrace:function`, quoted by this byte or (0) not at all.
    Functions(u8),
}

impl Op {
    /// All, in the order in which the kernel tries them.
    pub const ALL: [Self; 8] =
        [Self::Glob, Self::Ne, Self::Eq, Self::Le, Self::Lt, Self::Ge, Self::Gt, Self::And];

    /// How it is written.
    pub fn text(self) -> &'static str {
        match self {
            Self::Glob => "~",
            Self::Ne => "!=",
            Self::Eq => "==",
            Self::Le => "<=",
            Self::Lt => "<",
            Self::Ge => ">=",
            Self::Gt => ">",
            Self::And => "&",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl TokenKind {
    /// A word for it, as `explain` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Close => "close",
            Self::Not => "not",
            Self::And => "and",
            Self::Or => "or",
            Self::Field => "field",
            Self::UserText => "user text",
            Self::Function => "function",
            Self::Op(_) => "operator",
            Self::Value(kind) => kind.name(),
            Self::Broken(_) => "broken value",
        }
    }
}

impl ValueKind {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Text(_) => "text",
            Self::Cpus => "CPUs",
            Self::Symbol => "symbol",
            Self::Functions(_) => "functions",
        }
    }
}
