//! A scanner for the part of Rust that is needed to find paths: identifiers and punctuation with their lines.
//!
//! It skips comments, strings of all kinds, characters and lifetimes, so that their text is never taken for code.
//! [`super::imports`] and [`super::structure`] read the tokens.

/// One token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    /// An identifier or keyword, `::`, or one other character.
    pub(super) text: String,
    /// Line number, from 1.
    pub(super) line: usize,
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
}

impl Scanner<'_> {
    /// Takes `bytes` bytes.
    fn take(&mut self, bytes: usize) -> &str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    /// Takes up to and including `end`, or everything.
    fn take_past(&mut self, end: &str) {
        let bytes = self.rest.find(end).map_or(self.rest.len(), |at| at + end.len());
        self.take(bytes);
    }

    /// Takes a block comment, which may contain nested ones.
    fn block_comment(&mut self) {
        let mut depth = 0;
        while !self.rest.is_empty() {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.take(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.take(2);
                if depth == 0 {
                    return;
                }
            } else {
                self.take_char();
            }
        }
    }

    fn take_char(&mut self) {
        let bytes = self.rest.chars().next().map_or(0, char::len_utf8);
        self.take(bytes);
    }

    /// Takes the body of a quoted literal and its closing quote; a backslash escapes the next character.
    fn quoted(&mut self, quote: char) {
        while let Some(c) = self.rest.chars().next() {
            self.take_char();
            if c == '\\' {
                self.take_char();
            } else if c == quote {
                return;
            }
        }
    }

    /// Takes a raw string if one starts here; its `r`, `br` or `cr` has already been taken.
    fn raw_string(&mut self) -> bool {
        let hashes = self.rest.len() - self.rest.trim_start_matches('#').len();
        if !self.rest[hashes..].starts_with('"') {
            return false;
        }
        self.take(hashes + 1);
        self.take_past(&format!("\"{}", "#".repeat(hashes)));
        true
    }

    /// Takes a character literal or a lifetime, at its `'`.
    fn tick(&mut self) {
        let mut ahead = self.rest.chars().skip(1);
        let first = ahead.next();
        let is_char = first == Some('\\') || ahead.next() == Some('\'');
        self.take(1);
        if is_char {
            self.quoted('\'');
        } else {
            let bytes = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
            self.take(bytes);
        }
    }
}

/// The tokens of a file.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut s = Scanner { rest: text, line: 1 };
    let mut found = Vec::new();
    while let Some(c) = s.rest.chars().next() {
        let line = s.line;
        if s.rest.starts_with("//") {
            s.take_past("\n");
        } else if s.rest.starts_with("/*") {
            s.block_comment();
        } else if c == '"' {
            s.take(1);
            s.quoted('"');
        } else if c == '\'' {
            s.tick();
        } else if is_word(c) {
            let bytes = s.rest.find(|c| !is_word(c)).unwrap_or(s.rest.len());
            let word = s.take(bytes).to_owned();
            match word.as_str() {
                "r" | "br" | "cr" if s.raw_string() => {}
                // A raw identifier equals the identifier.
                "r" if s.rest.starts_with('#') => {
                    s.take(1);
                }
                _ => found.push(Token { text: word, line }),
            }
        } else if s.rest.starts_with("::") {
            s.take(2);
            found.push(Token { text: "::".to_owned(), line });
        } else if c.is_whitespace() {
            s.take_char();
        } else {
            s.take_char();
            found.push(Token { text: c.to_string(), line });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        tokens(text).into_iter().map(|t| t.text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn code_is_split_into_tokens() {
        assert_eq!(words("use crate::{a::b, c};"), "use crate :: { a :: b , c } ;");
        assert_eq!(words("fn f<'a>(x: &'a str) -> r#type {}"), "fn f < > ( x : & str ) - > type { }");
    }

    #[test]
    fn strings_and_comments_are_skipped() {
        assert_eq!(words("a // crate::b\nc"), "a c");
        assert_eq!(words("a /* x /* crate::b */ y */ c"), "a c");
        assert_eq!(words(r#"a "crate::b \" x" c"#), "a c");
        assert_eq!(words("a r\"x\\\" b"), "a b");
        assert_eq!(words("a r#\"x \" crate::y\"# b"), "a b");
        assert_eq!(words("a br##\"x \"# y\"## b"), "a b");
        assert_eq!(words("a b\"x\" c"), "a b c");
        assert_eq!(words(r"a '\'' b '\\' c '{' d"), "a b c d");
        assert_eq!(words("a 'ä' b"), "a b");
        assert_eq!(words("a \"open"), "a");
    }

    #[test]
    fn lines_are_counted_through_everything() {
        let found = tokens("a\n\"\n\n\" b\n/*\n*/ c");
        assert_eq!(found.iter().map(|t| t.line).collect::<Vec<_>>(), [1, 4, 6]);
    }
}
