//! The files of the tree that the lint reads.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// All files of the tree with this extension, sorted and relative to its root. Build outputs, hidden directories and
/// symbolic links to other files of the tree are omitted.
pub(super) fn with_extension(root: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                if name != "target" && !name.as_encoded_bytes().starts_with(b".") {
                    todo.push(path);
                }
            } else if entry.file_type()?.is_file() && path.extension().is_some_and(|e| e == extension) {
                files.push(path.strip_prefix(root)?.to_path_buf());
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_tree_is_found_and_its_outputs_are_not() {
        let files = with_extension(crate::host::root(), "rs").unwrap();
        assert!(files.contains(&PathBuf::from("xtask/src/lint/mod.rs")));
        assert!(files.iter().all(|f| !f.starts_with("target")));
    }
}
