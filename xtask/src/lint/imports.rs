//! The direction of imports in `tracer-user`: a layer imports only from the layers to its left.
//!
//! The check covers every path that starts at the crate's root, in a `use`, an expression or a macro: `crate::layer`,
//! groups such as `crate::{a, b::c}`, and `super::super::layer` if it reaches the root. Test modules follow the same
//! rule. `lib.rs` and `main.rs` are above the layers and exempt.

use std::path::Path;

use super::finding::Finding;
use super::scan::{self, Token};

/// The layers; each may import from those before it.
const ORDER: [&str; 15] = [
    "sys", "kernel", "event", "lang", "plan", "code", "attach", "ring", "buffer", "render", "export",
    "engine", "api", "fs", "cli",
];

fn rank(layer: &str) -> Option<usize> {
    ORDER.iter().position(|r| *r == layer)
}

/// The module path of a file below `src`: `lang/filter/mod.rs` is `[lang, filter]`.
fn module_of(inside: &Path) -> Vec<String> {
    let mut path: Vec<String> =
        inside.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
    if path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    path
}

/// A path from the crate's root: the first name after it, and its line.
#[derive(Debug, PartialEq, Eq)]
struct Reach {
    name: String,
    line: usize,
}

/// Collects the first names after a path's `::`: one name, or one per branch of a group.
fn first_names(tokens: &[Token], found: &mut Vec<Reach>) {
    let Some(first) = tokens.first() else { return };
    if first.text != "{" {
        if first.text.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            found.push(Reach { name: first.text.clone(), line: first.line });
        }
        return;
    }
    let mut depth = 0;
    let mut branch_starts = true;
    for token in tokens {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return;
                }
            }
            "," if depth == 1 => branch_starts = true,
            name if branch_starts => {
                found.push(Reach { name: name.to_owned(), line: token.line });
                branch_starts = false;
            }
            _ => {}
        }
    }
}

/// All paths in `tokens` that start at the crate's root, from the view of module `module`.
fn reaches(module: &[String], tokens: &[Token]) -> Vec<Reach> {
    let mut found = Vec::new();
    // The inline modules around the current token, each as the brace depth at which it ends.
    let mut inline: Vec<usize> = Vec::new();
    let mut depth = 0;
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text.as_str());
    let mut i = 0;
    while i < tokens.len() {
        let after_path = i > 0 && text(i - 1) == "::";
        match text(i) {
            "mod" if text(i + 2) == "{" => {
                inline.push(depth);
                depth += 1;
                i += 2;
            }
            "{" => depth += 1,
            "}" => {
                depth = usize::saturating_sub(depth, 1);
                if inline.last() == Some(&depth) {
                    inline.pop();
                }
            }
            "crate" if text(i + 1) == "::" => {
                first_names(&tokens[i + 2..], &mut found);
                i += 1;
            }
            "super" if !after_path && text(i + 1) == "::" => {
                let mut climbed = 0;
                while text(i) == "super" && text(i + 1) == "::" {
                    climbed += 1;
                    i += 2;
                }
                if climbed == module.len() + inline.len() {
                    first_names(&tokens[i..], &mut found);
                }
                continue;
            }
            _ => {}
        }
        i += 1;
    }
    found
}

/// Checks one file; `inside` is its path below `tracer-user/src`.
pub(super) fn check(file: &Path, inside: &Path, text: &str) -> Vec<Finding> {
    let module = module_of(inside);
    let finding = |line, text| Finding { file: file.to_path_buf(), line, text };
    let Some(layer) = module.first().filter(|r| *r != "lib" && *r != "main") else { return Vec::new() };
    let Some(own) = rank(layer) else {
        return vec![finding(1, format!("`{layer}` is not a layer: {}", ORDER.join(" < ")))];
    };
    reaches(&module, &scan::tokens(text))
        .into_iter()
        .filter_map(|reach| match rank(&reach.name) {
            Some(other) if other > own => {
                let name = &reach.name;
                Some(finding(
                    reach.line,
                    format!("`{layer}` must not import from `{name}`, which is right of it"),
                ))
            }
            // A macro or a re-export at the root would hide its layer and the direction of the import.
            None if reach.name != "self" => {
                Some(finding(reach.line, format!("name the layer: `crate::{}` is not one", reach.name)))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(inside: &str, text: &str) -> Vec<(usize, String)> {
        check(Path::new("f.rs"), Path::new(inside), text).into_iter().map(|f| (f.line, f.text)).collect()
    }

    fn bad_lines(inside: &str, text: &str) -> Vec<usize> {
        lines(inside, text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn an_import_to_the_left_is_allowed() {
        let good = "use crate::event::Field;\nuse crate::{sys, kernel::btf::{self, Btf}};\nuse crate::lang::x;\n\
                    fn f() { crate::sys::g(); super::h(); }\n// use crate::cli::X;\n#[doc = \"crate::cli\"]\n";
        assert_eq!(lines("lang/filter/mod.rs", good), []);
        assert_eq!(lines("lib.rs", "use crate::cli;"), []);
        assert_eq!(lines("main.rs", "use crate::cli;"), []);
    }

    #[test]
    fn an_import_to_the_right_is_reported_with_both_layers() {
        let found = lines("lang/filter/lex.rs", "//! x\nuse crate::plan::filter::Plan;\n");
        assert_eq!(found, [(2, "`lang` must not import from `plan`, which is right of it".to_owned())]);
    }

    #[test]
    fn every_form_of_a_path_is_seen() {
        assert_eq!(bad_lines("event/mod.rs", "fn f() {\n  let x = crate::code::asm();\n}"), [2]);
        assert_eq!(bad_lines("event/mod.rs", "use crate::{\n  sys::x,\n  cli::{a, b},\n  code,\n};"), [3, 4]);
        assert_eq!(
            bad_lines("event/mod.rs", "use crate::sys::{attach, ring};\nuse crate :: ring :: X;"),
            [2]
        );
        assert_eq!(bad_lines("event/a.rs", "use super::super::code::X;"), [1]);
        assert_eq!(bad_lines("event/mod.rs", "use super::code::X;\nuse super::{sys, cli};"), [1, 2]);
        assert_eq!(bad_lines("event.rs", "pub(crate) use super::code;"), [1]);
        assert_eq!(bad_lines("event/mod.rs", "macro_rules! m { () => { $crate::code::X } }"), [1]);
    }

    #[test]
    fn inline_modules_are_one_step_deeper() {
        let text = "use super::sys::Field;\nmod tests {\n  use super::code;\n  use super::super::code;\n\
                    mod deep { use super::super::super::cli; }\n}\nfn f() {}\nuse super::cli;\n";
        assert_eq!(
            bad_lines("event/mod.rs", text),
            [4, 5, 8],
            "with its own submodule called code on line 3"
        );
    }

    #[test]
    fn test_modules_are_included() {
        assert_eq!(bad_lines("sys/mod.rs", "#[cfg(test)]\nmod tests {\n  use crate::kernel::X;\n}"), [3]);
    }

    #[test]
    fn an_unknown_layer_is_reported() {
        assert_eq!(bad_lines("helpers/mod.rs", ""), [1]);
        assert_eq!(bad_lines("sys/mod.rs", "use crate::Thing;\nuse crate::{self};\n"), [1]);
    }
}
