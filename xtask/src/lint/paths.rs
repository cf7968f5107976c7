//! Checks that no program contains a path of the tree.
//!
//! Cargo does not rebuild after a checkout is moved. A compile-time path then names a missing directory or another
//! checkout. Programs find the tree at run time instead. Cargo and `cargo xtask test` start tests in the directory of
//! their package.

use std::path::Path;

use super::finding::Finding;

/// Beginnings of the macro calls that insert such a path.
const COMPILED_IN: [&str; 3] = [
    concat!("env!(\"CARGO_", "MANIFEST_"),
    concat!("env!(\"CARGO_", "TARGET_"),
    concat!("env!(\"CARGO_", "BIN_EXE_"),
];

/// Checks one file's text.
pub(super) fn check(file: &Path, text: &str) -> Vec<Finding> {
    let is_code = |line: &str| !line.trim_start().starts_with("//");
    let wrong = text
        .lines()
        .enumerate()
        .filter(|(_, line)| is_code(line) && COMPILED_IN.iter().any(|start| line.contains(start)));
    wrong
        .map(|(at, _)| Finding {
            file: file.to_path_buf(),
            line: at + 1,
            text: "the tree's path is compiled in: tests start in their package's directory".to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_compile_time_are_found() {
        let macro_of = |variable: &str| format!("env!(\"CARGO_{variable}\")");
        let text = format!(
            "//! {dir}\nlet a = {dir};\n    // {dir}\nlet b = option_{tmp}.unwrap_or(concat!({dir}, \"/x\"));\n",
            dir = macro_of("MANIFEST_DIR"),
            tmp = macro_of("TARGET_TMPDIR"),
        );
        let lines: Vec<usize> = check(Path::new("x.rs"), &text).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 4]);
        let fine = format!(
            "let a = {}; let b = std::env::var_os(\"CARGO_MANIFEST_DIR\");\ninclude_bytes!(concat!(env!(\"OUT_DIR\"), \"/x\"))\n",
            macro_of("PKG_VERSION"),
        );
        assert_eq!(check(Path::new("x.rs"), &fine), []);
    }
}
