//! The pages of `docs` as a book: `mdbook` builds it in `target/book`, and its summary lists every page.
//!
//! mdbook silently omits pages that the summary does not list. [`super::links`] checks links.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::finding::Finding;
use super::{files, links};
use crate::host;

/// The directory of the pages, as in `book.toml`.
const PAGES: &str = "docs";
/// The list of chapters in that directory.
const SUMMARY: &str = "SUMMARY.md";

/// Builds the book.
pub(super) fn build(root: &Path) -> Result<()> {
    ensure!(root.join("book.toml").is_file(), "there is no book.toml");
    let mdbook =
        host::cargo_program("mdbook").context("mdbook is not here: run `cargo xtask setup audit`")?;
    host::run(Command::new(mdbook).current_dir(root).args(["build", "-d", "target/book"]))
}

/// The pages that the summary does not list.
pub(super) fn unlisted(root: &Path) -> Result<Vec<Finding>> {
    let summary = Path::new(PAGES).join(SUMMARY);
    let text = std::fs::read_to_string(root.join(&summary)).context(SUMMARY)?;
    let pages = files::with_extension(root, "md")?;
    let pages = pages.iter().filter_map(|page| page.strip_prefix(PAGES).ok());
    Ok(not_in(&text, pages)
        .into_iter()
        .map(|page| Finding {
            file: Path::new(PAGES).join(page),
            line: 1,
            text: format!("{} does not list this page", summary.display()),
        })
        .collect())
}

/// The pages among `pages` that the summary does not link.
fn not_in<'a>(summary: &str, pages: impl Iterator<Item = &'a Path>) -> Vec<PathBuf> {
    let listed: Vec<PathBuf> = links::links(summary)
        .iter()
        // `./a.md` and `a.md` are the same page.
        .map(|link| Path::new(link.target).components().filter(|part| part.as_os_str() != ".").collect())
        .collect();
    pages
        .filter(|page| *page != Path::new(SUMMARY) && !listed.iter().any(|other| other == page))
        .map(Path::to_path_buf)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_not_listed_are_named() {
        let summary =
            "# Summary\n\n[In front](README.md)\n- [A](./a/one.md)\n    - [Below](a/two.md)\n- [Draft]()\n";
        let pages =
            ["README.md", "SUMMARY.md", "a/one.md", "a/two.md", "a/three.md", "one.md"].map(Path::new);
        assert_eq!(not_in(summary, pages.into_iter()), [Path::new("a/three.md"), Path::new("one.md")]);
    }
}
