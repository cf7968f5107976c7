//! Formats the tables of a run and places them in `docs/reference/performance.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::plan::Plan;
use super::tool::Tool;

/// The marks around the tables in a document.
const OPEN: &str = "<!-- bench: begin -->";
const CLOSE: &str = "<!-- bench: end -->";
/// Start of a table's title.
const TITLE: &str = "### ";

/// Describes the machine and the plan of the measurement.
pub(super) fn head(plan: &Plan, cpus: usize) -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown CPU", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let mut text = format!(
        "Kernel {}, {} ({cpus} CPUs{}), {} rounds interleaved",
        release.trim(),
        model.trim(),
        if info.contains("hypervisor") { ", virtual" } else { "" },
        plan.rounds
    );
    if plan.tools.contains(&Tool::Bpftrace)
        && let Ok(output) = Command::new("bpftrace").arg("--version").output()
    {
        let _ = write!(text, ", {}", String::from_utf8_lossy(&output.stdout).trim());
    }
    text.push_str(".\n");
    text
}

/// The tables of a part with the head below each title, because every table belongs to one run.
pub(super) fn dated(tables: &str, plan: &Plan, cpus: usize) -> String {
    let head = head(plan, cpus);
    let mut text = String::new();
    for line in tables.split_inclusive('\n') {
        text.push_str(line);
        if line.starts_with(TITLE) {
            let _ = write!(text, "\n{head}");
        }
    }
    text
}

/// Writes the tables between the marks of a document. A table replaces the old one with the same title.
///
/// # Errors
/// When the document cannot be read or written, or has no marks.
pub fn write_between_marks(path: &Path, tables: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    fs::write(path, between_marks(&text, tables)?).with_context(|| path.display().to_string())
}

fn between_marks(text: &str, tables: &str) -> Result<String> {
    let (before, rest) = text.split_once(OPEN).context("no mark where the tables begin")?;
    let (old, after) = rest.split_once(CLOSE).context("no mark where the tables end")?;
    let new = sections(tables);
    let mut all = sections(old);
    for (title, section) in new {
        match all.iter_mut().find(|(known, _)| *known == title) {
            Some(known) => known.1 = section,
            None => all.push((title, section)),
        }
    }
    let all: Vec<&str> =
        all.iter().map(|(_, section)| section.trim()).filter(|text| !text.is_empty()).collect();
    Ok(format!("{before}{OPEN}\n{}\n{CLOSE}{after}", all.join("\n\n")))
}

/// Splits tables by their titles. A title's key omits its digits, because one title contains the number of events.
/// The text before the first title has an empty key.
fn sections(tables: &str) -> Vec<(String, String)> {
    let mut all = vec![(String::new(), String::new())];
    for line in tables.split_inclusive('\n') {
        if let Some(title) = line.strip_prefix(TITLE) {
            all.push((title.chars().filter(|c| !c.is_ascii_digit()).collect(), String::new()));
        }
        if let Some((_, section)) = all.last_mut() {
            section.push_str(line);
        }
    }
    all.retain(|(title, section)| !title.is_empty() || !section.trim().is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_replace_tables() {
        let text = format!("a\n{OPEN}\n### One\n\nold\n\n### All 20 events\n\nkept\n{CLOSE}\nb\n");
        let new = between_marks(&text, "\n### One\n\nnew\n").unwrap();
        assert_eq!(new, format!("a\n{OPEN}\n### One\n\nnew\n\n### All 20 events\n\nkept\n{CLOSE}\nb\n"));
        assert_eq!(between_marks(&new, "\n### One\n\nnew\n").unwrap(), new);
        let new = between_marks(&new, "\n### All 21 events\n\nmore\n\n### Two\n\nx\n").unwrap();
        assert_eq!(
            new,
            format!("a\n{OPEN}\n### One\n\nnew\n\n### All 21 events\n\nmore\n\n### Two\n\nx\n{CLOSE}\nb\n")
        );
        assert!(between_marks("a", "b").is_err());
    }
}
