//! Events that programs bring: `program_events` names the files, and each of their events is then an event like any other.

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    attach::FilePlace,
    engine::{
        facts::Facts,
        hooks::AttachPlan,
        programs::{self, Error},
        registry::{
            catalogue::Made,
            table::{EventChanges, EventTable},
        },
    },
    event::{EventId, Format, program},
    kernel::opened::{Identity, OpenedFile},
    lang::facts::{FileRequest, Files},
    render::Printer,
};

/// The programs that brought events.
#[derive(Debug, Default)]
pub struct ProgramEvents {
    all: Vec<Program>,
}

#[derive(Debug)]
struct Program {
    path: Vec<u8>,
    /// The file that was read.
    file: Arc<OpenedFile>,
    /// Numbers of the events and where they are.
    events: Vec<(EventId, FilePlace)>,
}

impl ProgramEvents {
    /// The attach plan of a program's event; none for other events.
    pub(in crate::engine) fn chosen(&self, event: EventId, format: &Format) -> Option<AttachPlan> {
        let mut events = self.all.iter().flat_map(|program| &program.events);
        let (_, place) = events.find(|(known, _)| *known == event)?;
        Some(programs::chosen(format, place))
    }

    /// What `program_events` reads: a path a line.
    pub fn listing(&self) -> Vec<u8> {
        self.all.iter().flat_map(|program| [&program.path[..], b"\n"]).flatten().copied().collect()
    }

    /// Paths that bring the programs again, and which files they led to.
    pub(in crate::engine) fn saved(&self) -> impl Iterator<Item = (&[u8], Identity)> {
        self.all.iter().map(|program| (&program.path[..], program.file.identity()))
    }
}

/// A line of `program_events`.
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

/// The files that lines written to `program_events` name, to be opened before the lines are applied.
pub fn program_files(written: &[u8]) -> Vec<FileRequest> {
    let added = |line| match line {
        Line::Adds(path) if path.starts_with(b"/") => Some(programs::wanted(path)),
        _ => None,
    };
    lines(written).filter_map(added).collect()
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl ProgramEvents {
    /// Applies what is written to `program_events`: a path adds its events, a path after `-` removes them.
    ///
    /// # Errors
    /// Those of [`EventRegistry::apply_programs`](super::EventRegistry::apply_programs).
    pub(super) fn apply(
        &mut self,
        written: &[u8],
        (files, facts): (&Files, &Facts),
        is_busy: &dyn Fn(EventId) -> bool,
        (table, changes): (&mut EventTable, &mut EventChanges),
    ) -> Result<(), Errno> {
        lines(written).try_for_each(|line| match line {
            Line::Removes(path) => self.remove(path, is_busy, (table, changes)),
            Line::Adds(path) => self.add(path, (files, facts), is_busy, (table, changes)),
        })
    }

    /// Removes the events of all programs.
    ///
    /// # Errors
    /// `EBUSY` when one of them is busy; all stay then.
    pub(super) fn clear(
        &mut self,
        is_busy: &dyn Fn(EventId) -> bool,
        (table, changes): (&mut EventTable, &mut EventChanges),
    ) -> Result<(), Errno> {
        let mut events = self.all.iter().flat_map(|program| &program.events);
        if events.any(|(event, _)| is_busy(*event)) {
            return Err(Errno::BUSY);
        }
        let paths: Vec<Vec<u8>> = self.all.iter().map(|program| program.path.clone()).collect();
        paths.iter().try_for_each(|path| self.remove(path, is_busy, (table, changes)))
    }

    fn add(
        &mut self,
        path: &[u8],
        (files, facts): (&Files, &Facts),
        is_busy: &dyn Fn(EventId) -> bool,
        (table, changes): (&mut EventTable, &mut EventChanges),
    ) -> Result<(), Errno> {
        if !path.starts_with(b"/") {
            return Err(Errno::INVAL);
        }
        let file = files.get(&programs::wanted(path))?.file;
        if let Some(known) = self.all.iter().find(|program| program.path == path) {
            if known.file == file {
                return Ok(());
            }
            // It was built anew.
            self.remove(path, is_busy, (table, changes))?;
        }
        let (file, described) = programs::read(path, files).map_err(|error| {
            tracing::warn!("program_events: {error}");
            match error {
                Error::File(_, error) => errno(&error),
                Error::Program(..) | Error::Filter(..) => Errno::INVAL,
                Error::TooMany => Errno::NOSPC,
            }
        })?;
        let mut events = Vec::with_capacity(described.len());
        let added = described.into_iter().try_for_each(|one| {
            let id = table.free_id()?;
            let place = programs::place(path, &file, &one);
            let format = Format { id, ..one.format };
            let made = Made {
                text: program::format_text(&format),
                printer: Printer::compile(&format, facts),
                format,
            };
            events.push((table.add(made)?, place));
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

    fn remove(
        &mut self,
        path: &[u8],
        is_busy: &dyn Fn(EventId) -> bool,
        (table, changes): (&mut EventTable, &mut EventChanges),
    ) -> Result<(), Errno> {
        let at = self.all.iter().position(|program| program.path == path).ok_or(Errno::NOENT)?;
        let program = self.all.get(at).ok_or(Errno::NOENT)?;
        if program.events.iter().any(|(event, _)| is_busy(*event)) {
            return Err(Errno::BUSY);
        }
        for (event, _) in self.all.remove(at).events {
            table.remove(event, changes);
        }
        Ok(())
    }
}
