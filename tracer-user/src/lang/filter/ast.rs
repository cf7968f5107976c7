//! The tree of a filter: faithful to the text (parentheses and every `!` are kept), with spans, and printable
//! as a text that parses to the same tree.

use std::fmt;

use super::super::Span;
use super::token::{Op, ValueKind};

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// One comparison.
    Predicate(Predicate),
    /// `!` in front of an expression.
    Not(Box<Expr>),
    /// An expression in parentheses.
    Group(Box<Expr>),
    /// Two or more, joined by `&&`.
    And(Vec<Expr>),
    /// Two or more, joined by `||`.
    Or(Vec<Expr>),
}

/// `field op value`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predicate {
    /// The field.
    pub field: Name,
    /// Whether `.ustring` stands behind the field.
    pub user: bool,
    /// Whether `.function` stands behind the field.
    pub function: bool,
    /// The operator.
    pub op: Op,
    /// Where the operator stands.
    pub op_span: Span,
    /// The other side.
    pub value: Value,
}

/// A field's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name. Letters are Latin-1's.
    pub text: Vec<u8>,
    /// Where it stands.
    pub span: Span,
}

/// What a field is compared with, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its form.
    pub kind: ValueKind,
    /// The text without quotes or `CPUS{}`.
    pub text: Vec<u8>,
    /// Where it stands, quotes and braces included.
    pub span: Span,
}

impl Predicate {
    /// Where it stands.
    pub fn span(&self) -> Span {
        self.field.span.to(self.value.span)
    }
}

impl Expr {
    /// The expression as a filter. Not always UTF-8: what was written is kept byte for byte.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut printer = Printer { out: Vec::new(), open_ended: false, keeps_space: false };
        printer.expr(self);
        printer.out
    }

    /// The predicates in the text's order.
    pub fn predicates(&self) -> Vec<&Predicate> {
        let mut found = Vec::new();
        self.visit(&mut |predicate| found.push(predicate));
        found
    }

    fn visit<'a>(&'a self, seen: &mut impl FnMut(&'a Predicate)) {
        match self {
            Self::Predicate(predicate) => seen(predicate),
            Self::Not(inner) | Self::Group(inner) => inner.visit(seen),
            Self::And(parts) | Self::Or(parts) => parts.iter().for_each(|part| part.visit(seen)),
        }
    }

    /// A copy in which nothing stands anywhere: for comparing trees of differently spaced texts.
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
    /// The last value ends only at white space, so that a parenthesis must not touch it.
    open_ended: bool,
    /// The last value takes white space behind it for its own, so that none may be added.
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
