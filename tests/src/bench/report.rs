//! The tables' frame, and their place in docs/PERFORMANCE.md.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Plan, Tool};

/// What stands around the tables in a document.
const OPEN: &str = "<!-- bench: begin -->";
const CLOSE: &str = "<!-- bench: end -->";

/// Says what was measured on what.
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

/// Puts the tables between the marks of a document.
///
/// # Errors
/// When the document cannot be read or written, or has no marks.
pub fn write_between_marks(path: &Path, tables: &str) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    fs::write(path, between_marks(&text, tables)?).with_context(|| path.display().to_string())
}

fn between_marks(text: &str, tables: &str) -> Result<String> {
    let (before, rest) = text.split_once(OPEN).context("no mark where the tables begin")?;
    let (_, after) = rest.split_once(CLOSE).context("no mark where the tables end")?;
    Ok(format!("{before}{OPEN}\n{}\n{CLOSE}{after}", tables.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_replace_tables() {
        let text = format!("a\n{OPEN}\nold\n{CLOSE}\nb\n");
        let new = between_marks(&text, "new\n").unwrap();
        assert_eq!(new, format!("a\n{OPEN}\nnew\n{CLOSE}\nb\n"));
        assert_eq!(between_marks(&new, "new\n").unwrap(), new);
        assert!(between_marks("a", "b").is_err());
    }
}
