//! The set of existing dynamic events: additions, deletions and listings (`kernel/trace/trace_dynevent.c` and the
//! registration code of each probe kind).
//!
//! Several probes can share one event if they are of one kind and record the same arguments.

use rustix::io::Errno;

use super::super::Span;
use super::super::ctype::split_once;
use super::super::facts::{Facts, Feature};
use super::super::fetch::{ErrorKind, Stop};
use super::error::{Log, Refusal};
use super::words::Line;
use super::{File, Probe, Request, read, register, request};
use crate::event::dynamic::{Event, Kind, Place, Target};

/// A probe of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defined {
    /// The probe.
    pub probe: Probe,
    /// Its serial number among all dynamic events, in the order of definition.
    pub serial: u64,
    /// Whether its event is enabled or otherwise in use, which prevents its deletion.
    pub busy: bool,
}

/// The effect of a line after it was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// No change.
    Nothing,
    /// A probe was added at the end of the set.
    Added {
        /// Whether the probe is the first of its event.
        new_event: bool,
    },
    /// These probes were deleted.
    Deleted(Vec<Probe>),
}

/// A line that the kernel would reject when it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotApplied {
    /// The error.
    pub refusal: Refusal,
    /// The probes that the line deleted before the error.
    pub deleted: Vec<Probe>,
}

impl From<Refusal> for NotApplied {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, deleted: Vec::new() }
    }
}

/// The effect of a line before it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Planned {
    /// No change.
    Nothing,
    /// Delete probes.
    Delete,
    /// Add a probe.
    Add {
        /// The probe.
        probe: Box<Probe>,
        /// Whether the event is in use.
        busy: bool,
        /// Whether the probe is the first of its event.
        new_event: bool,
    },
}

/// All dynamic events, in the order of definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    probes: Vec<Defined>,
    serial: u64,
}

/// The target of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// The group, if given.
    pub group: Option<&'a [u8]>,
    /// The event.
    pub name: &'a [u8],
}

impl Set {
    /// The probes.
    pub fn probes(&self) -> &[Defined] {
        &self.probes
    }

    /// Sets the serial number of the next probe.
    pub fn number_from(&mut self, serial: u64) {
        self.serial = serial;
    }

    /// Content of a file: one line per probe.
    #[cfg(any(test, feature = "internals"))]
    pub fn listing(&self, file: File) -> Vec<u8> {
        self.lines(file).flat_map(|(_, line)| line).collect()
    }

    /// The lines of a file, each with its serial number.
    pub fn lines(&self, file: File) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let own = self.probes.iter().filter(move |defined| belongs(&defined.probe, file));
        own.map(|defined| (defined.serial, defined.probe.event.read_back()))
    }

    /// Serial number of the first probe that a deletion removes.
    pub fn first_named(&self, line: &Line<'_>, file: File) -> Option<u64> {
        let Named { group, name } = deletion(line)?;
        let words: Vec<&[u8]> = line.words().skip(1).collect();
        let named = |defined: &&Defined| {
            belongs(&defined.probe, file) && defined.probe.event.is_named(group, name, &words)
        };
        self.probes.iter().find(named).map(|defined| defined.serial)
    }

    /// Removes a probe, even if it is in use.
    pub fn remove(&mut self, serial: u64) -> Option<Probe> {
        let at = self.probes.iter().position(|defined| defined.serial == serial)?;
        Some(self.probes.remove(at).probe)
    }

    /// Updates which events are in use, by group and name.
    pub fn set_busy(&mut self, is_busy: impl Fn(&str, &str) -> bool) {
        for defined in &mut self.probes {
            defined.busy = is_busy(&defined.probe.event.group, &defined.probe.event.name);
        }
    }

    /// Applies a line.
    ///
    /// # Errors
    /// If the kernel would reject the line. Deletions before the error in the same line remain done.
    #[cfg(any(test, feature = "internals"))]
    pub fn apply(&mut self, line: &Line<'_>, file: File, facts: &dyn Facts) -> Result<Change, Refusal> {
        let planned = self.plan(line, file, facts)?;
        self.apply_plan(planned, line, file).map_err(|not_applied| not_applied.refusal)
    }

    /// Checks a line and plans its effect. This can take long, because it reads addresses and events from the kernel.
    ///
    /// # Errors
    /// If the kernel would reject the line.
    pub fn plan(&self, line: &Line<'_>, file: File, facts: &dyn Facts) -> Result<Planned, Refusal> {
        match request(line, file) {
            Request::Nothing => Ok(Planned::Nothing),
            Request::Delete => Ok(Planned::Delete),
            Request::Probe => self.check(line, file, facts),
            Request::Synthetic | Request::User | Request::Unknown => Err(super::unknown(line, file, facts)),
        }
    }

    /// Applies the plan of a line. The set must not have changed since the plan was made.
    ///
    /// # Errors
    /// If the kernel would reject the line. Deletions before the error in the same line remain done.
    pub fn apply_plan(
        &mut self,
        planned: Planned,
        line: &Line<'_>,
        file: File,
    ) -> Result<Change, NotApplied> {
        match planned {
            Planned::Nothing => Ok(Change::Nothing),
            Planned::Delete => self.delete(line, file),
            Planned::Add { probe, busy, new_event } => {
                self.probes.push(Defined { probe: *probe, serial: self.serial, busy });
                self.serial += 1;
                Ok(Change::Added { new_event })
            }
        }
    }

    /// Removes all events of a file. This happens when the file is opened with `O_TRUNC`.
    ///
    /// # Errors
    /// EBUSY if one of the events is in use; then none is removed.
    pub fn clear(&mut self, file: File) -> Result<Vec<Probe>, Errno> {
        if self.probes.iter().any(|defined| defined.busy && belongs(&defined.probe, file)) {
            return Err(Errno::BUSY);
        }
        let gone = self.probes.extract_if(.., |defined| belongs(&defined.probe, file));
        Ok(gone.map(|defined| defined.probe).collect())
    }

    fn check(&self, line: &Line<'_>, file: File, facts: &dyn Facts) -> Result<Planned, Refusal> {
        let super::Read { mut probe, log } = read(line, file, facts)?;
        let is_fprobe = probe.event.kind() == Kind::Fprobe;
        // The errno of errors at the registration: for later fprobes there is only one.
        let answer = |errno| {
            if is_fprobe && facts.language().has(Feature::RegistrationErrors) { Errno::INVAL } else { errno }
        };
        let existing = |word: usize, kind| {
            let whole = Span::new(0, line.word(word).len());
            Err(Refusal::in_word(line, &log, word, &Stop::at(answer(Errno::EXIST), kind, whole)))
        };
        self.compare_references(&probe, line)?;
        let event = &probe.event;
        let siblings: Vec<&Defined> = self.of_event(event).collect();
        let first = siblings.first().map(|defined| &defined.probe.event);
        let joined = first.filter(|first| event.kind() != Kind::Eprobe && first.kind() == event.kind());
        let new_event = joined.is_none();
        let busy = siblings.first().is_some_and(|defined| defined.busy);
        if let Some(first) = joined {
            if first.letter() != event.letter() || first.is_exit() != event.is_exit() {
                return existing(0, ErrorKind::DifferentProbeType);
            }
            if let Some(different) = event.first_difference(first) {
                return existing(different + 2, ErrorKind::DifferentArgType);
            }
            if siblings.iter().any(|defined| is_same(&defined.probe, &probe)) {
                return existing(0, ErrorKind::SameProbe);
            }
        } else if !siblings.is_empty() || facts.has_event(&event.group, &event.name) {
            return existing(0, ErrorKind::EventExists);
        }
        if self.is_taken(&probe, facts) {
            return Err(Refusal::unlogged(Errno::EXIST, line, ErrorKind::TracepointTaken));
        }
        register::register(&mut probe, facts)
            .map_err(|errno| not_registered(line, &log, (errno, answer(errno))))?;
        Ok(Planned::Add { probe: Box::new(probe), busy, new_event })
    }

    fn of_event(&self, event: &Event) -> impl Iterator<Item = &Defined> {
        let is_of = move |other: &Event| other.group == event.group && other.name == event.name;
        self.probes.iter().filter(move |defined| is_of(&defined.probe.event))
    }

    /// Whether the tracepoint already has a probe and the kernel allows only one.
    fn is_taken(&self, probe: &Probe, facts: &dyn Facts) -> bool {
        let Target::Tracepoint { name } = &probe.event.target else { return false };
        !facts.language().has(Feature::SharedTracepoints)
            && facts.tracepoint(name).is_some()
            && self.probes.iter().any(|other| other.probe.event.target == probe.event.target)
    }

    /// Checks that all probes of one instruction of a file have the same reference counter.
    fn compare_references(&self, probe: &Probe, line: &Line<'_>) -> Result<(), Refusal> {
        let Target::File { offset, reference, .. } = probe.event.target else { return Ok(()) };
        let differs = self.probes.iter().any(|other| match other.probe.event.target {
            Target::File { offset: o, reference: r, .. } => {
                other.probe.file_identity() == probe.file_identity() && o == offset && r != reference
            }
            _ => false,
        });
        if differs { Err(Refusal::unlogged(Errno::INVAL, line, ErrorKind::ReferenceDiffers)) } else { Ok(()) }
    }

    fn delete(&mut self, line: &Line<'_>, file: File) -> Result<Change, NotApplied> {
        let refused =
            |errno, kind, deleted| Err(NotApplied { refusal: Refusal::unlogged(errno, line, kind), deleted });
        let Some(Named { group, name }) = deletion(line) else {
            return refused(Errno::INVAL, ErrorKind::BadDeletion, Vec::new());
        };
        let words: Vec<&[u8]> = line.words().skip(1).collect();
        let mut gone = Vec::new();
        let mut at = 0;
        while let Some(Defined { probe, busy, .. }) = self.probes.get(at) {
            if !belongs(probe, file) || !probe.event.is_named(group, name, &words) {
                at += 1;
                continue;
            }
            // Only the last probe of an event counts as its user.
            if *busy && self.of_event(&probe.event).count() == 1 {
                return refused(Errno::BUSY, ErrorKind::Busy, gone);
            }
            gone.push(self.probes.remove(at).probe);
        }
        if gone.is_empty() {
            refused(Errno::NOENT, ErrorKind::NoSuchEvent, gone)
        } else {
            Ok(Change::Deleted(gone))
        }
    }
}

/// Parses the target of a deletion of any kind of event; `None` if the line is not a deletion (`dyn_event_release()`).
pub fn deletion<'a>(line: &Line<'a>) -> Option<Named<'a>> {
    let names = match line.word(0) {
        [b'-', b':', names @ ..] => names,
        [b'-', ..] => return None,
        head => split_once(head, |byte| byte == b':')?.1,
    };
    let parts = split_once(names, |byte| byte == b'/');
    let (group, name) = parts.map_or((None, names), |(group, name)| (Some(group), name));
    (group.is_some() || !name.is_empty()).then_some(Named { group, name })
}

/// Whether a file lists a probe.
fn belongs(probe: &Probe, file: File) -> bool {
    match file {
        File::Dynamic => true,
        File::Kprobe => probe.event.kind() == Kind::Kprobe,
        File::Uprobe => probe.event.kind() == Kind::Uprobe,
    }
}

/// Whether two probes of one event are identical: same location, same argument texts.
fn is_same(a: &Probe, b: &Probe) -> bool {
    let place = match (&a.event.target, &b.event.target) {
        (Target::File { offset: x, .. }, Target::File { offset: y, .. }) => {
            a.file_identity() == b.file_identity() && x == y
        }
        // The kernel treats all addresses as the same location.
        (
            Target::Kernel { place: Place::Address(_), .. },
            Target::Kernel { place: Place::Address(_), .. },
        ) => true,
        (x, y) => x == y,
    };
    place && a.event.args.iter().zip(&b.event.args).all(|(x, y)| x.text == y.text)
}

/// The kernel's error for a location that cannot be probed: why, and the errno of the write.
fn not_registered(line: &Line<'_>, log: &Log, (errno, answer): (Errno, Errno)) -> Refusal {
    let kind = match errno {
        Errno::ILSEQ => ErrorKind::InsideInstruction,
        Errno::NOENT => ErrorKind::BadProbeAddress,
        _ => ErrorKind::RegisterFailed,
    };
    let whole = Span::new(0, line.word(1).len());
    Refusal::in_word(line, log, 1, &Stop::at(answer, kind, whole))
}
