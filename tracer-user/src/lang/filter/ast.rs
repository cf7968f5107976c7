//! Syntax tree of a filter, with spans.
//!
//! The tree keeps parentheses and every `!` of the text. It prints as a text that parses to the same tree.

use std::fmt;

use super::super::Span;
use super::token::{Op, ValueKind};

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// One comparison.
    Predicate(Predicate),
    /// A negated expression.
    Not(Box<Expr>),
    /// An expression in parentheses.
    Group(Box<Expr>),
    /// Two or more expressions joined by `&&`.
    And(Vec<Expr>),
    /// Two or more expressions joined by `||`.
    Or(Vec<Expr>),
}

/// `field op value`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predicate {
    /// The field.
    pub field: Name,
    /// Whether the field has the suffix `.ustring`.
    pub user: bool,
    /// Whether the field has the suffix `.function`.
    pub function: bool,
    /// The operator.
    pub op: Op,
    /// Place of the operator.
    pub op_span: Span,
    /// The value on the right side.
    pub value: Value,
}

/// Name of a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// The name, in Latin-1.
    pub text: Vec<u8>,
    /// Place of the name.
    pub span: Span,
}

/// The value of a comparison, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Form of the value.
    pub kind: ValueKind,
    /// The text without quotes or `CPUS{}`.
    pub text: Vec<u8>,
    /// Place of the value, with quotes and braces.
    pub span: Span,
}

impl Expr {
    /// Prints the expression as a filter. The result keeps the bytes of the text, so it may not be UTF-8.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut printer = Printer { out: Vec::new(), open_ended: false, keeps_space: false };
        printer.expr(self);
        printer.out
    }

    /// Returns a copy with all spans reset, to compare trees of texts with different spacing.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn without_spans(&self) -> Self {
        match self {
            Self::Predicate(predicate) => {
                let mut predicate = predicate.clone();
                predicate.field.span = Span::default();
                predicate.op_span = Span::default();
                predicate.value.span = Span::default();
                Self::Predicate(predicate)
            }
            Self::Not(inner) => Self::Not(Box::new(inner.without_spans())),
            Self::Group(inner) => Self::Group(Box::new(inner.without_spans())),
            Self::And(parts) => Self::And(parts.iter().map(Self::without_spans).collect()),
            Self::Or(parts) => Self::Or(parts.iter().map(Self::without_spans).collect()),
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.to_bytes()))
    }
}

struct Printer {
    out: Vec<u8>,
    /// The last value ends only at white space, so a space must precede a parenthesis.
    open_ended: bool,
    /// White space after the last value belongs to the value, so none may be added.
    keeps_space: bool,
}

impl Printer {
    fn text(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn expr(&mut self, expr: &Expr) {
        match expr {
            Expr::Predicate(predicate) => self.predicate(predicate),
            Expr::Not(inner) => {
                self.text("!");
                self.expr(inner);
            }
            Expr::Group(inner) => {
                self.text("(");
                self.expr(inner);
                if std::mem::take(&mut self.open_ended) {
                    self.text(" ");
                }
                self.text(")");
                self.keeps_space = false;
            }
            Expr::And(parts) => self.joined(parts, " && "),
            Expr::Or(parts) => self.joined(parts, " || "),
        }
    }

    fn joined(&mut self, parts: &[Expr], junction: &str) {
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.text(if self.keeps_space { junction.trim_start() } else { junction });
            }
            self.expr(part);
        }
    }

    fn predicate(&mut self, predicate: &Predicate) {
        self.out.extend_from_slice(&predicate.field.text);
        if predicate.user {
            self.text(".ustring");
        }
        if predicate.function {
            self.text(".function");
        }
        self.text(" ");
        self.text(predicate.op.text());
        self.text(" ");
        let (before, behind): (&[u8], &[u8]) = match predicate.value.kind {
            ValueKind::Text(ref quote) => (std::slice::from_ref(quote), std::slice::from_ref(quote)),
            ValueKind::Cpus => (b"CPUS{", b"}"),
            ValueKind::Number | ValueKind::Symbol | ValueKind::Functions(_) => (b"", b""),
        };
        for piece in [before, &predicate.value.text, behind] {
            self.out.extend_from_slice(piece);
        }
        self.open_ended = predicate.value.kind == ValueKind::Symbol;
        self.keeps_space = matches!(predicate.value.kind, ValueKind::Functions(_));
    }
}
