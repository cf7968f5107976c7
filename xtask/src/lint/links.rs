//! Checks the relative links of Markdown files: the target must exist, and the fragment must be a heading of the
//! target. Links to other hosts are not checked.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};

use super::files;
use super::finding::Finding;

/// A link and the number of its line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Link<'a> {
    pub(super) target: &'a str,
    line: usize,
}

/// The lines outside code blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let start = line.trim_start();
        match fence {
            Some(end) => {
                if start.starts_with(end) {
                    fence = None;
                }
                return None;
            }
            None => fence = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark)),
        }
        // An indented line is code, unless it is an item of a nested list.
        let is_code = line.starts_with("    ") && !["- ", "* "].iter().any(|mark| start.starts_with(mark));
        (fence.is_none() && !is_code).then_some((at + 1, line))
    })
}

/// Replaces the bytes of code spans by spaces. A span ends with as many backticks as it begins with.
fn without_code(line: &str) -> String {
    let run_at = |at: usize| line[at..].len() - line[at..].trim_start_matches('`').len();
    let next_run = |from: usize| line[from..].find('`').map(|at| (from + at, run_at(from + at)));
    let (mut plain, mut from) = (String::new(), 0);
    while let Some((start, ticks)) = next_run(from) {
        plain += &line[from..start];
        let mut end = next_run(start + ticks);
        while let Some((at, closing)) = end.filter(|(_, closing)| *closing != ticks) {
            end = next_run(at + closing);
        }
        // Unclosed backticks are ordinary characters.
        from = end.map_or(start + ticks, |(at, closing)| at + closing);
        plain += &" ".repeat(from - start);
    }
    plain + &line[from..]
}

/// The links of a page: `[text](target)`, images too, and definitions `[name]: target`.
pub(super) fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let plain = without_code(line);
        // A title may follow the target.
        let mut add = |behind: &'_ str, at: usize| {
            let target = line[at..at + behind.len()].split_whitespace().next().unwrap_or_default();
            found.push(Link { target: target.trim_matches(['<', '>']), line: number });
        };
        for (at, _) in plain.match_indices("](") {
            let behind = &plain[at + 2..];
            add(behind.split_once(')').map_or(behind, |(target, _)| target), at + 2);
        }
        if plain.starts_with('[')
            && !plain.starts_with("[^")
            && let Some(at) = plain.find("]: ")
        {
            add(&plain[at + 3..], at + 3);
        }
    }
    found
}

/// The fragments of a page's headings, as mdbook and forges build them.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        let level = line.len() - heading.len();
        if !(1..=6).contains(&level) || !heading.starts_with(' ') {
            continue;
        }
        let id = anchor(heading.trim().trim_end_matches('#').trim_end());
        let again = found.iter().filter(|other| **other == id).count();
        found.push(id.clone());
        // The second heading with the same text gets a number.
        if again > 0 {
            found.push(format!("{id}-{again}"));
        }
    }
    found
}

/// The fragment of a heading: its letters, digits, `-` and `_` in lower case, and `-` for each space. For a link,
/// only its text counts.
fn anchor(heading: &str) -> String {
    let (mut text, mut rest) = (String::new(), heading);
    while let Some((before, after)) = rest.split_once("](") {
        text += before;
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text += rest;
    let mut id = String::new();
    for c in text.chars() {
        match c {
            c if c.is_alphanumeric() || c == '_' || c == '-' => id.extend(c.to_lowercase()),
            c if c.is_whitespace() => id.push('-'),
            _ => {}
        }
    }
    id
}

/// Resolves `..`: `a/b/../c` is `a/c`. `None` if the path leaves the tree.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => found.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !found.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(found)
}

/// The findings of all pages; `pages` has their texts by path. `exists` reports whether another file exists.
fn dead(pages: &BTreeMap<PathBuf, String>, exists: &dyn Fn(&Path) -> bool) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, text) in pages {
        for link in links(text) {
            let is_elsewhere = link.target.contains("://") || link.target.starts_with("mailto:");
            if is_elsewhere {
                continue;
            }
            let (path, fragment) = match link.target.split_once('#') {
                Some((path, fragment)) => (path, Some(fragment)),
                None => (link.target, None),
            };
            let finding = |text: String| Finding { file: file.clone(), line: link.line, text };
            let to = if path.is_empty() {
                Some(file.clone())
            } else {
                normal(&file.parent().unwrap_or(Path::new("")).join(path))
            };
            let Some(to) = to.filter(|to| pages.contains_key(to) || exists(to)) else {
                found.push(finding(format!("a link leads to {}, which is not there", link.target)));
                continue;
            };
            if let (Some(fragment), Some(page)) = (fragment, pages.get(&to))
                && !anchors(page).iter().any(|anchor| anchor == fragment)
            {
                found.push(finding(format!("{} has no heading #{fragment}", to.display())));
            }
        }
    }
    found
}

/// Checks all Markdown files of the tree.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut pages = BTreeMap::new();
    for file in files::with_extension(root, "md")? {
        let text = std::fs::read_to_string(root.join(&file))
            .with_context(|| format!("cannot read {}", file.display()))?;
        pages.insert(file, text);
    }
    Ok(dead(&pages, &|path| root.join(path).exists()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<&str> {
        links(text).into_iter().map(|link| link.target).collect()
    }

    #[test]
    fn links_are_found_where_they_are_links() {
        assert_eq!(targets("[a](b.md) and ![c](d.png \"title\")\n[e]: <f.md>\n"), ["b.md", "d.png", "f.md"]);
        assert_eq!(targets("`[a](b)` [`c`](d.md) ``[e](f)``\n"), ["d.md"]);
        assert_eq!(targets("```\n[a](b)\n```\n    [c](d)\n~~~ text\n[e](f)\n~~~\n[g](h)\n"), ["h"]);
        assert_eq!(targets("ä `ö` [a](b.md)\n"), ["b.md"]);
        assert_eq!(targets("- [a](b)\n    - [c](d)\n    [e](f)\n"), ["b", "d"]);
        assert_eq!(links("\n\n[a](b)\n")[0].line, 3);
        assert_eq!(targets("[a](unclosed\n[b] (c) [d]\n"), ["unclosed"]);
    }

    #[test]
    fn headings_have_their_fragments() {
        let page = "# The path of a hit\n## `d`, and [what](x.md) is_not-shown?\n## Open\n## Open\n```\n# code\n```\n#no\n";
        assert_eq!(anchors(page), ["the-path-of-a-hit", "d-and-what-is_not-shown", "open", "open", "open-1"]);
    }

    #[test]
    fn dead_links_are_named_with_their_lines() {
        let page = |text: &str| text.to_owned();
        let pages = BTreeMap::from([
            (PathBuf::from("README.md"), page("[a](docs/A.md#one) [b](docs/A.md#two)\n[c](docs/B.md)\n")),
            (
                PathBuf::from("docs/A.md"),
                page(
                    "# One\n[up](../README.md) [here](#one) [gone](#gone) [x](https://x/#y) [out](../../x)\n[d](..) [s](s.rs#L3)\n",
                ),
            ),
        ]);
        let found: Vec<String> =
            dead(&pages, &|path| [Path::new(""), Path::new("docs/s.rs")].contains(&path))
                .iter()
                .map(ToString::to_string)
                .collect();
        assert_eq!(
            found,
            [
                "README.md:1: docs/A.md has no heading #two",
                "README.md:2: a link leads to docs/B.md, which is not there",
                "docs/A.md:2: docs/A.md has no heading #gone",
                "docs/A.md:2: a link leads to ../../x, which is not there",
            ]
        );
    }
}
