//! Where events are made and emitted: in a mirror that runs, by its files ([`super::Files`]), or in one of this process
//! (`RefCell<Engine>`). The functions of the API are the same for both.

use std::fmt;

use rustix::io::Errno;

use super::dynevent::DyneventType;
use crate::event::{Field, FieldClass, Format, synthetic::Value};

/// A place of events.
pub trait Place {
    /// Runs a finished command of a kind.
    ///
    /// # Errors
    /// The kernel's for that command.
    fn run(&self, kind: DyneventType, command: &str) -> Result<(), Errno>;

    /// Takes hold of an event in an instance, or in the top one.
    ///
    /// # Errors
    /// `ENOENT` without such an instance, `EINVAL` without such an event.
    fn hold(&self, instance: Option<&str>, system: &str, event: &str) -> Result<Box<dyn Held + '_>, Errno>;

    /// Turns events of an instance on or off; names match as they stand, and none means all.
    ///
    /// # Errors
    /// `ENOENT` without such an instance, `EINVAL` when no event is meant.
    fn set_events(
        &self,
        instance: Option<&str>,
        system: Option<&str>,
        event: Option<&str>,
        on: bool,
    ) -> Result<(), Errno>;
}

/// An event that somebody holds; dropped, it is given back.
pub trait Held: fmt::Debug {
    /// Whether it is on, and no trigger has turned it off.
    ///
    /// # Errors
    /// `ENODEV` when it is gone.
    fn is_on(&self) -> Result<bool, Errno>;

    /// Whether its instance records at the moment.
    ///
    /// # Errors
    /// What reading that comes to.
    fn is_recording(&self) -> Result<bool, Errno>;

    /// The fields of a synthetic event.
    ///
    /// # Errors
    /// `EINVAL` for an event that is not synthetic, `ENODEV` when it is gone.
    fn fields(&self) -> Result<Vec<SynthField>, Errno>;

    /// Traces a synthetic event, where it is on.
    ///
    /// # Errors
    /// `EINVAL` for an event that is not synthetic, for values that are not its fields', and where nothing is recorded;
    /// `ENODEV` when it is gone.
    fn emit(&self, values: &[Value<'_>]) -> Result<(), Errno>;
}

/// What a synthetic event's field takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A number.
    Number,
    /// A text of a given length.
    Text,
    /// A text of any length.
    DynText,
    /// A stack of addresses.
    Stack,
}

/// A field of a synthetic event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynthField {
    /// Name.
    pub name: String,
    /// What it takes.
    pub kind: FieldKind,
}

/// Fields by an event's format.
pub(super) fn fields(format: &Format) -> Vec<SynthField> {
    let kind = |field: &Field| match field.class {
        FieldClass::StaticString => FieldKind::Text,
        FieldClass::DynString => FieldKind::DynText,
        _ if field.is_data_loc() => FieldKind::Stack,
        _ => FieldKind::Number,
    };
    format.fields.iter().map(|field| SynthField { name: field.name.clone(), kind: kind(field) }).collect()
}

/// A command on one line, for files that take lines: whitespace is whitespace to the kernel's splitting of commands, and
/// what would begin a comment is in no definition that the kernel takes.
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
