//! The state file: the settings of a mirror, which a killed daemon leaves to the next one.
//!
//! The whole file is written again before a write that changed a setting is answered. It is removed when the daemon
//! ends regularly, unless it is kept for the next daemon. Another process writes and removes it ([`StateWriter`]).
//!
//! The file is not trusted at the start. If it is not a regular file that only root can write, or has impossible
//! settings, it is renamed, and the daemon starts without it.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::{fs::OFlags, io::Errno};

use crate::{
    engine::{
        Engine,
        saved::{self, SAVED_MAX, Saved, SavedError},
    },
    fs::helpers::state_writer::{StateLifetime, StateWriter},
};

#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    writer: StateWriter,
    last: Saved,
    /// [`Saved::listed`]
    listed: Vec<String>,
    /// Whether the file stays when the daemon ends regularly.
    stays: bool,
    /// Whether the last write failed.
    failed: bool,
    /// Whether the daemon has ended regularly. Later changes are not saved.
    ended: bool,
}

impl StateFile {
    /// Creates the state file of the mirror that is mounted at `at`, if its settings are kept.
    pub(crate) fn new(at: &Path, lifetime: &StateLifetime, mut writer: StateWriter) -> Option<Self> {
        let path = lifetime.dir()?.join(name(at));
        writer.set_name(&name(at));
        let stays = matches!(lifetime, StateLifetime::Restart(_));
        let (last, listed) = (Saved::default(), Vec::new());
        Some(Self { path, writer, last, listed, stays, failed: false, ended: false })
    }

    /// Whether the file stays when the daemon ends regularly.
    pub(crate) fn stays(&self) -> bool {
        self.stays
    }

    /// Sets the lists of events that are saved with the settings.
    pub(crate) fn set_listed(&mut self, listed: &[String]) {
        listed.clone_into(&mut self.listed);
    }

    /// Loads the state that a killed daemon left. Returns `None` if there is none. A file that cannot be used is
    /// logged and renamed. Must be called before the daemon filters its system calls.
    pub(crate) fn load(&self) -> Option<Saved> {
        let error = match read(&self.path) {
            Ok(saved) => return saved,
            Err(error) => error,
        };
        let renamed = self.path.with_extension("json.bad");
        let path = self.path.display();
        match fs::rename(&self.path, &renamed) {
            Ok(()) => tracing::warn!(
                "the state of the last daemon is not restored: {error}; {path} is now {}",
                renamed.display()
            ),
            Err(why) => {
                tracing::warn!("the state of the last daemon in {path} is not restored: {error}; {why}");
            }
        }
        None
    }

    /// Writes the state if it changed. Logs the first of several failures.
    pub(crate) fn save(&mut self, engine: &Engine) {
        if self.ended {
            return;
        }
        let saved = Saved { listed: self.listed.clone(), ..saved::settings(engine) };
        if saved == self.last {
            return;
        }
        match self.write(&saved) {
            Ok(()) => (self.last, self.failed) = (saved, false),
            Err(error) => {
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::warn!("cannot save the state in {}: {error}", self.path.display());
                }
            }
        }
    }

    fn write(&mut self, saved: &Saved) -> io::Result<()> {
        Ok(self.writer.write(&serde_json::to_vec(saved)?)?)
    }

    /// Removes the file, because the daemon ends regularly, unless it stays. Later changes are not saved.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        if !self.stays {
            self.forget();
        }
    }

    /// Removes the file of an earlier daemon.
    pub(crate) fn forget(&mut self) {
        if let Err(error) = self.writer.remove() {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not a regular file")]
    NotRegular,
    #[error("another user owns it or can write it")]
    NotOurs,
    #[error(transparent)]
    Content(#[from] SavedError),
}

/// Reads a state file; `None` if there is no file.
fn read(path: &Path) -> Result<Option<Saved>, LoadError> {
    // The open must not block, whatever kind of file is there.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match fs::File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return Err(LoadError::NotRegular);
        }
        Err(error) => return Err(error.into()),
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(LoadError::NotRegular);
    }
    if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(LoadError::NotOurs);
    }
    // Only root may read the file, also after it is renamed.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    let mut text = Vec::new();
    file.take(SAVED_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok(Some(Saved::parse(&text)?))
}

/// The file name for a mount point. Different paths have different names.
fn name(at: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let hex = |digit: u8| char::from_digit(u32::from(digit), 16).unwrap_or('0');
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
    fn every_place_has_its_own_file() {
        assert_eq!(name(Path::new("/run/tracer/tracing")), "-run-tracer-tracing.json");
        assert_eq!(name(Path::new("/a-b/ü.")), "-a%2db-%c3%bc%2e.json");
    }

    #[test]
    fn an_invalid_file_is_set_aside() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = std::env::temp_dir().join(format!("tracer-state-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let writer = StateWriter::default();
        let path = dir.join("x.json");
        let (last, listed) = (Saved::default(), Vec::new());
        let state_file = StateFile { path, writer, last, listed, stays: false, failed: false, ended: false };
        let renamed = dir.join("x.json.bad");
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o777;
        // A user's umask may let the group write new files.
        let write = |text: &str| {
            fs::write(&state_file.path, text).unwrap();
            fs::set_permissions(&state_file.path, fs::Permissions::from_mode(0o644)).unwrap();
        };
        assert_eq!(state_file.load(), None);
        assert!(!renamed.exists(), "nothing was there");
        // The second file replaces the first one under the new name.
        for text in ["{\"instances\":[{\"page\":16}]}", "not JSON"] {
            write(text);
            assert_eq!(state_file.load(), None, "{text}");
            assert_eq!(fs::read_to_string(&renamed).unwrap(), text);
            assert!(!state_file.path.exists() && mode(&renamed) == 0o600, "{text}");
        }
        fs::write(&state_file.path, "{}").unwrap();
        fs::set_permissions(&state_file.path, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(state_file.load(), None, "anybody could have written it");
        fs::remove_file(&renamed).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &state_file.path).unwrap();
        assert_eq!(state_file.load(), None, "a link");
        assert!(fs::symlink_metadata(&renamed).unwrap().is_symlink());
        fs::remove_file(&renamed).unwrap();
        mknodat(CWD, &state_file.path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(state_file.load(), None, "a FIFO without a writer");
        write("{\"names\":7}");
        assert_eq!(state_file.load().map(|saved| saved.names), Some(7));
        fs::remove_dir_all(&dir).unwrap();
    }
}
