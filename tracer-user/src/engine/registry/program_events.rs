//! Events of programs: `program_events` names the files, and each of their events is then an event like any other.

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    attach::FilePlace,
    engine::{
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        hooks::AttachPlan,
        programs::{self, Error},
        registry::{
            catalogue::DefinedEvent,
            table::{DefinitionOwner, EventChanges, EventTable},
        },
    },
    event::{EventId, Format, program::Described},
    kernel::opened::{Identity, OpenedFile},
    lang::facts::{FileRequest, Files},
    render::Printer,
};

/// The programs with events.
#[derive(Debug, Default)]
pub struct ProgramEvents {
    all: Vec<Program>,
}

#[derive(Debug)]
struct Program {
    path: Vec<u8>,
    /// The file that was read.
    file: Arc<OpenedFile>,
    /// Numbers and locations of the events.
    events: Vec<(EventId, FilePlace)>,
}

impl ProgramEvents {
    /// The attach plan of a program's event; `None` for other events.
    pub(crate) fn chosen(&self, event: EventId, format: &Format) -> Option<AttachPlan> {
        let mut events = self.all.iter().flat_map(|program| &program.events);
        let (_, place) = events.find(|(known, _)| *known == event)?;
        Some(programs::chosen(format, place))
    }

    /// The content of `program_events`: one path per line.
    pub fn listing(&self) -> Vec<u8> {
        self.all.iter().flat_map(|program| [&program.path[..], b"\n"]).flatten().copied().collect()
    }

    /// Paths that restore the programs, with the identities of their files.
    pub(crate) fn saved(&self) -> impl Iterator<Item = (&[u8], Identity)> {
        self.all.iter().map(|program| (&program.path[..], program.file.identity()))
    }
}

enum Line<'a> {
    Adds(&'a [u8]),
    Removes(&'a [u8]),
}

fn lines(written: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let all = written.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    all.filter_map(|line| match line {
        [] => None,
        [b'-', path @ ..] => Some(Line::Removes(path.trim_ascii())),
        path => Some(Line::Adds(path)),
    })
}

/// The files named in a write to `program_events`, so that they can be opened before the lines are applied.
pub fn program_files(written: &[u8]) -> Vec<FileRequest> {
    let added = |line| match line {
        Line::Adds(path) if path.starts_with(b"/") => Some(programs::wanted(path)),
        _ => None,
    };
    lines(written).filter_map(added).collect()
}

/// An event of a program with an id, a format text and a printer.
fn made(event: Described, id: u16, facts: &Facts) -> DefinedEvent {
    let format = Format { id, ..event.format };
    DefinedEvent { text: format.text_with_lengths(), printer: Printer::compile(&format, facts), format }
}

impl ProgramEvents {
    /// As [`EventRegistry::apply_programs`](super::EventRegistry::apply_programs), for text.
    pub(super) fn apply(
        &mut self,
        written: &[u8],
        (files, facts, owner): (&Files, &Facts, DefinitionOwner<'_>),
        is_busy: &dyn Fn(EventId) -> bool,
        (table, changes): (&mut EventTable, &mut EventChanges),
    ) -> Result<(), CommandError> {
        lines(written).try_for_each(|line| match line {
            Line::Removes(path) => self.remove(path, is_busy, (table, changes)),
            Line::Adds(path) => self.add(path, (files, facts, owner), is_busy, (table, changes)),
        })
    }

    /// Removes the events of all programs, or none with `EBUSY` if one is in use.
    pub(super) fn clear(
        &mut self,
        is_busy: &dyn Fn(EventId) -> bool,
        (table, changes): (&mut EventTable, &mut EventChanges),
    ) -> Result<(), CommandError> {
        let mut events = self.all.iter().flat_map(|program| &program.events);
        if events.any(|(event, _)| is_busy(*event)) {
            return Err(ErrorKind::Busy.into());
        }
        let paths: Vec<Vec<u8>> = self.all.iter().map(|program| program.path.clone()).collect();
        paths.iter().try_for_each(|path| self.remove(path, is_busy, (table, changes)))
    }

    fn add(
        &mut self,
        path: &[u8],
        (files, facts, owner): (&Files, &Facts, DefinitionOwner<'_>),
        is_busy: &dyn Fn(EventId) -> bool,
        (table, changes): (&mut EventTable, &mut EventChanges),
    ) -> Result<(), CommandError> {
        if !path.starts_with(b"/") {
            return Err(ErrorKind::Invalid.into());
        }
        let file = files.get(&programs::wanted(path))?.file;
        if let Some(known) = self.all.iter().find(|program| program.path == path) {
            if known.file == file {
                return Ok(());
            }
            // The file was rebuilt.
            self.remove(path, is_busy, (table, changes))?;
        }
        let (file, described) = programs::read(path, files).map_err(|error| {
            tracing::warn!("program_events: {error}");
            match error {
                Error::File(_, error) => {
                    CommandError::from(Errno::from_io_error(&error).unwrap_or(Errno::IO))
                }
                Error::Program(..) => ErrorKind::Invalid.into(),
                Error::TooMany => ErrorKind::NoIds.into(),
            }
        })?;
        let mut events = Vec::with_capacity(described.len());
        let added = described.into_iter().try_for_each(|one| {
            let place = programs::place(path, &file, &one);
            let made = made(one, table.free_id()?, facts);
            let charge = owner.charge(made.text.len())?;
            let event = table.events_mut().add(made)?;
            table.keep_charge(event, charge);
            events.push((event, place));
            Ok(())
        });
        if let Err(errno) = added {
            for (event, _) in events {
                table.remove(event, changes);
            }
            return Err(errno);
        }
        self.all.push(Program { path: path.to_owned(), file, events });
        Ok(())
    }

    /// As [`EventRegistry::add_program`](super::EventRegistry::add_program).
    pub(super) fn add_alike(
        &mut self,
        path: &[u8],
        facts: &Facts,
        table: &mut EventTable,
    ) -> Result<Vec<EventId>, Error> {
        let (file, described) = programs::read(path, &Files::at_once())?;
        let mut events = Vec::with_capacity(described.len());
        for one in described {
            let place = programs::place(path, &file, &one);
            let id = table.free_id().map_err(|_| Error::TooMany)?;
            let event = table.events_mut().add_alike(made(one, id, facts)).map_err(|_| Error::TooMany)?;
            events.push((event, place));
        }
        let added = events.iter().map(|(event, _)| *event).collect();
        self.all.push(Program { path: path.to_owned(), file, events });
        Ok(added)
    }

    fn remove(
        &mut self,
        path: &[u8],
        is_busy: &dyn Fn(EventId) -> bool,
        (table, changes): (&mut EventTable, &mut EventChanges),
    ) -> Result<(), CommandError> {
        let known = self.all.iter().enumerate().find(|(_, program)| program.path == path);
        let (at, program) = known.ok_or(ErrorKind::NotFound)?;
        if program.events.iter().any(|(event, _)| is_busy(*event)) {
            return Err(ErrorKind::Busy.into());
        }
        for (event, _) in self.all.remove(at).events {
            table.remove(event, changes);
        }
        Ok(())
    }
}
