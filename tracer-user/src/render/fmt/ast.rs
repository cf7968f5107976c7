//! The syntax tree of a print fmt: a format string and C expressions as written, without name resolution.

use super::ctype::CType;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrintFmt {
    /// The format string, with adjacent constants joined.
    pub format: Vec<u8>,
    pub args: Vec<Expr>,
}

/// A C expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// An integer or character constant.
    Number(u64, CType),
    /// A string constant.
    Text(Vec<u8>),
    /// A name: an enum constant, a kernel variable, or a local.
    Name(String),
    /// `REC->name`
    Field(String),
    /// `base.name`, or `base->name` when `arrow`.
    Member { base: Box<Expr>, name: String, arrow: bool },
    /// `base[index]`
    Index(Box<Expr>, Box<Expr>),
    /// `-x`, `+x`, `~x`, `!x`, `*x`, `&x`
    Unary(Unary, Box<Expr>),
    /// `a op b`
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `c ? a : b`; GNU's `c ?: b` has no second operand.
    Cond(Box<Expr>, Option<Box<Expr>>, Box<Expr>),
    /// `(type)x`
    Cast(TypeName, Box<Expr>),
    /// `sizeof(type)`
    SizeofType(TypeName),
    /// `sizeof(x)`
    Sizeof(Box<Expr>),
    /// `name(args)`; an argument may be a braced list.
    Call(String, Vec<Expr>),
    /// `{a, b}`, inside a call or an initializer.
    Braces(Vec<Expr>),
    /// `a, b` in parentheses.
    Comma(Box<Expr>, Box<Expr>),
    /// `({ ...; x; })`
    Block(Vec<Stmt>),
}

/// A statement of a GNU statement expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stmt {
    /// A local, with its value if it has one.
    Declare {
        /// Type, without the brackets of an array.
        ty: TypeName,
        name: String,
        /// Whether brackets follow the name.
        array: bool,
        value: Option<Expr>,
    },
    /// `place = value;`
    Assign(Expr, Expr),
    /// `x;`
    Expr(Expr),
}

/// A type as written, without qualifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeName {
    /// `unsigned long`, `u8`, `page` of `struct page`.
    pub base: String,
    /// Whether `struct` or `union` precedes it.
    pub aggregate: bool,
    /// Whether `enum` precedes it.
    pub enumeration: bool,
    /// Number of stars.
    pub stars: usize,
}

/// `-`, `+`, `~`, `!`, `*`, `&` with one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    Neg,
    Plus,
    Invert,
    Not,
    Deref,
    Address,
}

/// Operators with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Mul,
    Div,
    Rem,
    Add,
    Sub,
    Shl,
    Shr,
    Lt,
    Gt,
    Le,
    Ge,
    Eq,
    Ne,
    BitAnd,
    BitXor,
    BitOr,
    And,
    Or,
}

impl Binary {
    /// The operator for a punctuator, and its binding strength.
    pub(super) fn of(punct: &str) -> Option<(Self, u8)> {
        Some(match punct {
            "*" => (Self::Mul, 10),
            "/" => (Self::Div, 10),
            "%" => (Self::Rem, 10),
            "+" => (Self::Add, 9),
            "-" => (Self::Sub, 9),
            "<<" => (Self::Shl, 8),
            ">>" => (Self::Shr, 8),
            "<" => (Self::Lt, 7),
            ">" => (Self::Gt, 7),
            "<=" => (Self::Le, 7),
            ">=" => (Self::Ge, 7),
            "==" => (Self::Eq, 6),
            "!=" => (Self::Ne, 6),
            "&" => (Self::BitAnd, 5),
            "^" => (Self::BitXor, 4),
            "|" => (Self::BitOr, 3),
            "&&" => (Self::And, 2),
            "||" => (Self::Or, 1),
            _ => return None,
        })
    }
}
