//! Parser of expressions in values, variables and keys: `a+b*$c`, `-(a)`, `100`, `sys.event.$var`, `field.modifier`
//! (the parsing part of `parse_expr()`, which in the kernel also resolves names).
//!
//! Operators are determined first. The last `-` or `+` is the root, else the last `/` or `*`. A leading `-` negates the
//! rest, which must be in parentheses. Other parentheses are invalid, and an expression has at most three operators. An
//! error is a node of the tree, because the kernel reports an unknown name on the left before a missing operand on the
//! right.
//!
//! The kernel parses in place and cuts the text. Later errors, and later uses of a variable's expression, see only the
//! remaining part: [`Expr::left`].

use super::super::Span;
use super::error::ErrorKind;
use super::split::Pieces;

const OPERATORS_MAX: u32 = 3;

/// An expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expr {
    /// Place of the expression.
    pub span: Span,
    /// The part that remains after the kernel has parsed the text in place.
    pub left: Span,
    /// Kind of the expression.
    pub kind: ExprKind,
}

/// Kinds of expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExprKind {
    /// A number, as determined by its first character.
    Number,
    /// A field or a variable.
    Name(Name),
    /// `-(x)`
    Negated(Box<Expr>),
    /// `a+b` and similar.
    Binary(Operator, Box<Expr>, Box<Expr>),
    /// An invalid expression, with the error and its place if the kernel logs one.
    Bad(Option<(ErrorKind, Span)>),
}

/// `[SYSTEM.EVENT.]NAME[.MODIFIER]` or `[SYSTEM.EVENT.]$NAME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// System and event, if the name has two dots.
    pub event: Option<(Span, Span)>,
    /// The text after system and event.
    pub name: Span,
}

/// Operators with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// `+`
    Plus,
    /// `-`
    Minus,
    /// `*`
    Times,
    /// `/`
    Over,
}

impl Operator {
    /// Character of the operator.
    pub fn sign(self) -> char {
        match self {
            Self::Plus => '+',
            Self::Minus => '-',
            Self::Times => '*',
            Self::Over => '/',
        }
    }
}

enum Root {
    None,
    Negated,
    Binary(Operator, usize),
}

pub(super) fn has_operator(text: &[u8]) -> bool {
    !matches!(root(text, Span::new(0, text.len())), Root::None)
}

/// Finds the root of an expression. The offset is the place of the operator.
fn root(text: &[u8], part: Span) -> Root {
    let last = |sign: u8| part.of(text).iter().rposition(|byte| *byte == sign).map(|at| part.start + at);
    let (minus, plus) = (last(b'-'), last(b'+'));
    if minus == Some(part.start) {
        return Root::Negated;
    }
    if let Some(at) = minus.max(plus) {
        return Root::Binary(if plus > minus { Operator::Plus } else { Operator::Minus }, at);
    }
    let (over, times) = (last(b'/'), last(b'*'));
    match over.max(times) {
        Some(at) => Root::Binary(if times > over { Operator::Times } else { Operator::Over }, at),
        None => Root::None,
    }
}

impl Expr {
    /// Parses a part of a text.
    pub fn read(text: &[u8], part: Span) -> Self {
        read(text, part, &mut 0)
    }

    fn bad(span: Span, error: Option<(ErrorKind, Span)>) -> Self {
        Self { span, left: span, kind: ExprKind::Bad(error) }
    }
}

impl Name {
    /// Parses a part of a text without operators. Returns the name and the remaining part.
    pub(super) fn read(text: &[u8], part: Span) -> (Self, Span) {
        let mut pieces = Pieces::of(text, part);
        let first = pieces.up_to(b'.');
        let second = pieces.up_to(b'.');
        match (first, second, pieces.rest()) {
            (Some(system), Some(event), Some(name)) => (Self { event: Some((system, event)), name }, system),
            _ => (Self { event: None, name: part }, part),
        }
    }
}

fn read(text: &[u8], part: Span, operators: &mut u32) -> Expr {
    let too_many = |span| Expr::bad(part, Some((ErrorKind::TooManySubexpressions, span)));
    if *operators > OPERATORS_MAX {
        return too_many(part);
    }
    match root(text, part) {
        Root::None if part.of(text).first().is_some_and(u8::is_ascii_digit) => {
            Expr { span: part, left: part, kind: ExprKind::Number }
        }
        Root::None => {
            let (name, left) = Name::read(text, part);
            Expr { span: part, left, kind: ExprKind::Name(name) }
        }
        Root::Negated => {
            *operators += 1;
            if *operators > OPERATORS_MAX {
                return too_many(part);
            }
            negated(text, part, operators)
        }
        Root::Binary(operator, at) => {
            *operators += 1;
            let (left, right) = (Span::new(part.start, at), Span::new(at + 1, part.end));
            if left.is_empty() || right.is_empty() {
                return Expr::bad(part, None);
            }
            let left = read(text, left, operators);
            let right = read(text, right, operators);
            let rest = left.left;
            Expr { span: part, left: rest, kind: ExprKind::Binary(operator, Box::new(left), Box::new(right)) }
        }
    }
}

/// Parses `-(x)`. The kernel skips the byte after the sign, even if it is not the parenthesis, as long as a parenthesis
/// follows.
fn negated(text: &[u8], part: Span, operators: &mut u32) -> Expr {
    let behind = Span::new(part.start + 1, part.end);
    if !behind.of(text).contains(&b'(') {
        return Expr::bad(part, None);
    }
    let behind = Span::new(behind.start + 1, behind.end);
    let Some(length) = behind.of(text).iter().rposition(|byte| *byte == b')') else {
        return Expr::bad(part, None);
    };
    let close = behind.start + length;
    if close + 1 != part.end {
        return Expr::bad(part, Some((ErrorKind::UnaryMinusSubexpression, behind)));
    }
    let operand = read(text, Span::new(behind.start, close), operators);
    let left = Span::new(part.start, operand.left.end);
    Expr { span: part, left, kind: ExprKind::Negated(Box::new(operand)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints the tree with parentheses, and the remaining text.
    fn shown(text: &str) -> String {
        fn tree(text: &[u8], expr: &Expr) -> String {
            let part = |span: Span| String::from_utf8(span.of(text).to_vec()).unwrap();
            match &expr.kind {
                ExprKind::Number => part(expr.span),
                ExprKind::Name(Name { event: Some((system, event)), name }) => {
                    format!("[{}|{}|{}]", part(*system), part(*event), part(*name))
                }
                ExprKind::Name(name) => part(name.name),
                ExprKind::Negated(operand) => format!("-{}", tree(text, operand)),
                ExprKind::Binary(operator, a, b) => {
                    format!("({}{}{})", tree(text, a), operator.sign(), tree(text, b))
                }
                ExprKind::Bad(None) => "?".to_owned(),
                ExprKind::Bad(Some((kind, span))) => format!("{kind:?}<{}>", part(*span)),
            }
        }
        let expr = Expr::read(text.as_bytes(), Span::new(0, text.len()));
        let left = String::from_utf8(expr.left.of(text.as_bytes()).to_vec()).unwrap();
        format!("{} left {left}", tree(text.as_bytes(), &expr))
    }

    #[test]
    fn trees() {
        assert_eq!(shown("a+b*c"), "(a+(b*c)) left a");
        assert_eq!(shown("64/8/4"), "((64/8)/4) left 64");
        assert_eq!(shown("a-b+c"), "((a-b)+c) left a");
        assert_eq!(shown("a*b/c*d"), "(((a*b)/c)*d) left a");
        assert_eq!(shown("-(a)"), "-a left -(a");
        assert_eq!(shown("-(a+b)"), "-(a+b) left -(a");
        assert_eq!(shown("s.e.$v.x"), "[s|e|$v.x] left s");
        assert_eq!(shown("s.e.$v-1"), "([s|e|$v]-1) left s");
        assert_eq!(shown("a.hex"), "a.hex left a.hex");
    }

    #[test]
    fn broken() {
        assert_eq!(shown("a+"), "? left a+");
        assert_eq!(shown("+a"), "? left +a");
        assert_eq!(shown("-a"), "? left -a");
        assert_eq!(shown("-(a"), "? left -(a");
        assert_eq!(shown("-(a)+b"), "UnaryMinusSubexpression<a)+b> left -(a)+b");
        assert_eq!(shown("-(a)*b"), "UnaryMinusSubexpression<a)*b> left -(a)*b");
        assert!(shown("a+b+c+d").starts_with("(((a+b)+c)+d)"));
        assert!(shown("a+b+c+d+e").starts_with("((((TooManySubexpressions<a>+"));
    }
}
