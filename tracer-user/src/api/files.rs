//! Access to the events of a running mirror or of the kernel's tracefs, through their files.

use std::{
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{dynevent::DyneventType, wire};
use crate::event::{
    Field, FieldClass, Format,
    synthetic::{SYSTEM, Value},
};

/// The mount point of a mirror or of tracefs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    root: PathBuf,
}

/// An event of an instance. An open file prevents the removal of the instance. If the event is deleted, further calls
/// fail with `ENODEV`.
#[derive(Debug)]
pub(super) struct OpenEvent {
    dir: PathBuf,
    enable: File,
    /// Accepts values; synthetic events only.
    values: Option<File>,
}

impl OpenEvent {
    /// Whether it is enabled, and no trigger has disabled it; `ENODEV` if it was deleted.
    pub(super) fn is_on(&self) -> Result<bool, Errno> {
        let mut state = [0];
        self.enable.read_exact_at(&mut state, 0).map_err(|error| errno(&error))?;
        Ok(state == *b"1")
    }

    /// Whether its instance records at the moment.
    pub(super) fn is_recording(&self) -> Result<bool, Errno> {
        // The event's directory is INSTANCE/events/SYSTEM/EVENT.
        let instance = self.dir.ancestors().nth(3).ok_or(Errno::INVAL)?;
        Ok(read(&instance.join("tracing_on"))?.starts_with('1'))
    }

    /// The fields of a synthetic event; `EINVAL` for an event that is not synthetic, `ENODEV` if it was deleted.
    pub(super) fn fields(&self) -> Result<Vec<SynthField>, Errno> {
        if self.values.is_none() {
            return Err(Errno::INVAL);
        }
        let text = read(&self.dir.join("format"))?;
        Format::parse(SYSTEM, &text).map(|format| fields(&format)).map_err(|_| Errno::IO)
    }

    /// Emits a synthetic event, if it is enabled. `EINVAL` for an event that is not synthetic, for values that do not
    /// match its fields, and while the instance does not record; `ENODEV` if it was deleted.
    pub(super) fn emit(&self, values: &[Value<'_>]) -> Result<(), Errno> {
        let mut file = self.values.as_ref().ok_or(Errno::INVAL)?;
        let mut bytes = Vec::new();
        for value in values {
            wire::encode(&mut bytes, value);
        }
        if bytes.is_empty() {
            // An empty write has no effect, but every event has fields.
            return if self.is_on()? { Err(Errno::INVAL) } else { Ok(()) };
        }
        let done = file.write(&bytes).map_err(|error| errno(&error))?;
        if done < bytes.len() { Err(Errno::TOOBIG) } else { Ok(()) }
    }
}

/// Reads a file of an event; `ENODEV` if it does not exist.
fn read(file: &Path) -> Result<String, Errno> {
    std::fs::read_to_string(file).map_err(|error| match errno(&error) {
        Errno::NOENT => Errno::NODEV,
        other => other,
    })
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Writes to a file without truncating it first.
fn append(file: &Path, text: &str) -> Result<(), Errno> {
    let mut file = File::options().append(true).open(file).map_err(|error| errno(&error))?;
    // A file of the mirror runs one write as one command.
    let done = file.write(text.as_bytes()).map_err(|error| errno(&error))?;
    if done < text.len() { Err(Errno::INVAL) } else { Ok(()) }
}

/// Checks that a name is one component of a path.
fn component(name: &str) -> Option<&str> {
    let plain = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
    plain.then_some(name)
}

impl Files {
    /// Accesses the events below a directory such as `/sys/kernel/tracing`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn instance(&self, name: Option<&str>) -> Result<PathBuf, Errno> {
        let Some(name) = name else { return Ok(self.root.clone()) };
        let dir = self.root.join("instances").join(component(name).ok_or(Errno::NOENT)?);
        if dir.is_dir() { Ok(dir) } else { Err(Errno::NOENT) }
    }

    /// Runs a finished command of a kind.
    pub(super) fn run(&self, kind: DyneventType, command: &str) -> Result<(), Errno> {
        let file = match kind {
            DyneventType::Synth => "synthetic_events",
            DyneventType::Kprobe => "kprobe_events",
        };
        append(&self.root.join(file), &line(command)?)
    }

    /// Opens an event of an instance; `None` names the top instance. `ENOENT` if the instance does not exist,
    /// `EINVAL` if the event does not exist.
    pub(super) fn open(&self, instance: Option<&str>, system: &str, event: &str) -> Result<OpenEvent, Errno> {
        let names = component(system).zip(component(event)).ok_or(Errno::INVAL)?;
        let dir = self.instance(instance)?.join("events").join(names.0).join(names.1);
        let enable = File::open(dir.join("enable")).map_err(|error| match errno(&error) {
            Errno::NOENT => Errno::INVAL,
            other => other,
        })?;
        let values = match File::options().write(true).open(dir.join("synth_event_trace")) {
            Ok(file) => Some(file),
            Err(error) if errno(&error) == Errno::NOENT => None,
            Err(error) => return Err(errno(&error)),
        };
        Ok(OpenEvent { dir, enable, values })
    }

    /// Enables or disables events of an instance. Names match literally; `None` matches all. `ENOENT` if the instance
    /// does not exist, `EINVAL` if no event matches.
    pub(super) fn set_events(
        &self,
        instance: Option<&str>,
        system: Option<&str>,
        event: Option<&str>,
        on: bool,
    ) -> Result<(), Errno> {
        let (system, event) = (system.unwrap_or("*"), event.unwrap_or("*"));
        if [system, event].iter().any(|name| name.contains([':', '!', ' ', '\t', '\n', '\0'])) {
            return Err(Errno::INVAL);
        }
        let file = self.instance(instance)?.join("set_event");
        append(&file, &format!("{}{system}:{event}\n", if on { "" } else { "!" }))
    }
}

/// The kind of value of a synthetic event's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldKind {
    Number,
    /// A text of fixed length.
    Text,
    /// A text of variable length.
    DynText,
    Stack,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SynthField {
    pub(super) name: String,
    pub(super) kind: FieldKind,
}

fn fields(format: &Format) -> Vec<SynthField> {
    let kind = |field: &Field| match field.class {
        FieldClass::StaticString => FieldKind::Text,
        FieldClass::DynString => FieldKind::DynText,
        _ if field.is_data_loc() => FieldKind::Stack,
        _ => FieldKind::Number,
    };
    format.fields.iter().map(|field| SynthField { name: field.name.clone(), kind: kind(field) }).collect()
}

/// Makes a command fit on one line. Whitespace of any kind separates words, so newlines become blanks. A command with
/// a `#` would be cut there, and no valid definition has one.
fn line(command: &str) -> Result<String, Errno> {
    if command.contains(['#', '\0']) {
        return Err(Errno::INVAL);
    }
    Ok(command.replace(['\n', '\r'], " ") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_root() {
        for name in ["", ".", "..", "a/b", "../x", "a\0"] {
            assert_eq!(component(name), None, "{name:?}");
        }
        let files = Files::at("/nonexistent");
        assert_eq!(files.open(Some("../.."), "a", "b").map(drop), Err(Errno::NOENT));
        assert_eq!(files.open(None, "..", "b").map(drop), Err(Errno::INVAL));
        assert_eq!(files.set_events(None, Some("a"), Some("b c:d"), true), Err(Errno::INVAL));
    }

    #[test]
    fn a_command_stays_one_command() {
        assert_eq!(line("p:a/b do_x\n-:other/event"), Ok("p:a/b do_x -:other/event\n".to_owned()));
        assert_eq!(line("p:a/b do_x # y"), Err(Errno::INVAL));
        assert_eq!(line("p:a/b do_x\0"), Err(Errno::INVAL));
    }
}
