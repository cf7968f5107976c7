//! The trust boundary: unprivileged clients, hostile input, files and mounts of users, privileges, and time limits.

mod deadlines;
mod end;
mod erasure;
mod files;
mod held;
mod hostile_input;
mod mounts;
mod occupied;
mod output;
mod payers;
mod privileges;
mod stuck_owner;
mod timed;
mod user;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSegment};
use tracer_tests::mirror::text;

/// The file offset of a program's first instruction.
fn entry(program: &Path) -> Result<u64> {
    let bytes = std::fs::read(program)?;
    let file = object::File::parse(&*bytes)?;
    let address = file.entry();
    let found = file.segments().find_map(|segment| {
        let (offset, length) = segment.file_range();
        let ahead = address.checked_sub(segment.address())?;
        (ahead < length).then_some(offset + ahead)
    });
    found.context("an entry in the file")
}

/// Runs a program to its end.
fn run(program: &Path) -> Result<()> {
    ensure!(Command::new(program).status()?.success(), "{}", program.display());
    Ok(())
}

/// The number of records of an event.
fn hits(dir: &Path, event: &str) -> Result<usize> {
    Ok(text(dir, "trace")?.lines().filter(|line| line.contains(&format!(" {event}: "))).count())
}
