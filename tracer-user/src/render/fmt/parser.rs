//! Parser of a print fmt: precedence climbing over [`super::lexer`]'s tokens.
//!
//! C cannot be parsed without knowing which names are types. A name in parentheses is parsed as a type in these cases:
//! it is a keyword or a typedef known to [`ctype::named`]; stars follow it; or an operand follows the closing
//! parenthesis, which no expression allows.

use super::ast::{Binary, Expr, PrintFmt, Stmt, TypeName, Unary};
use super::ctype;
use super::lexer::{Spanned, SyntaxError, Token, tokens};

/// Nesting limit of the parser, so that no text can exhaust the stack; the deepest real one is 30.
const MAX_DEPTH: usize = 120;

/// Parses the text after `print fmt: `.
///
/// # Errors
/// When the text is not a string constant followed by C expressions.
pub fn parse(text: &str) -> Result<PrintFmt, SyntaxError> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, end: text.len(), depth: 0, height: 0 };
    let Expr::Text(format) = parser.primary()? else {
        return Err(SyntaxError::new(0, "no format string"));
    };
    let mut args = Vec::new();
    while parser.at < parser.tokens.len() {
        parser.expect(",")?;
        args.push(parser.expr()?);
    }
    Ok(PrintFmt { format, args })
}

struct Parser {
    tokens: Vec<Spanned>,
    at: usize,
    end: usize,
    /// Number of brackets and prefixes around the current position.
    depth: usize,
    /// Height of the last tree that was built.
    height: usize,
}

type Parsed<T> = Result<T, SyntaxError>;

impl Parser {
    fn ahead(&self, distance: usize) -> Option<&Token> {
        self.tokens.get(self.at + distance).map(|(token, _)| token)
    }

    fn sees(&self, punct: &str) -> bool {
        self.sees_at(0, punct)
    }

    fn sees_at(&self, distance: usize, punct: &str) -> bool {
        matches!(self.ahead(distance), Some(Token::Punct(seen)) if *seen == punct)
    }

    fn eat(&mut self, punct: &str) -> bool {
        let seen = self.sees(punct);
        self.at += usize::from(seen);
        seen
    }

    fn fail<T>(&self, what: impl Into<String>) -> Parsed<T> {
        let at = self.tokens.get(self.at).map_or(self.end, |(_, at)| *at);
        Err(SyntaxError::new(at, what))
    }

    fn expect(&mut self, punct: &str) -> Parsed<()> {
        if self.eat(punct) { Ok(()) } else { self.fail(format!("`{punct}` expected")) }
    }

    fn name(&mut self) -> Parsed<String> {
        let Some(Token::Name(name)) = self.ahead(0) else { return self.fail("a name expected") };
        let name = name.clone();
        self.at += 1;
        Ok(name)
    }

    /// Records that a node was added on top of trees of this height.
    fn grow(&mut self, height: usize) -> Parsed<()> {
        self.height = height + 1;
        if self.height > MAX_DEPTH { self.fail("nested too deep") } else { Ok(()) }
    }

    /// Counts a bracket or a prefix around what is parsed next.
    fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { self.fail("nested too deep") } else { Ok(()) }
    }

    /// An expression without commas outside of brackets.
    fn expr(&mut self) -> Parsed<Expr> {
        self.enter()?;
        let condition = self.binary(1)?;
        let value = if self.eat("?") {
            let mut height = self.height;
            let then = if self.sees(":") { None } else { Some(Box::new(self.expr()?)) };
            height = height.max(self.height);
            self.expect(":")?;
            let otherwise = self.expr()?;
            self.grow(height.max(self.height))?;
            Expr::Cond(Box::new(condition), then, Box::new(otherwise))
        } else {
            condition
        };
        self.depth -= 1;
        Ok(value)
    }

    fn binary(&mut self, weakest: u8) -> Parsed<Expr> {
        let mut left = self.unary()?;
        while let Some((op, strength)) = match self.ahead(0) {
            Some(Token::Punct(punct)) => Binary::of(punct).filter(|(_, strength)| *strength >= weakest),
            _ => None,
        } {
            self.at += 1;
            let height = self.height;
            let right = self.binary(strength + 1)?;
            self.grow(height.max(self.height))?;
            left = Expr::Binary(op, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Parsed<Expr> {
        let op = match self.ahead(0) {
            Some(Token::Punct("-")) => Unary::Neg,
            Some(Token::Punct("+")) => Unary::Plus,
            Some(Token::Punct("~")) => Unary::Invert,
            Some(Token::Punct("!")) => Unary::Not,
            Some(Token::Punct("*")) => Unary::Deref,
            Some(Token::Punct("&")) => Unary::Address,
            Some(Token::Name(name)) if name == "sizeof" => {
                self.at += 1;
                return self.sizeof();
            }
            Some(Token::Punct("(")) if self.type_follows(1) => {
                self.at += 1;
                let ty = self.type_name()?;
                self.expect(")")?;
                return Ok(Expr::Cast(ty, Box::new(self.nested_unary()?)));
            }
            _ => return self.postfix(),
        };
        self.at += 1;
        Ok(Expr::Unary(op, Box::new(self.nested_unary()?)))
    }

    fn nested_unary(&mut self) -> Parsed<Expr> {
        self.enter()?;
        let value = self.unary()?;
        self.grow(self.height)?;
        self.depth -= 1;
        Ok(value)
    }

    fn sizeof(&mut self) -> Parsed<Expr> {
        if self.sees("(") && self.type_follows(1) {
            self.at += 1;
            let ty = self.type_name()?;
            self.expect(")")?;
            return Ok(Expr::SizeofType(ty));
        }
        Ok(Expr::Sizeof(Box::new(self.nested_unary()?)))
    }

    fn postfix(&mut self) -> Parsed<Expr> {
        let mut value = self.primary()?;
        loop {
            let height = self.height;
            if self.eat("[") {
                let index = self.expr()?;
                self.grow(height.max(self.height))?;
                self.expect("]")?;
                value = Expr::Index(Box::new(value), Box::new(index));
            } else if self.eat(".") {
                value = Expr::Member { base: Box::new(value), name: self.name()?, arrow: false };
                self.grow(height)?;
            } else if self.eat("->") {
                let name = self.name()?;
                self.grow(height)?;
                value = match value {
                    Expr::Name(record) if record == "REC" => Expr::Field(name),
                    base => Expr::Member { base: Box::new(base), name, arrow: true },
                };
            } else {
                return Ok(value);
            }
        }
    }

    fn primary(&mut self) -> Parsed<Expr> {
        self.height = 1;
        match self.ahead(0).cloned() {
            Some(Token::Number(value, ty)) => {
                self.at += 1;
                Ok(Expr::Number(value, ty))
            }
            Some(Token::Text(mut text)) => {
                self.at += 1;
                while let Some(Token::Text(more)) = self.ahead(0) {
                    text.extend_from_slice(more);
                    self.at += 1;
                }
                Ok(Expr::Text(text))
            }
            Some(Token::Name(name)) => {
                self.at += 1;
                if self.eat("(") { Ok(Expr::Call(name, self.call_args()?)) } else { Ok(Expr::Name(name)) }
            }
            Some(Token::Punct("(")) => {
                self.at += 1;
                if self.eat("{") {
                    let block = self.block()?;
                    self.expect(")")?;
                    return Ok(block);
                }
                let mut value = self.expr()?;
                while self.eat(",") {
                    let height = self.height;
                    value = Expr::Comma(Box::new(value), Box::new(self.expr()?));
                    self.grow(height.max(self.height))?;
                }
                self.expect(")")?;
                Ok(value)
            }
            _ => self.fail("an operand expected"),
        }
    }

    fn call_args(&mut self) -> Parsed<Vec<Expr>> {
        let mut args = Vec::new();
        let mut height = 0;
        // Tables made by macros sometimes end with a comma.
        while !self.eat(")") {
            args.push(self.initializer()?);
            height = height.max(self.height);
            if !self.sees(")") {
                self.expect(",")?;
            }
        }
        self.grow(height)?;
        Ok(args)
    }

    /// An expression, a braced list, or a type (an argument of a macro such as `__get_buf`).
    fn initializer(&mut self) -> Parsed<Expr> {
        if !self.sees("{") {
            return self.expr();
        }
        self.enter()?;
        self.at += 1;
        let mut items = Vec::new();
        let mut height = 0;
        while !self.eat("}") {
            // `.name = value`: the entries of these tables are always in order, so the designator is skipped.
            if self.sees(".") && self.sees_at(2, "=") {
                self.at += 3;
            }
            items.push(self.initializer()?);
            height = height.max(self.height);
            if !self.sees("}") {
                self.expect(",")?;
            }
        }
        self.grow(height)?;
        self.depth -= 1;
        Ok(Expr::Braces(items))
    }

    fn block(&mut self) -> Parsed<Expr> {
        let mut body = Vec::new();
        let mut height = 0;
        while !self.eat("}") {
            height = height.max(self.height);
            if self.eat(";") {
                continue;
            }
            if self.declaration_follows() {
                self.declaration(&mut body)?;
            } else {
                let value = self.expr()?;
                if self.eat("=") {
                    let from = self.expr()?;
                    body.push(Stmt::Assign(value, from));
                } else {
                    body.push(Stmt::Expr(value));
                }
            }
            if !self.sees("}") {
                self.expect(";")?;
            }
        }
        self.grow(height.max(self.height))?;
        Ok(Expr::Block(body))
    }

    fn declaration_follows(&self) -> bool {
        let Some(Token::Name(name)) = self.ahead(0) else { return false };
        // `NAME NAME` and `NAME * NAME =` can only start a declaration.
        is_type_word(name)
            || ctype::named(name).is_some()
            || matches!(self.ahead(1), Some(Token::Name(_)))
            || (self.sees_at(1, "*") && matches!(self.ahead(2), Some(Token::Name(_))) && self.sees_at(3, "="))
    }

    fn declaration(&mut self, body: &mut Vec<Stmt>) -> Parsed<()> {
        let ty = self.type_name()?;
        loop {
            let mut ty = ty.clone();
            while self.eat("*") {
                ty.stars += 1;
            }
            let name = self.name()?;
            let array = self.eat("[");
            if array {
                if !self.sees("]") {
                    self.expr()?;
                }
                self.expect("]")?;
            }
            let value = if self.eat("=") { Some(self.initializer()?) } else { None };
            body.push(Stmt::Declare { ty, name, array, value });
            if !self.eat(",") {
                return Ok(());
            }
        }
    }

    /// Whether the tokens from `distance` on are a type in parentheses.
    fn type_follows(&self, distance: usize) -> bool {
        let Some(Token::Name(name)) = self.ahead(distance) else { return false };
        if is_type_word(name) {
            return true;
        }
        let mut stars = 0;
        while self.sees_at(distance + 1 + stars, "*") {
            stars += 1;
        }
        if !self.sees_at(distance + 1 + stars, ")") {
            return false;
        }
        if stars > 0 || ctype::named(name).is_some() {
            return true;
        }
        match self.ahead(distance + 2) {
            Some(Token::Name(_) | Token::Number(..) | Token::Text(_)) => true,
            Some(Token::Punct(punct)) => matches!(*punct, "(" | "~" | "!"),
            None => false,
        }
    }

    /// Skips the members of a struct without a name. Macros put assertions there.
    fn body_of_struct(&mut self) -> Parsed<()> {
        let mut open = 1;
        while open > 0 {
            match self.ahead(0) {
                Some(Token::Punct("{")) => open += 1,
                Some(Token::Punct("}")) => open -= 1,
                Some(_) => {}
                None => return self.fail("`}` expected"),
            }
            self.at += 1;
        }
        Ok(())
    }

    fn type_name(&mut self) -> Parsed<TypeName> {
        let mut ty = TypeName { base: String::new(), aggregate: false, enumeration: false, stars: 0 };
        while let Some(Token::Name(word)) = self.ahead(0) {
            match word.as_str() {
                "const" | "volatile" | "static" | "register" | "__user" | "__percpu" | "__rcu"
                | "__iomem" | "__force" => {}
                "struct" | "union" => ty.aggregate = true,
                "enum" => ty.enumeration = true,
                _ if is_type_word(word) => {
                    if !ty.base.is_empty() {
                        ty.base.push(' ');
                    }
                    ty.base.push_str(word);
                }
                // One other name can be the type; the next one is the declared name.
                _ if ty.base.is_empty() => ty.base.clone_from(word),
                _ => break,
            }
            self.at += 1;
        }
        if ty.aggregate && ty.base.is_empty() && self.eat("{") {
            self.body_of_struct()?;
            "{}".clone_into(&mut ty.base);
        }
        if ty.base.is_empty() {
            return self.fail("a type expected");
        }
        loop {
            if self.eat("*") {
                ty.stars += 1;
            } else if matches!(self.ahead(0), Some(Token::Name(word)) if word == "const") {
                self.at += 1;
            } else {
                return Ok(ty);
            }
        }
    }
}

/// Words that can only start a type.
fn is_type_word(word: &str) -> bool {
    matches!(
        word,
        "unsigned"
            | "signed"
            | "int"
            | "char"
            | "short"
            | "long"
            | "void"
            | "const"
            | "volatile"
            | "struct"
            | "union"
            | "enum"
            | "static"
            | "_Bool"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> String {
        match parse(text) {
            Ok(fmt) => fmt.args.iter().map(show).collect::<Vec<_>>().join("; "),
            Err(error) => format!("error: {error}"),
        }
    }

    fn show(expr: &Expr) -> String {
        match expr {
            Expr::Number(value, _) => value.to_string(),
            Expr::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
            Expr::Name(name) => name.clone(),
            Expr::Field(name) => format!(".{name}"),
            Expr::Member { base, name, .. } => format!("{}.{name}", show(base)),
            Expr::Index(base, index) => format!("{}[{}]", show(base), show(index)),
            Expr::Unary(op, value) => format!("({op:?} {})", show(value)),
            Expr::Binary(op, a, b) => format!("({op:?} {} {})", show(a), show(b)),
            Expr::Cond(c, Some(a), b) => format!("({} ? {} : {})", show(c), show(a), show(b)),
            Expr::Cond(c, None, b) => format!("({} ?: {})", show(c), show(b)),
            Expr::Cast(ty, value) => format!("<{}{}>{}", ty.base, "*".repeat(ty.stars), show(value)),
            Expr::SizeofType(ty) => format!("sizeof<{}>", ty.base),
            Expr::Sizeof(value) => format!("sizeof {}", show(value)),
            Expr::Call(name, args) => {
                format!("{name}({})", args.iter().map(show).collect::<Vec<_>>().join(", "))
            }
            Expr::Braces(items) => format!("{{{}}}", items.iter().map(show).collect::<Vec<_>>().join(", ")),
            Expr::Comma(a, b) => format!("({}, {})", show(a), show(b)),
            Expr::Block(body) => format!("block of {}", body.len()),
        }
    }

    #[test]
    fn precedence_and_casts() {
        insta::assert_snapshot!(shape(r#""%d", 1 + 2 * 3 << 1 & 7 == 7 || !REC->a && ~1"#),
            @"(Or (BitAnd (Shl (Add 1 (Mul 2 3)) 1) (Eq 7 7)) (And (Not .a) (Invert 1)))");
        insta::assert_snapshot!(shape(r#""%d", (u8)(REC->a >> 12) | ((struct page *)vmemmap_base) + (REC->pfn)"#),
            @"(BitOr <u8>(Shr .a 12) (Add <page*>vmemmap_base .pfn))");
        insta::assert_snapshot!(shape(r#""%d", ( some_t)0, (foo)(1), (A) + 1, (REC->b)"#),
            @"<some_t>0; <foo>1; (Add A 1); .b");
        insta::assert_snapshot!(shape(r#""a" "b", a ? b : c ? d : e, REC->x[1], sizeof(u64), sizeof(REC->x)"#),
            @"(a ? b : (c ? d : e)); .x[1]; sizeof<u64>; sizeof .x");
    }

    #[test]
    fn calls_braces_and_blocks() {
        insta::assert_snapshot!(shape(r#""%s", __print_flags(REC->f, "|", { (1UL << 0), "A" }, { -1, ((void *)0) } )"#),
            @r#"__print_flags(.f, "|", {(Shl 1 0), "A"}, {(Neg 1), <void*>0})"#);
        insta::assert_snapshot!(
            shape(r#""%d", ({ int x = (REC->a); static const char *t[] = { "x", "y" }; r.word = 1; x; })"#),
            @"block of 4");
    }

    #[test]
    fn errors_name_the_place() {
        insta::assert_snapshot!(shape(r#""%d", REC->"#), @"error: a name expected at byte 11");
        insta::assert_snapshot!(shape(r#""%d", (1"#), @"error: `)` expected at byte 8");
        insta::assert_snapshot!(shape(&format!("\"%d\", {}1", "(".repeat(500))), @"error: nested too deep at byte 126");
    }
}
