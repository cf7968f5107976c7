//! The set of existing synthetic events.

use std::sync::Arc;

use rustix::io::Errno;

use super::error::Refusal;
use super::{File, Request, read};
use crate::event::dynamic::latin1;
use crate::event::synthetic::{Event, SYSTEM};

/// An event of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defined {
    /// The event.
    pub event: Arc<Event>,
    /// Its serial number among all dynamic events, in the order of definition.
    pub serial: u64,
    /// Whether an action of a histogram generates it.
    pub referenced: bool,
    /// Whether it is enabled or otherwise in use, which prevents its deletion.
    pub busy: bool,
}

/// The effect of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// No change.
    Nothing,
    /// An event was added at the end of the set.
    Added(Arc<Event>),
    /// An event was deleted.
    Deleted(Arc<Event>),
}

/// All synthetic events, in the order of definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    events: Vec<Defined>,
    serial: u64,
}

impl Set {
    /// The events.
    pub fn events(&self) -> &[Defined] {
        &self.events
    }

    /// Finds an event by name.
    pub fn find(&self, name: &str) -> Option<&Arc<Event>> {
        self.events.iter().map(|defined| &defined.event).find(|event| event.name == name)
    }

    /// Sets the serial number of the next event.
    pub fn number_from(&mut self, serial: u64) {
        self.serial = serial;
    }

    /// Sets whether an action of a histogram generates an event.
    pub fn set_referenced(&mut self, name: &str, referenced: bool) {
        for defined in self.events.iter_mut().filter(|defined| defined.event.name == name) {
            defined.referenced = referenced;
        }
    }

    /// Sets whether an event is in use.
    pub fn set_busy(&mut self, name: &str, busy: bool) {
        for defined in self.events.iter_mut().filter(|defined| defined.event.name == name) {
            defined.busy = busy;
        }
    }

    /// Content of a file: one line per event.
    pub fn listing(&self, file: File) -> Vec<u8> {
        self.lines(file).flat_map(|(_, line)| line).collect()
    }

    /// The lines of a file, each with its serial number.
    pub fn lines(&self, file: File) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let head = match file {
            File::Synthetic => String::new(),
            File::Dynamic => format!("s:{SYSTEM}/"),
        };
        let line = move |event: &Event| [head.as_bytes(), &event.read_back()].concat();
        self.events.iter().map(move |defined| (defined.serial, line(&defined.event)))
    }

    /// Applies a line.
    ///
    /// Deletions through `dynamic_events` concern all kinds of events; the caller uses [`Set::delete`] for them.
    ///
    /// # Errors
    /// If the kernel would reject the line.
    pub fn apply(&mut self, line: &[u8], file: File) -> Result<Change, Refusal> {
        match read(line, file, &|name| self.find(name).is_some())? {
            Request::Nothing => Ok(Change::Nothing),
            Request::Define(event) => {
                let event = Arc::new(event);
                let (added, serial) = (Arc::clone(&event), self.serial);
                self.events.push(Defined { event, serial, referenced: false, busy: false });
                self.serial += 1;
                Ok(Change::Added(added))
            }
            Request::Delete(name) => self
                .delete(&latin1(&name))
                .map(Change::Deleted)
                .map_err(|errno| Refusal::unlogged(line, errno)),
        }
    }

    /// Deletes an event.
    ///
    /// # Errors
    /// ENOENT if no event has this name, EBUSY if the event is in use.
    pub fn delete(&mut self, name: &str) -> Result<Arc<Event>, Errno> {
        let mut events = self.events.iter().enumerate();
        let (at, defined) = events.find(|(_, defined)| defined.event.name == name).ok_or(Errno::NOENT)?;
        if defined.busy || defined.referenced {
            return Err(Errno::BUSY);
        }
        Ok(self.events.remove(at).event)
    }

    /// Whether a histogram generates one of the events. Then the deletion of all events removes none
    /// (`synth_event_is_busy()`).
    ///
    /// An event that is only enabled stops the deletion at that event.
    pub fn is_held(&self) -> bool {
        self.events.iter().any(|defined| defined.referenced)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ErrorKind;
    use super::*;

    fn refused(line: &str, file: File) -> String {
        let refusal = Set::default().apply(line.as_bytes(), file).unwrap_err();
        String::from_utf8(refusal.log_entry().unwrap_or_default()).unwrap()
    }

    #[test]
    fn lines_define_and_delete() {
        let mut set = Set::default();
        set.apply(b" wake u64 lat; char comm[16]; unsigned  long[] s", File::Synthetic).unwrap();
        set.apply(b"s:synthetic/other pid_t pid u8 x;; ;", File::Dynamic).unwrap();
        let text = String::from_utf8(set.listing(File::Synthetic)).unwrap();
        assert_eq!(text, "wake\tu64 lat; char[16] comm; unsigned long[] s\nother\tpid_t pid; u8 x\n");
        assert!(set.listing(File::Dynamic).starts_with(b"s:synthetic/wake\tu64 lat"));
        assert_eq!(set.apply(b"wake u8 a", File::Synthetic).unwrap_err().errno(), Errno::EXIST);
        set.set_busy("wake", true);
        assert_eq!(set.apply(b"!wake u64 lat", File::Synthetic).unwrap_err().errno(), Errno::BUSY);
        assert!(!set.is_held());
        set.set_referenced("wake", true);
        assert!(set.is_held());
        assert!(matches!(set.apply(b"!other", File::Synthetic), Ok(Change::Deleted(_))));
        assert_eq!(set.apply(b"!other", File::Synthetic).unwrap_err().errno(), Errno::NOENT);
        assert_eq!(set.apply(b"  ", File::Synthetic), Ok(Change::Nothing));
    }

    #[test]
    fn errors_have_a_caret() {
        assert_eq!(
            refused("e u64 x; foo y", File::Synthetic),
            "synthetic_events: error: Invalid type\n  Command: e u64 x; foo y\n                    ^\n"
        );
        for (line, kind) in [
            ("1e u64 x", ErrorKind::BadName),
            ("e u64", ErrorKind::InvalidCommand),
            ("e", ErrorKind::InvalidCommand),
            ("e u64 x; u64", ErrorKind::InvalidField),
            ("e unsigned long", ErrorKind::IncompleteType),
            ("e char x[300]", ErrorKind::InvalidArraySpec),
            ("e char[300] x", ErrorKind::InvalidType),
            ("e u64 x[2]", ErrorKind::InvalidType),
            ("e u64 1x", ErrorKind::BadName),
        ] {
            let refusal = Set::default().apply(line.as_bytes(), File::Synthetic).unwrap_err();
            assert_eq!(refusal.kind(), Some(kind), "{line}");
        }
        let many = format!("e {}", "u8 x;".repeat(65));
        let refusal = Set::default().apply(many.as_bytes(), File::Synthetic).unwrap_err();
        assert_eq!(refusal.kind(), Some(ErrorKind::TooManyFields));
        assert!(refused("s:a/b u8 x", File::Dynamic).contains("s or -:[synthetic/]<name>"));
        assert_eq!(refused("s", File::Dynamic), "");
    }
}
