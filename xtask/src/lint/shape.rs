//! The shape of a file: it starts with its purpose, and it is short enough to be read in one go.

use std::path::Path;

use super::finding::Finding;

/// Maximum number of lines without a stated reason.
const LONGEST: usize = 600;
/// A comment that allows a longer file, followed by the reason.
const ALLOW: &str = "// lint: long file, because ";

/// Checks one file's text.
pub(super) fn check(file: &Path, text: &str) -> Vec<Finding> {
    let finding = |line, text: String| Finding { file: file.to_path_buf(), line, text };
    let mut found = Vec::new();
    if !text.starts_with("//!") {
        found.push(finding(1, "a file opens with `//!` and its purpose".to_owned()));
    }
    let lines = text.lines().count();
    let reason = text.lines().find_map(|l| l.trim().strip_prefix(ALLOW)).map_or("", str::trim);
    if lines > LONGEST && reason.is_empty() {
        found.push(finding(
            LONGEST + 1,
            format!("{lines} lines: split the file, or say why not in a comment `{ALLOW}...`"),
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        check(Path::new("x.rs"), text).into_iter().map(|f| f.text).collect()
    }

    #[test]
    fn a_good_file_has_no_findings() {
        assert_eq!(texts("//! Why.\nfn f() {}\n"), [""; 0]);
        assert_eq!(texts(&format!("//! Why.\n{}", "x\n".repeat(599))), [""; 0]);
    }

    #[test]
    fn the_first_line_states_the_purpose() {
        for bad in ["", "fn f() {}\n", "// Why.\n", "\n//! Late.\n", "/// Outer.\n"] {
            assert_eq!(texts(bad), ["a file opens with `//!` and its purpose"], "{bad:?}");
        }
    }

    #[test]
    fn long_files_need_a_reason() {
        let long = format!("//! Why.\n{}", "x\n".repeat(600));
        let found = check(Path::new("x.rs"), &long);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 601);
        assert!(found[0].text.starts_with("601 lines: split"), "{}", found[0].text);
        assert_eq!(texts(&format!("{long}// lint: long file, because it is one table\n")), [""; 0]);
        assert_eq!(texts(&format!("{long}// lint: long file, because \n")).len(), 1, "no reason given");
    }
}
