//! A finding of a check: a message and its location.

use std::fmt;
use std::path::PathBuf;

/// One error, with a location that editors can open.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Relative to the workspace's root.
    pub(super) file: PathBuf,
    /// Line number, from 1.
    pub(super) line: usize,
    pub(super) text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_read_as_compilers_print_them() {
        let finding = Finding { file: "a/b.rs".into(), line: 7, text: "no".into() };
        assert_eq!(finding.to_string(), "a/b.rs:7: no");
    }
}
