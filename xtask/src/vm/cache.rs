//! The cache of downloaded and generated files between runs, outside the tree.
//!
//! It is `$TRACER_VM_CACHE`, else `$XDG_CACHE_HOME/tracer-vm`, else `~/.cache/tracer-vm`. An entry is a directory
//! that is built under a temporary name and renamed when complete. An interrupted run therefore leaves no incomplete
//! entry. Two parallel runs may both build an entry; the first to finish keeps it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The cache's directory.
pub(crate) fn dir() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = variable("TRACER_VM_CACHE") {
        return Ok(dir);
    }
    if let Some(dir) = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|h| h.join(".cache"))) {
        return Ok(dir.join("tracer-vm"));
    }
    bail!("no place for the cache: set TRACER_VM_CACHE, XDG_CACHE_HOME or HOME");
}

/// The entry's directory if it exists.
pub(super) fn find(name: &str) -> Result<Option<PathBuf>> {
    let entry = dir()?.join(name);
    Ok(entry.is_dir().then_some(entry))
}

/// Names of the entries that start with `prefix`.
pub(super) fn names(prefix: &str) -> Result<Vec<String>> {
    let Ok(entries) = std::fs::read_dir(dir()?) else { return Ok(Vec::new()) };
    let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|n| n.starts_with(prefix)).collect())
}

/// The entry's directory. If it does not exist, `make` fills it.
pub(crate) fn entry(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = dir()?;
    let entry = cache.join(name);
    if entry.is_dir() {
        return Ok(entry);
    }
    // A leading dot hides it from `names`.
    let aside = cache.join(format!(".{name}.{}", std::process::id()));
    remove(&aside)?;
    std::fs::create_dir_all(&aside).with_context(|| format!("cannot create {}", aside.display()))?;
    if let Err(error) = make(&aside) {
        remove(&aside)?;
        return Err(error);
    }
    match std::fs::rename(&aside, &entry) {
        Ok(()) => {}
        // Another run was faster.
        Err(_) if entry.is_dir() => remove(&aside)?,
        Err(e) => return Err(e).with_context(|| format!("cannot create {}", entry.display())),
    }
    Ok(entry)
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
