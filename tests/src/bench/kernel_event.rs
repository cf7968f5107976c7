//! A dynamic event of the kernel's own tracefs, which a benchmark defines.

use std::path::PathBuf;

use anyhow::Result;

use crate::host::Tracefs;
use crate::mirror;

/// The event that the definitions create.
pub(crate) const EVENT: &str = "tracer_bench/hit";

/// An event in a file of the kernel's tracefs, which is deleted on drop.
pub(crate) struct KernelEvent {
    root: PathBuf,
    file: &'static str,
}

impl KernelEvent {
    /// Defines the event by a line of a file.
    pub(crate) fn define(file: &'static str, line: &str) -> Result<Self> {
        let root = Tracefs::find_or_mount()?.root().to_owned();
        mirror::write(&root, file, line.as_bytes(), true).map_err(std::io::Error::from_raw_os_error)?;
        Ok(Self { root, file })
    }
}

impl Drop for KernelEvent {
    fn drop(&mut self) {
        let _ = mirror::write(&self.root, self.file, format!("-:{EVENT}").as_bytes(), true);
    }
}
