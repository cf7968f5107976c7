//! Tokens of a filter.

use std::fmt;

use super::super::Span;

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Kind of the token.
    pub kind: TokenKind,
    /// Place of the token.
    pub span: Span,
}

/// Kinds of token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// `(`
    Open,
    /// `)`
    Close,
    /// `!` before a term
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
    /// The value after the operator.
    Value(ValueKind),
    /// An incomplete value. It is the last token, and the error gives the reason.
    Broken(ValueKind),
}

/// An operator of a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `~`, text that matches a glob pattern
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

/// The form of a value, which the kernel determines from its first bytes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// A number.
    Number,
    /// Text in quotes of this kind (`'` or `"`).
    Text(u8),
    /// `CPUS{...}`
    Cpus,
    /// An address or a symbol after a `.function` field.
    Symbol,
    /// The functions of the event `ftrace:function`, with their quote byte, or 0 without quotes.
    Functions(u8),
}

impl Op {
    /// All operators, in the order in which the kernel tries them.
    pub const ALL: [Self; 8] =
        [Self::Glob, Self::Ne, Self::Eq, Self::Le, Self::Lt, Self::Ge, Self::Gt, Self::And];

    /// The text of the operator.
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
