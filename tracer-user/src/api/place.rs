//! Access to events: in a running mirror through its files ([`super::Files`]), or in a mirror of this process
//! (`RefCell<Engine>`). The functions of the API are the same for both.

use std::fmt;

use rustix::io::Errno;

use super::dynevent::DyneventType;
use crate::event::{Field, FieldClass, Format, synthetic::Value};

/// Access to the events of a mirror or of tracefs.
pub trait Place {
    /// Runs a finished command of a kind.
    ///
    /// # Errors
    /// The kernel's errors for that command.
    fn run(&self, kind: DyneventType, command: &str) -> Result<(), Errno>;

    /// Acquires an event of an instance; `None` names the top instance.
    ///
    /// # Errors
    /// `ENOENT` if the instance does not exist, `EINVAL` if the event does not exist.
    fn hold(&self, instance: Option<&str>, system: &str, event: &str) -> Result<Box<dyn Held + '_>, Errno>;

    /// Enables or disables events of an instance. Names match literally; `None` matches all.
    ///
    /// # Errors
    /// `ENOENT` if the instance does not exist, `EINVAL` if no event matches.
    fn set_events(
        &self,
        instance: Option<&str>,
        system: Option<&str>,
        event: Option<&str>,
        on: bool,
    ) -> Result<(), Errno>;
}

/// A reference to an event, released when it is dropped.
pub trait Held: fmt::Debug {
    /// Whether it is enabled, and no trigger has disabled it.
    ///
    /// # Errors
    /// `ENODEV` if it was deleted.
    fn is_on(&self) -> Result<bool, Errno>;

    /// Whether its instance records at the moment.
    ///
    /// # Errors
    /// The error of reading `tracing_on`.
    fn is_recording(&self) -> Result<bool, Errno>;

    /// The fields of a synthetic event.
    ///
    /// # Errors
    /// `EINVAL` for an event that is not synthetic, `ENODEV` if it was deleted.
    fn fields(&self) -> Result<Vec<SynthField>, Errno>;

    /// Emits a synthetic event, if it is enabled.
    ///
    /// # Errors
    /// `EINVAL` for an event that is not synthetic, for values that do not match its fields, and while the instance
    /// does not record; `ENODEV` if it was deleted.
    fn emit(&self, values: &[Value<'_>]) -> Result<(), Errno>;
}

/// The kind of value of a synthetic event's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A number.
    Number,
    /// A text of fixed length.
    Text,
    /// A text of variable length.
    DynText,
    /// A stack of addresses.
    Stack,
}

/// A field of a synthetic event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynthField {
    /// Name.
    pub name: String,
    /// The kind of its value.
    pub kind: FieldKind,
}

/// The fields of a format.
pub(super) fn fields(format: &Format) -> Vec<SynthField> {
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
pub(super) fn line(command: &str) -> Result<String, Errno> {
    if command.contains(['#', '\0']) {
        return Err(Errno::INVAL);
    }
    Ok(command.replace(['\n', '\r'], " ") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_stays_one_command() {
        assert_eq!(line("p:a/b do_x\n-:other/event"), Ok("p:a/b do_x -:other/event\n".to_owned()));
        assert_eq!(line("p:a/b do_x # y"), Err(Errno::INVAL));
        assert_eq!(line("p:a/b do_x\0"), Err(Errno::INVAL));
    }
}
