//! Reads the structure of a module from its text: modules, imports, paths, names and methods.
//!
//! Items of `#[cfg(test)]` are omitted. [`crate::lint::scan`] makes the tokens, and [`super::modules`] finds the file
//! that a path leads to.

use std::collections::BTreeSet;

use crate::lint::scan::{self, Token};

/// The content of a module: a file, or the braces of an inline module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Body {
    /// The names of `mod x;`.
    pub(super) files: Vec<String>,
    /// The names of `mod x { .. }` and the content of the braces.
    pub(super) inline: Vec<(String, Body)>,
    pub(super) imports: Vec<Import>,
    /// Paths of two or more names outside imports.
    pub(super) paths: Vec<Vec<String>>,
    /// The items directly in the module.
    pub(super) defined: BTreeSet<String>,
    pub(super) impls: Vec<Impl>,
}

/// One name that a `use` declaration imports.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// Its name in this module, or `*`.
    pub(super) name: String,
    /// Whether other modules see it.
    pub(super) public: bool,
}

/// A block of inherent methods, or a function that takes a reference to the type first, as a method does.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Impl {
    /// Whether it is a function outside of an `impl`.
    pub(super) is_function: bool,
    /// The path of the type, without generics.
    pub(super) of: Vec<String>,
    pub(super) methods: usize,
    /// From 1.
    pub(super) line: usize,
}

/// Reads the text of a file.
pub(super) fn read(text: &str) -> Body {
    body(&without_tests(&scan::tokens(text)))
}

/// The token at `at`; empty after the last token.
fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| &token.text)
}

/// The token before `at`; empty before the first token.
fn text_before(tokens: &[Token], at: usize) -> &str {
    at.checked_sub(1).map_or("", |before| text(tokens, before))
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The end of the brackets that open at `open`, or of all tokens.
fn close(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match &*token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// Whether an attribute at `at` restricts an item to tests: `#[cfg(test)]` or `#[cfg(all(test, ..))]`.
fn is_for_tests(tokens: &[Token], at: usize) -> bool {
    let starts = |words: &[&str]| words.iter().enumerate().all(|(i, word)| text(tokens, at + i) == *word);
    starts(&["#", "[", "cfg", "(", "test", ")"]) || starts(&["#", "[", "cfg", "(", "all", "(", "test"])
}

/// The tokens without the items, statements, fields and arms that are built only for tests.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        if is_for_tests(tokens, at) {
            at = after_item(tokens, at);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The position after the item at `at` and its attributes.
fn after_item(tokens: &[Token], mut at: usize) -> usize {
    while text(tokens, at) == "#" {
        at = close(tokens, at + 1) + 1;
    }
    if text(tokens, at) == "pub" {
        at += 1;
        if text(tokens, at) == "(" {
            at = close(tokens, at) + 1;
        }
    }
    let function = matches!(text(tokens, at + 1), "fn" | "unsafe" | "async" | "extern");
    // An item that ends with a semicolon may contain braces, and one that ends with braces may contain commas.
    let (braces_end, comma_ends) = match text(tokens, at) {
        "const" if function => (true, false),
        "use" | "type" | "let" | "static" | "const" => (false, false),
        "fn" | "struct" | "enum" | "union" | "impl" | "mod" | "trait" | "macro_rules" | "unsafe"
        | "async" | "extern" => (true, false),
        _ => (true, true),
    };
    while at < tokens.len() {
        match text(tokens, at) {
            "(" | "[" => at = close(tokens, at),
            "{" => {
                at = close(tokens, at);
                if braces_end {
                    return at + 1;
                }
            }
            ";" => return at + 1,
            "," if comma_ends => return at + 1,
            // The end of the surrounding item.
            ")" | "]" | "}" => return at,
            _ => {}
        }
        at += 1;
    }
    at
}

/// Reads the tokens of a module.
fn body(tokens: &[Token]) -> Body {
    let mut body = Body::default();
    let mut depth = 0_usize;
    let mut at = 0;
    while at < tokens.len() {
        let (before, next) = (text_before(tokens, at), text(tokens, at + 1));
        match text(tokens, at) {
            "mod" if is_name(next) && text(tokens, at + 2) == ";" => {
                body.files.push(next.to_owned());
                at += 3;
                continue;
            }
            "mod" if is_name(next) && text(tokens, at + 2) == "{" => {
                let end = close(tokens, at + 2);
                body.inline.push((next.to_owned(), self::body(&tokens[at + 3..end])));
                at = end + 1;
                continue;
            }
            // Not the `use<..>` of a bound.
            "use" if next != "<" => {
                // A parenthesis before it belongs to `pub(..)`.
                let public = matches!(before, "pub" | ")");
                at = import(tokens, at + 1, &[], public, &mut body.imports);
                continue;
            }
            // The path of a visibility is not a use.
            "pub" if next == "(" && text(tokens, at + 2) == "in" => {
                at = close(tokens, at + 1) + 1;
                continue;
            }
            "impl" if matches!(before, "" | "{" | "}" | ";" | "]" | "unsafe") => {
                body.impls.extend(inherent(tokens, at));
            }
            "fn" | "struct" | "enum" | "union" | "trait" | "const" | "static" | "type"
                if depth == 0 && is_name(next) =>
            {
                body.defined.insert(next.to_owned());
                if text(tokens, at) == "fn" {
                    body.impls.extend(method_outside(tokens, at));
                }
            }
            "macro_rules" => {
                body.defined.insert(text(tokens, at + 2).to_owned());
            }
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            name if is_name(name) && next == "::" && before != "::" => {
                let mut path = vec![name.to_owned()];
                at += 1;
                while text(tokens, at) == "::" && is_name(text(tokens, at + 1)) {
                    path.push(text(tokens, at + 1).to_owned());
                    at += 2;
                }
                if path.len() > 1 {
                    body.paths.push(path);
                }
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    body
}

/// Reads a tree of a `use` declaration that follows the names `before`. Returns its end.
fn import(
    tokens: &[Token],
    mut at: usize,
    before: &[String],
    public: bool,
    found: &mut Vec<Import>,
) -> usize {
    let mut path = before.to_vec();
    loop {
        match text(tokens, at) {
            "::" => at += 1,
            "{" => {
                at += 1;
                while !matches!(text(tokens, at), "}" | "") {
                    at = import(tokens, at, &path, public, found);
                    if text(tokens, at) == "," {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "*" => {
                found.push(Import { path, name: "*".to_owned(), public });
                return at + 1;
            }
            name if is_name(name) => {
                path.push(name.to_owned());
                at += 1;
                if text(tokens, at) == "::" {
                    continue;
                }
                if name == "self" && path.len() > 1 {
                    path.pop();
                }
                let name = if text(tokens, at) == "as" {
                    at += 2;
                    text(tokens, at - 1).to_owned()
                } else {
                    path.last().cloned().unwrap_or_default()
                };
                found.push(Import { path, name, public });
                return at;
            }
            // For example the variable of a macro.
            _ => return at + 1,
        }
    }
}

/// The `impl` at `at`, if it has no trait.
fn inherent(tokens: &[Token], at: usize) -> Option<Impl> {
    let mut of = Vec::new();
    let mut generics = 0_usize;
    let mut bounds = false;
    let mut open = at + 1;
    loop {
        match text(tokens, open) {
            "" | ";" => return None,
            "{" => break,
            "<" => generics += 1,
            ">" if text_before(tokens, open) != "-" => generics = generics.saturating_sub(1),
            "where" => bounds = true,
            _ if generics > 0 || bounds => {}
            // Not the `for<..>` of a bound.
            "for" if text(tokens, open + 1) != "<" => return None,
            "dyn" | "mut" | "const" => {}
            name if is_name(name) => of.push(name.to_owned()),
            _ => {}
        }
        open += 1;
    }
    let mut depth = 0_usize;
    let mut methods = 0;
    for inside in open..close(tokens, open) {
        match text(tokens, inside) {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            // The type of a pointer to a function has no name.
            "fn" if depth == 1 && is_name(text(tokens, inside + 1)) => methods += 1,
            _ => {}
        }
    }
    Some(Impl { is_function: false, of, methods, line: tokens[at].line })
}

/// The function at `at` as a method of the type to which its first parameter refers.
fn method_outside(tokens: &[Token], at: usize) -> Option<Impl> {
    let mut open = at + 2;
    if text(tokens, open) == "<" {
        let mut generics = 0_usize;
        while !text(tokens, open).is_empty() {
            match text(tokens, open) {
                "<" => generics += 1,
                ">" if text_before(tokens, open) != "-" => generics -= 1,
                _ => {}
            }
            open += 1;
            if generics == 0 {
                break;
            }
        }
    }
    let starts = |words: &[&str]| words.iter().enumerate().all(|(i, word)| text(tokens, open + i) == *word);
    let skipped = usize::from(starts(&["(", "mut"]));
    if !starts(&["("]) || text(tokens, open + skipped + 2) != ":" || text(tokens, open + skipped + 3) != "&" {
        return None;
    }
    let mut of = Vec::new();
    for token in tokens.iter().skip(open + skipped + 4) {
        match &*token.text {
            "mut" | "::" => {}
            "dyn" | "impl" => return None,
            name if is_name(name) => of.push(name.to_owned()),
            _ => break,
        }
    }
    (!of.is_empty()).then(|| Impl { is_function: true, of, methods: 1, line: tokens[at].line })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(text: &str) -> Vec<String> {
        let shown = |import: Import| {
            let public = if import.public { "pub " } else { "" };
            format!("{public}{} = {}", import.name, import.path.join("::"))
        };
        read(text).imports.into_iter().map(shown).collect()
    }

    fn paths(text: &str) -> Vec<String> {
        read(text).paths.into_iter().map(|path| path.join("::")).collect()
    }

    fn impls(text: &str) -> Vec<(String, usize)> {
        read(text).impls.into_iter().map(|found| (found.of.join("::"), found.methods)).collect()
    }

    #[test]
    fn every_name_of_a_group_is_an_import() {
        assert_eq!(
            imports("use crate::{a::{self, B as C, d::*}, e};\nfn f() { use super::G; }"),
            ["a = crate::a", "C = crate::a::B", "* = crate::a::d", "e = crate::e", "G = super::G"]
        );
        assert_eq!(
            imports(
                "pub use a::B;\npub(crate) use c::D;\npub(crate) use e::{F};\n\
                 #[x] use g::H as _;\nuse {i};"
            ),
            ["pub B = a::B", "pub D = c::D", "pub F = e::F", "_ = g::H", "i = i"]
        );
        assert_eq!(imports("fn f<'a>() -> impl T + use<'a> {}"), [""; 0]);
        assert_eq!(imports("use $x::{$y, a}; use a::{"), [""; 0], "and it ends");
    }

    #[test]
    fn paths_of_expressions_and_types_are_found_once() {
        assert_eq!(
            paths("fn f(x: crate::a::B<super::c::D>) -> e::F { e::g::<h::I>::j(); <k::L as M>::n(o) }"),
            ["crate::a::B", "super::c::D", "e::F", "e::g", "h::I", "k::L"]
        );
        assert_eq!(
            paths("::std::x(); pub(crate) struct B; macro_rules! m { () => { $crate::c::d() } }"),
            ["crate::c::d"]
        );
    }

    #[test]
    fn modules_and_items_are_distinguished_from_their_content() {
        let body =
            read("mod a;\npub mod b { mod c; fn d() {} }\nconst fn e() { fn f() {} }\nstruct G { h: u8 }");
        assert_eq!(body.files, ["a"]);
        assert_eq!(body.inline[0].0, "b");
        assert_eq!(body.inline[0].1.files, ["c"]);
        assert!(body.defined.contains("e") && body.defined.contains("G"), "{:?}", body.defined);
        assert!(!body.defined.contains("d") && !body.defined.contains("f"), "{:?}", body.defined);
    }

    #[test]
    fn code_of_tests_is_left_out() {
        let text = "#[cfg(test)]\nmod a;\n#[cfg(test)] use b::{c, d};\n\
                    #[cfg(test)]\n#[allow(x)]\npub(crate) mod e { use f::g; }\n\
                    #[cfg(all(test, unix))] fn h(i: [u8; 4]) -> [u8; 4] { i::j() }\n\
                    #[cfg(test)] const K: &[u8] = &{ l::m() };\n\
                    struct N { #[cfg(test)] o: p::Q, r: s::T, #[cfg(test)] u: v::W }\n\
                    #[cfg(not(test))] mod x;\nuse y::z;";
        let body = read(text);
        assert_eq!(body.files, ["x"]);
        assert_eq!(body.inline, []);
        assert_eq!(body.paths, [["s", "T"]]);
        assert_eq!(imports(text), ["z = y::z"]);
    }

    #[test]
    fn methods_are_counted_without_generics_traits_and_tests() {
        assert_eq!(
            impls(
                "impl<'a, F: Fn(u8) -> u8> a::B<'a, F> where F: for<'b> X<'b> { fn c(); const D: fn(u8) = e; \
                 pub const unsafe fn f() { fn inner() {} }\n#[cfg(test)] fn g() {} }\n\
                 impl H { }\nimpl I for H { fn j() {} }\nimpl<K> From<K> for H { fn l() {} }\n\
                 unsafe impl Send for H {}\nfn m() -> impl N { fn o() {} }\n\
                 #[cfg(test)] impl H { fn p() {} }\n#[cfg(test)] mod tests { impl H { fn q() {} } }"
            ),
            [("a::B".to_owned(), 2), ("H".to_owned(), 0)]
        );
        assert_eq!(read("\n\nimpl A {}").impls[0].line, 3);
    }

    #[test]
    fn a_function_that_takes_a_reference_first_is_a_method() {
        assert_eq!(
            impls(
                "fn a<'a, F: Fn(u8) -> u8>(mut b: &'a mut c::D<E>, f: &F) {} pub(crate) fn g(h: &I) { fn j(k: &L) {} }\n\
                 fn m(n: O, p: &Q) {} fn r(s: &[T]) {} fn u(v: &dyn W) {} fn x() {} trait Y { fn z(a: &B); }"
            ),
            [("c::D".to_owned(), 1), ("I".to_owned(), 1)]
        );
    }
}
