//! The file in which what somebody set outlives the daemon: written anew, whole, before a write that changed something
//! is answered; taken away when the daemon ends as it should.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use std::io::Write;

use crate::control::instance::{Mirror, Saved};

/// Where the files of all mirrors are: memory, as the mirrors themselves are gone after a restart of the machine.
const DIR: &str = "/run/tracer/state";

/// Keeps one mirror's state.
#[derive(Debug)]
pub(super) struct Keeper {
    path: PathBuf,
    changes: u64,
    last: Saved,
}

impl Keeper {
    /// For the mirror at a place.
    pub(super) fn new(at: &Path) -> Self {
        Self { path: Path::new(DIR).join(name(at)), changes: 0, last: Saved::default() }
    }

    /// What a killed daemon left; None where there is nothing.
    pub(super) fn load(&self) -> io::Result<Option<Saved>> {
        match fs::read(&self.path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the state where it changed.
    pub(super) fn keep(&mut self, mirror: &Mirror) {
        if self.changes == mirror.changes() {
            return;
        }
        self.changes = mirror.changes();
        let saved = mirror.saved();
        if saved == self.last {
            return;
        }
        match self.write(&saved) {
            Ok(()) => self.last = saved,
            Err(error) => tracing::warn!("cannot keep the state in {}: {error}", self.path.display()),
        }
    }

    fn write(&self, saved: &Saved) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(DIR)?;
        let new = self.path.with_extension("new");
        let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(saved)?)?;
        fs::rename(&new, &self.path)
    }

    /// Takes the file away.
    pub(super) fn forget(&self) {
        for path in [&self.path, &self.path.with_extension("new")] {
            if let Err(error) = fs::remove_file(path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!("{}: {error}", path.display());
            }
        }
    }
}

/// A file's name for a path: one for each, and a file's name.
fn name(at: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let hex = |digit: u8| char::from(b"0123456789abcdef"[usize::from(digit)]);
    let mut name = String::new();
    for byte in at.as_os_str().as_bytes().iter().copied() {
        match byte {
            b'/' => name.push('-'),
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' => name.push(char::from(byte)),
            other => name.extend(['%', hex(other >> 4), hex(other & 15)]),
        }
    }
    name + ".json"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_has_a_file_of_its_own() {
        assert_eq!(name(Path::new("/run/tracer/tracing")), "-run-tracer-tracing.json");
        assert_eq!(name(Path::new("/a-b/ü.")), "-a%2db-%c3%bc%2e.json");
    }
}
