//! Where events are made and emitted: in a mirror that runs, by its files ([`super::Files`]), or in one of this process
//! (`RefCell<Mirror>`). The functions of the API are the same for both.

use std::fmt;

use rustix::io::Errno;

use super::dynevent::DyneventType;

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
pub trait Held: fmt::Debug {}

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
