//! Formats the tables of a run and places them in `docs/reference/performance.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::plan::Plan;
use super::tool::Tool;

/// The marks around the tables in a document.
const OPEN: &str = "<!-- bench: begin -->";
const CLOSE: &str = "<!-- bench: end -->";
/// Start of a table's title.
const TITLE: &str = "### ";

/// The machine of a run, as far as results depend on it.
pub(super) struct Machine {
    /// The kernel's release.
    pub(super) kernel: String,
    /// The CPU's model.
    pub(super) cpu: String,
    pub(super) cpus: usize,
    pub(super) is_virtual: bool,
    /// The versions of the plan's bpftraces.
    pub(super) bpftrace: Vec<String>,
}

impl Machine {
    /// Describes the running machine.
    pub(super) fn of(plan: &Plan, cpus: usize) -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name"));
        let bpftrace = plan.tools.iter().filter_map(|tool| match tool {
            Tool::Bpftrace(which) => which.version().map(str::to_owned),
            _ => None,
        });
        Self {
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            cpu: model.map_or("unknown CPU", |rest| rest.trim_matches([' ', '\t', ':'])).to_owned(),
            cpus,
            is_virtual: info.contains("hypervisor"),
            bpftrace: bpftrace.collect(),
        }
    }

    /// The line below each title.
    fn head(&self, rounds: usize) -> String {
        let Self { kernel, cpu, cpus, is_virtual, bpftrace } = self;
        let is_virtual = if *is_virtual { ", virtual" } else { "" };
        let rounds = format!("{rounds} rounds interleaved");
        let tools = [&rounds].into_iter().chain(bpftrace).map(String::as_str).collect::<Vec<_>>().join(", ");
        format!("Kernel {kernel}, {cpu} ({cpus} CPUs{is_virtual}), {tools}.\n")
    }
}

/// The tables of a part with the place of the run in each title and the head below it, because every table belongs to
/// one run.
pub(super) fn dated(tables: &str, machine: &Machine, plan: &Plan) -> String {
    let head = machine.head(plan.rounds);
    let mut text = String::new();
    for line in tables.split_inclusive('\n') {
        if line.starts_with(TITLE) {
            let _ = write!(text, "{}{}\n\n{head}", line.trim_end(), plan.place);
        } else {
            text.push_str(line);
        }
    }
    text
}

/// The page without tables: how they are measured.
const PAGE: &str = include_str!("page.md");

/// Writes the page with these tables. A table replaces the one with the same title that the file has now; the other
/// tables of the file stay.
///
/// # Errors
/// When the file cannot be read or written, or has no marks.
pub fn write_page(path: &Path, tables: &str) -> Result<()> {
    let old = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => PAGE.to_owned(),
        text => text.with_context(|| path.display().to_string())?,
    };
    fs::write(path, page(&old, tables)?).with_context(|| path.display().to_string())
}

/// The page with the tables of an older version of it, and with new ones.
fn page(old: &str, tables: &str) -> Result<String> {
    let all = between_marks(old, tables)?;
    let kept = all.split_once(OPEN).and_then(|(_, rest)| rest.split_once(CLOSE)).context("no marks")?.0;
    between_marks(PAGE, kept)
}

fn between_marks(text: &str, tables: &str) -> Result<String> {
    let (before, rest) = text.split_once(OPEN).context("no mark where the tables begin")?;
    let (old, after) = rest.split_once(CLOSE).context("no mark where the tables end")?;
    let new = sections(tables);
    let mut all = sections(old);
    all.retain(|(title, _)| !title.is_empty());
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
        let text =
            format!("a\n{OPEN}\nof no table\n\n### One\n\nold\n\n### All 20 events\n\nkept\n{CLOSE}\nb\n");
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

    #[test]
    fn the_page_has_nothing_but_the_output() {
        let path = Path::new("../docs/reference/performance.md");
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(page(&text, "").unwrap(), text);
    }
}
