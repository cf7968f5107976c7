//! The digests that are kept beside checked-in eBPF objects: SHA-256 of each source and each object, in the format of
//! `sha256sum`, with paths relative to the tree's root.
//!
//! A build embeds the objects without a look at their sources. These digests show that the objects belong to the
//! sources, without the compiler that built them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::host;

/// The digests of `files`, relative to `root`. A directory stands for all files below it.
pub(super) fn of(root: &Path, files: &[PathBuf]) -> Result<String> {
    let mut all = Vec::new();
    for file in files {
        add(root, file, &mut all)?;
    }
    all.sort();
    host::output(Command::new("sha256sum").current_dir(root).arg("--").args(all))
}

/// Adds a file, or the files below a directory.
fn add(root: &Path, path: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let full = root.join(path);
    if !full.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(&full).with_context(|| full.display().to_string())? {
        add(root, &path.join(entry?.file_name()), files)?;
    }
    Ok(())
}

/// The paths whose digests differ between the two texts, or that only one of them has.
pub(super) fn changed(kept: &str, now: &str) -> Result<Vec<String>> {
    let (kept, now) = (parse(kept)?, parse(now)?);
    let differs = |path: &&String| kept.get(*path) != now.get(*path);
    let mut paths: Vec<String> = kept.keys().chain(now.keys()).filter(differs).cloned().collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Reads lines `DIGEST  PATH`.
fn parse(text: &str) -> Result<BTreeMap<String, String>> {
    let mut digests = BTreeMap::new();
    for line in text.lines() {
        let (digest, path) = line.split_once("  ").with_context(|| format!("no path in {line:?}"))?;
        ensure!(
            digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "no digest: {line:?}"
        );
        digests.insert(path.to_owned(), digest.to_owned());
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_cover_directories_and_show_each_change() {
        let root = std::env::temp_dir().join(format!("tracer-digest-{}", std::process::id()));
        std::fs::create_dir_all(root.join("src/below")).unwrap();
        for (file, text) in [("one.txt", "1"), ("src/two.rs", "2"), ("src/below/three.rs", "3")] {
            std::fs::write(root.join(file), text).unwrap();
        }
        let files = ["src", "one.txt"].map(PathBuf::from);
        let kept = of(&root, &files).unwrap();
        let paths: Vec<&str> = kept.lines().map(|line| line.split_once("  ").unwrap().1).collect();
        assert_eq!(paths, ["one.txt", "src/below/three.rs", "src/two.rs"]);
        // Of `printf 1 | sha256sum`.
        assert!(
            kept.starts_with("6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b  one.txt\n")
        );
        assert_eq!(changed(&kept, &kept).unwrap(), Vec::<String>::new());
        std::fs::write(root.join("src/two.rs"), "22").unwrap();
        std::fs::rename(root.join("src/below/three.rs"), root.join("src/below/four.rs")).unwrap();
        let now = of(&root, &files).unwrap();
        let moved = ["src/below/four.rs", "src/below/three.rs", "src/two.rs"];
        assert_eq!(changed(&kept, &now).unwrap(), moved);
        assert!(of(&root, &["gone".into()]).is_err());
        assert!(changed("one.txt\n", &now).is_err() && changed("12  one.txt\n", &now).is_err());
        std::fs::remove_dir_all(root).unwrap();
    }
}
