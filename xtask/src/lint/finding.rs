//! A finding of a check: what is wrong, and where.

use std::fmt;
use std::path::PathBuf;

/// One thing that is wrong, at a place that editors can jump to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Relative to the workspace's root.
    pub(super) file: PathBuf,
    /// From 1.
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
