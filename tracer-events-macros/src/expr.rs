//! Arguments of `printk`: a small language with Rust syntax, checked here and translated to C for the format file.
//!
//! Constants keep their names until the compiler inserts their values into the text. The format file therefore
//! contains numbers, like the kernel's format files for constants of `TRACE_DEFINE_ENUM`.

use proc_macro::{Delimiter, Spacing, Span, TokenStream, TokenTree};

use crate::{
    cursor::{Cursor, Error, Result},
    item::{Field, Shape},
    types,
};

/// Text, or a value that only the compiler knows.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    /// Text.
    Text(String),
    /// The numeric value of this expression.
    Value(TokenStream),
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A number, with its size in bytes if known here.
    Number { bytes: Option<u8>, constant: bool },
    /// Text.
    Text,
    /// Bytes of the record.
    Bytes,
    /// An address.
    Pointer,
}

const INT: Kind = Kind::Number { bytes: Some(4), constant: false };

/// An argument.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) kind: Kind,
    pub(crate) pieces: Vec<Piece>,
    /// Whether it needs parentheses as an operand.
    loose: bool,
    /// Whether it is a boolean.
    truth: bool,
    /// The field's name, if the argument is a plain field.
    pub(crate) field: Option<String>,
    pub(crate) span: Span,
}

impl Expr {
    fn new(kind: Kind, text: impl Into<String>, span: Span) -> Self {
        Self { kind, pieces: vec![Piece::Text(text.into())], loose: false, truth: false, field: None, span }
    }

    fn tight(self) -> Vec<Piece> {
        if self.loose { surrounded("(", self.pieces, ")") } else { self.pieces }
    }

    fn number(&self, what: &str) -> Result<()> {
        match self.kind {
            Kind::Number { .. } => Ok(()),
            _ => Err(Error::new(self.span, format!("{what} must be a number"))),
        }
    }
}

fn surrounded(before: &str, pieces: Vec<Piece>, after: &str) -> Vec<Piece> {
    let text = |text: &str| std::iter::once(Piece::Text(text.to_owned()));
    text(before).chain(pieces).chain(text(after)).collect()
}

/// Operators from lowest to highest precedence, as in Rust.
const LEVELS: [&[&str]; 9] = [
    &["||"],
    &["&&"],
    &["==", "!=", "<=", ">=", "<", ">"],
    &["|"],
    &["^"],
    &["&"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

/// Parses arguments that refer to the fields of an event.
pub(crate) struct Reader<'a> {
    pub(crate) fields: &'a [Field],
}

impl Reader<'_> {
    /// Parses one argument.
    pub(crate) fn expr(&self, from: &mut Cursor) -> Result<Expr> {
        self.level(from, 0)
    }

    fn level(&self, from: &mut Cursor, level: usize) -> Result<Expr> {
        let Some(operators) = LEVELS.get(level) else { return self.cast(from) };
        let mut left = self.level(from, level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| is_next(from, operator)) {
            for _ in 0..operator.len() {
                from.next();
            }
            let right = self.level(from, level + 1)?;
            left.number("the operand of an operator")?;
            right.number("the operand of an operator")?;
            let bytes = match (left.kind, right.kind, level) {
                (_, _, 0..=2) => Some(4),
                (Kind::Number { bytes, .. }, _, 6) => bytes.map(|bytes| bytes.max(4)),
                (
                    Kind::Number { bytes: a, constant: false },
                    Kind::Number { bytes: b, constant: false },
                    _,
                ) => a.zip(b).map(|(a, b)| a.max(b).max(4)),
                (Kind::Number { bytes, constant: false }, ..)
                | (_, Kind::Number { bytes, constant: false }, _) => bytes.map(|bytes| bytes.max(4)),
                _ => None,
            };
            let span = left.span;
            let mut pieces = left.tight();
            pieces.push(Piece::Text(format!(" {operator} ")));
            pieces.extend(right.tight());
            left = Expr {
                kind: Kind::Number { bytes, constant: false },
                pieces,
                loose: true,
                truth: level <= 2,
                field: None,
                span,
            };
            if level == 2 && operators.iter().any(|operator| is_next(from, operator)) {
                return from.fail("comparisons do not follow one another");
            }
        }
        Ok(left)
    }

    fn cast(&self, from: &mut Cursor) -> Result<Expr> {
        let mut expr = self.unary(from)?;
        while from.take_word("as") {
            let (span, own) = (from.span(), expr.span);
            expr = if from.is_punct('*') {
                from.next();
                if !from.take_word("const") {
                    from.word("mut")?;
                }
                from.next();
                Expr {
                    kind: Kind::Pointer,
                    pieces: surrounded("(void *)", expr.tight(), ""),
                    loose: false,
                    truth: false,
                    field: None,
                    span: own,
                }
            } else {
                expr.number("the operand of a cast")?;
                let name = from.ident("a type")?;
                let Some(ty) = types::find(&name.to_string()).filter(|ty| ty.rust != "char") else {
                    return Err(Error::new(
                        span,
                        "a cast is to a number's type, u8 to u64, i8 to i64, or to a pointer",
                    ));
                };
                let kind = Kind::Number { bytes: Some(ty.bytes), constant: false };
                let pieces = surrounded(&format!("({})", ty.c), expr.tight(), "");
                Expr { kind, pieces, loose: false, truth: false, field: None, span: own }
            };
        }
        Ok(expr)
    }

    fn unary(&self, from: &mut Cursor) -> Result<Expr> {
        let span = from.span();
        for operator in ['-', '!'] {
            if from.take_punct(operator) {
                let expr = self.unary(from)?;
                expr.number("the operand of an operator")?;
                // For a number, `!` inverts the bits; for a boolean, it is the logical not.
                let truth = operator == '!' && expr.truth;
                let c = match operator {
                    '!' if truth => "!",
                    '!' => "~",
                    _ => "-",
                };
                let kind = match expr.kind {
                    Kind::Number { bytes, constant } => {
                        Kind::Number { bytes: bytes.map(|bytes| bytes.max(4)), constant }
                    }
                    other => other,
                };
                return Ok(Expr {
                    kind,
                    pieces: surrounded(c, expr.tight(), ""),
                    loose: false,
                    truth,
                    field: None,
                    span,
                });
            }
        }
        self.primary(from)
    }

    fn primary(&self, from: &mut Cursor) -> Result<Expr> {
        let span = from.span();
        if let Ok((text, span)) = from.text("text") {
            return Ok(Expr::new(Kind::Text, quoted(&text), span));
        }
        match from.peek().cloned() {
            Some(TokenTree::Literal(literal)) => {
                from.next();
                number(&literal.to_string())
                    .map(|text| {
                        let wide = text.parse::<u64>().is_ok_and(|value| value > u64::from(u32::MAX));
                        let kind = Kind::Number { bytes: Some(if wide { 8 } else { 4 }), constant: true };
                        Expr::new(kind, text, span)
                    })
                    .ok_or_else(|| Error::new(span, "a number or a text is expected here"))
            }
            Some(TokenTree::Group(group)) if matches!(group.delimiter(), Delimiter::Parenthesis | Delimiter::None) => {
                from.next();
                let mut inner = Cursor::of_group(&group);
                let expr = self.expr(&mut inner)?;
                end(&inner)?;
                Ok(Expr { span, ..expr })
            }
            Some(TokenTree::Ident(ident)) => match ident.to_string().as_str() {
                "entry" => self.field(from),
                "if" => self.choice(from),
                word @ ("true" | "false") => {
                    from.next();
                    Ok(Expr { truth: true, ..Expr::new(INT, if word == "true" { "1" } else { "0" }, span) })
                }
                word if word.starts_with("__") => self.helper(from, word),
                _ => constant(from),
            },
            _ => from.fail("an argument is expected here: `entry.FIELD`, a number, a constant, or one of the kernel's helpers"),
        }
    }

    /// `entry.NAME` or `entry.NAME[INDEX]`
    fn field(&self, from: &mut Cursor) -> Result<Expr> {
        let span = from.span();
        from.next();
        from.punct('.')?;
        let field = self.known(from)?;
        let name = field.name();
        let truth =
            matches!(field.shape, Shape::Field) && field.primitive.is_some_and(|ty| ty.rust == "bool");
        let plain =
            |kind, text: String| Expr { field: Some(name.clone()), truth, ..Expr::new(kind, text, span) };
        Ok(match &field.shape {
            Shape::String { .. } => plain(Kind::Text, format!("__get_str({name})")),
            Shape::Dynamic { .. } => plain(Kind::Bytes, format!("__get_dynamic_array({name})")),
            Shape::Field => {
                let kind = if field.is_pointer() { Kind::Pointer } else { field.number() };
                plain(kind, format!("REC->{name}"))
            }
            Shape::Array { .. } => match from.peek().cloned() {
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket => {
                    from.next();
                    let mut inner = Cursor::of_group(&group);
                    let index = self.expr(&mut inner)?;
                    end(&inner)?;
                    index.number("an index")?;
                    let pieces = surrounded(&format!("REC->{name}["), index.pieces, "]");
                    Expr { kind: field.number(), pieces, loose: false, truth: false, field: None, span }
                }
                _ if field.is_char() => plain(Kind::Text, format!("REC->{name}")),
                _ => plain(Kind::Bytes, format!("REC->{name}")),
            },
        })
    }

    fn known(&self, from: &mut Cursor) -> Result<&Field> {
        let name = from.ident("the name of a field")?;
        let wanted = crate::fill::plain(&name);
        self.fields.iter().find(|field| field.name() == wanted).ok_or_else(|| {
            let names: Vec<String> = self.fields.iter().map(|field| format!("`{}`", field.name())).collect();
            let known = if names.is_empty() {
                "it has none".to_owned()
            } else {
                format!("it has {}", names.join(", "))
            };
            Error::new(name.span(), format!("the event has no field `{wanted}`; {known}"))
        })
    }

    /// `if CONDITION { A } else { B }`
    fn choice(&self, from: &mut Cursor) -> Result<Expr> {
        let span = from.span();
        from.next();
        let condition = self.expr(from)?;
        condition.number("a condition")?;
        let branch = |from: &mut Cursor| {
            let group = from.group(Delimiter::Brace, "a value in braces")?;
            let mut inner = Cursor::of_group(&group);
            let expr = self.expr(&mut inner)?;
            end(&inner)?;
            Ok(expr)
        };
        let then = branch(from)?;
        from.word("else")?;
        let other = if from.is_word("if") { self.choice(from)? } else { branch(from)? };
        let kind = match (then.kind, other.kind) {
            (Kind::Number { bytes: a, .. }, Kind::Number { bytes: b, .. }) => {
                Kind::Number { bytes: a.zip(b).map(|(a, b)| a.max(b).max(4)), constant: false }
            }
            (a, b) if a == b => a,
            _ => return Err(Error::new(other.span, "both branches are numbers, or both are text")),
        };
        let then_truth = then.truth;
        let other_truth = other.truth;
        let mut pieces = condition.tight();
        pieces.push(Piece::Text(" ? ".to_owned()));
        pieces.extend(then.tight());
        pieces.push(Piece::Text(" : ".to_owned()));
        pieces.extend(other.tight());
        Ok(Expr { kind, pieces, loose: true, truth: then_truth && other_truth, field: None, span })
    }

    /// One of the kernel's helpers.
    fn helper(&self, from: &mut Cursor, name: &str) -> Result<Expr> {
        let span = from.span();
        from.next();
        let group = from.group(Delimiter::Parenthesis, "the helper's arguments")?;
        let mut inner = Cursor::of_group(&group);
        let call = |kind, pieces| Expr {
            kind,
            pieces: surrounded(&format!("{name}("), pieces, ")"),
            loose: false,
            truth: false,
            field: None,
            span,
        };
        let expr = match name {
            "__get_str" | "__get_dynamic_array" | "__get_dynamic_array_len" => {
                let at = inner.span();
                let field = self.known(&mut inner)?;
                let fits = match field.shape {
                    Shape::String { .. } => true,
                    Shape::Dynamic { .. } => name != "__get_str",
                    _ => false,
                };
                if !fits {
                    let wants = if name == "__get_str" { "a `string`" } else { "a `dynamic_array`" };
                    return Err(Error::new(
                        at,
                        format!("`{name}` requires {wants}, and `{}` is not one", field.name()),
                    ));
                }
                let kind = match name {
                    "__get_str" => Kind::Text,
                    "__get_dynamic_array" => Kind::Bytes,
                    _ => INT,
                };
                call(kind, vec![Piece::Text(field.name())])
            }
            "__print_flags" | "__print_flags_u64" | "__print_symbolic" | "__print_symbolic_u64" => {
                let value = self.expr(&mut inner)?;
                value.number(&format!("what `{name}` shows"))?;
                let mut pieces = value.pieces;
                if name.starts_with("__print_flags") {
                    inner.punct(',')?;
                    let (delimiter, _) = inner.text("the text between flags")?;
                    pieces.push(Piece::Text(format!(", {}", quoted(&delimiter))));
                }
                self.names(&mut inner, name, &mut pieces)?;
                call(Kind::Text, pieces)
            }
            "__print_hex" | "__print_hex_str" | "__print_array" => {
                let at = inner.span();
                let bytes = self.expr(&mut inner)?;
                if bytes.kind != Kind::Bytes && bytes.kind != Kind::Text {
                    return Err(Error::new(bytes.span, format!("`{name}` requires an array of the record")));
                }
                let mut pieces = bytes.pieces;
                let mut last = None;
                for _ in 0..if name == "__print_array" { 2 } else { 1 } {
                    inner.punct(',')?;
                    let number = self.expr(&mut inner)?;
                    number.number(&format!("the length for `{name}`"))?;
                    pieces.push(Piece::Text(", ".to_owned()));
                    pieces.extend(number.pieces.clone());
                    last = Some(number);
                }
                if name == "__print_array" {
                    self.element(bytes.field.as_deref(), last.as_ref(), at)?;
                }
                call(Kind::Text, pieces)
            }
            "__print_ns_to_secs" | "__print_ns_without_secs" => {
                let value = self.expr(&mut inner)?;
                value.number(&format!("what `{name}` divides"))?;
                let bytes = if name == "__print_ns_to_secs" { 8 } else { 4 };
                call(Kind::Number { bytes: Some(bytes), constant: false }, value.pieces)
            }
            _ => {
                let known = "__get_str, __get_dynamic_array, __get_dynamic_array_len, __print_flags, __print_symbolic, \
                             __print_hex, __print_hex_str, __print_array, __print_ns_to_secs, __print_ns_without_secs";
                return Err(Error::new(span, format!("`{name}` is no helper; there are {known}")));
            }
        };
        end(&inner)?;
        Ok(expr)
    }

    /// A sequence of `{ VALUE, "name" }`.
    fn names(&self, from: &mut Cursor, helper: &str, pieces: &mut Vec<Piece>) -> Result<()> {
        let mut some = false;
        while from.take_punct(',') {
            if from.is_empty() {
                break;
            }
            let group = from.group(Delimiter::Brace, "`{ VALUE, \"name\" }`")?;
            let mut inner = Cursor::of_group(&group);
            let value = self.expr(&mut inner)?;
            value.number("a value with a name")?;
            inner.punct(',')?;
            let (name, _) = inner.text("a name in quotation marks")?;
            inner.take_punct(',');
            end(&inner)?;
            pieces.push(Piece::Text(", { ".to_owned()));
            pieces.extend(value.pieces);
            pieces.push(Piece::Text(format!(", {} }}", quoted(&name))));
            some = true;
        }
        if some {
            Ok(())
        } else {
            from.fail(format!("`{helper}` requires at least one `{{ VALUE, \"name\" }}`"))
        }
    }

    /// Checks that the last argument of `__print_array` is the element size.
    fn element(&self, field: Option<&str>, size: Option<&Expr>, at: Span) -> Result<()> {
        let (Some(name), Some(size)) = (field, size) else { return Ok(()) };
        let Some(bytes) =
            self.fields.iter().find(|field| field.name() == name).and_then(|field| field.primitive)
        else {
            return Ok(());
        };
        match &size.pieces[..] {
            [Piece::Text(text)] if text.parse::<u8>().is_ok_and(|given| given != bytes.bytes) => {
                Err(Error::new(at, format!("an element of `{name}` has {} bytes, not {text}", bytes.bytes)))
            }
            _ => Ok(()),
        }
    }
}

fn end(from: &Cursor) -> Result<()> {
    if from.is_empty() { Ok(()) } else { from.fail("nothing more is expected here") }
}

/// Whether this operator is next, and not a longer one.
fn is_next(from: &Cursor, operator: &str) -> bool {
    let mut chars = operator.chars();
    match (chars.next(), chars.next()) {
        (Some(first), Some(second)) => from.is_pair(first, second),
        (Some(only), None) => {
            from.is_punct(only)
                && match from.peek() {
                    Some(TokenTree::Punct(punct)) if punct.spacing() == Spacing::Joint => {
                        !"&|=<>".contains(only)
                            || ["&&", "||", "==", "<<", ">>", "<=", ">="].iter().all(|two| {
                                let mut two = two.chars();
                                !(two.next() == Some(only)
                                    && two.next().is_some_and(|second| from.is_pair(only, second)))
                            })
                    }
                    _ => true,
                }
        }
        _ => false,
    }
}

/// The path of a constant, optionally with method calls: `FLAG`, `Flags::A`, `Flags::A.bits()`.
fn constant(from: &mut Cursor) -> Result<Expr> {
    let span = from.span();
    let mut tokens = Vec::new();
    loop {
        match from.peek() {
            Some(TokenTree::Ident(ident)) if ident.to_string() == "as" => break,
            Some(TokenTree::Ident(_)) => tokens.extend(from.next()),
            _ => return from.fail("a name is expected here"),
        }
        if from.is_pair(':', ':') {
            tokens.extend(from.next());
            tokens.extend(from.next());
            continue;
        }
        if let Some(TokenTree::Group(group)) = from.peek()
            && group.delimiter() == Delimiter::Parenthesis
        {
            tokens.extend(from.next());
        }
        if !from.is_punct('.') {
            break;
        }
        tokens.extend(from.next());
    }
    let kind = Kind::Number { bytes: None, constant: true };
    let tokens = tokens.into_iter().collect();
    Ok(Expr { kind, pieces: vec![Piece::Value(tokens)], loose: false, truth: false, field: None, span })
}

/// The C text of a number literal.
fn number(literal: &str) -> Option<String> {
    let text = literal.replace('_', "");
    let types = ["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize"];
    let hex = text.starts_with("0x");
    let text = types.iter().find_map(|ty| text.strip_suffix(ty)).unwrap_or(&text);
    if let Some(digits) = text.strip_prefix("0b") {
        return u64::from_str_radix(digits, 2).ok().map(|value| format!("{value:#x}"));
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return u64::from_str_radix(digits, 8).ok().map(|value| value.to_string());
    }
    let valid = if hex { u64::from_str_radix(&text[2..], 16).is_ok() } else { text.parse::<u64>().is_ok() };
    valid.then(|| text.to_owned())
}

/// Text as a C string literal.
pub(crate) fn quoted(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => {
                let _ = write!(out, "\\{:03o}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
