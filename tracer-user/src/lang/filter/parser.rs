//! Parser from tokens to predicates and to the tree.
//!
//! The lexer has already rejected invalid sequences of tokens, so a complete token list always has a tree. The parser
//! does not use recursion, because parentheses can nest two thousand levels deep.

use super::super::Span;
use super::ast::{Expr, Name, Predicate, Value};
use super::balance;
use super::dialect::Dialect;
use super::error::{Fault, FilterError};
use super::lexer::lex;
use super::token::{Op, Token, TokenKind, ValueKind};

/// A predicate that may be incomplete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// The field.
    pub field: Name,
    /// Whether the field has the suffix `.ustring`.
    pub user: bool,
    /// Whether the field has the suffix `.function`.
    pub function: bool,
    /// The operator.
    pub op: Option<(Op, Span)>,
    /// The value.
    pub value: Option<Value>,
    /// Whether the value has a known form but an invalid end.
    pub broken: bool,
}

/// Returns the predicates of a token list in order. Only the last can be incomplete, and only if the lexer found a
/// fault.
pub fn drafts(text: &[u8], tokens: &[Token]) -> Vec<Draft> {
    let mut drafts: Vec<Draft> = Vec::new();
    for token in tokens {
        if token.kind == TokenKind::Field {
            let field = Name { text: token.span.of(text).to_vec(), span: token.span };
            drafts.push(Draft { field, ..Draft::default() });
        }
        let Some(draft) = drafts.last_mut() else { continue };
        match token.kind {
            TokenKind::UserText => draft.user = true,
            TokenKind::Function => draft.function = true,
            TokenKind::Op(op) => draft.op = Some((op, token.span)),
            TokenKind::Value(kind) => draft.value = Some(value(text, kind, token.span)),
            TokenKind::Broken(kind) => {
                draft.value = Some(Value { kind, text: token.span.of(text).to_vec(), span: token.span });
                draft.broken = true;
            }
            TokenKind::Open
            | TokenKind::Close
            | TokenKind::Not
            | TokenKind::And
            | TokenKind::Or
            | TokenKind::Field => {}
        }
    }
    drafts
}

fn value(text: &[u8], kind: ValueKind, span: Span) -> Value {
    let inner = match kind {
        ValueKind::Text(_) => Span::new(span.start + 1, span.end - 1),
        ValueKind::Cpus => Span::new(span.start + "CPUS{".len(), span.end - 1),
        ValueKind::Functions(0) | ValueKind::Number | ValueKind::Symbol => span,
        ValueKind::Functions(_) => Span::new(span.start + 1, span.end),
    };
    Value { kind, text: inner.of(text).to_vec(), span }
}

impl Draft {
    fn complete(self) -> Option<Predicate> {
        let Self { field, user, function, op, value, broken: false } = self else { return None };
        let (op, op_span) = op?;
        Some(Predicate { field, user, function, op, op_span, value: value? })
    }
}

/// One level of parentheses under construction.
#[derive(Default)]
struct Level {
    /// Complete operands of `||`.
    either: Vec<Expr>,
    /// Operands of the current `&&`.
    both: Vec<Expr>,
    /// Number of `!` before the next operand.
    nots: usize,
}

impl Level {
    fn operand(&mut self, mut expr: Expr) {
        for _ in 0..std::mem::take(&mut self.nots) {
            expr = Expr::Not(Box::new(expr));
        }
        self.both.push(expr);
    }

    fn or(&mut self) {
        if let Some(expr) = join(std::mem::take(&mut self.both), Expr::And) {
            self.either.push(expr);
        }
    }

    fn finish(mut self) -> Option<Expr> {
        self.or();
        join(self.either, Expr::Or)
    }
}

fn join(mut parts: Vec<Expr>, many: fn(Vec<Expr>) -> Expr) -> Option<Expr> {
    if parts.len() > 1 { Some(many(parts)) } else { parts.pop() }
}

/// Builds the tree of a complete token list; `None` for an incomplete one.
pub fn tree(text: &[u8], tokens: &[Token]) -> Option<Expr> {
    let mut predicates = drafts(text, tokens).into_iter();
    let mut outer: Vec<Level> = Vec::new();
    let mut level = Level::default();
    for token in tokens {
        match token.kind {
            TokenKind::Open => outer.push(std::mem::take(&mut level)),
            TokenKind::Close => {
                let inner = std::mem::replace(&mut level, outer.pop()?).finish()?;
                level.operand(Expr::Group(Box::new(inner)));
            }
            TokenKind::Not => level.nots += 1,
            TokenKind::Or => level.or(),
            TokenKind::Field => level.operand(Expr::Predicate(predicates.next()?.complete()?)),
            TokenKind::And
            | TokenKind::UserText
            | TokenKind::Function
            | TokenKind::Op(_)
            | TokenKind::Value(_) => {}
            TokenKind::Broken(_) => return None,
        }
    }
    if outer.is_empty() { level.finish() } else { None }
}

/// Parses a filter without an event: checks all but fields, CPUs and symbols.
///
/// # Errors
/// The first fault in the order of the text. With an event, a fault of its fields may precede it.
pub fn parse(text: &[u8], dialect: &Dialect) -> Result<Expr, FilterError> {
    let refuse = |fault: Fault| FilterError::new(fault, text, dialect);
    let counts = balance::check(text).map_err(refuse)?;
    let lexed = lex(text, counts, dialect, false);
    if let Some(fault) = lexed.fault {
        return Err(refuse(fault));
    }
    // Every complete token list has a tree.
    tree(text, &lexed.tokens).ok_or_else(|| refuse(Fault::meaningless(text)))
}
