//! Events that programs bring along, in the mirror: `program_events` names the files, and each of their events is one like any
//! other from then on.

use std::sync::Arc;

use rustix::io::Errno;

use crate::{
    attach::FilePlace,
    engine::{
        Engine,
        hooks::AttachPlan,
        programs::{self, Error},
        registry::catalogue::Made,
    },
    event::{EventId, Format, program},
    kernel::opened::{Identity, OpenedFile},
    lang::facts::{FileRequest, Files},
    render::Printer,
};

/// The programs whose events there are.
#[derive(Debug, Default)]
pub(in crate::engine) struct Programs {
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

impl Programs {
    /// Where a program's event hangs; none for an event of no program.
    pub(in crate::engine) fn chosen(&self, event: EventId, format: &Format) -> Option<AttachPlan> {
        let mut events = self.all.iter().flat_map(|program| &program.events);
        let (_, place) = events.find(|(known, _)| *known == event)?;
        Some(programs::chosen(format, place))
    }
}

/// A line of `program_events`.
enum Line<'a> {
    Brings(&'a [u8]),
    Takes(&'a [u8]),
}

fn lines(written: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let all = written.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    all.filter_map(|line| match line {
        [] => None,
        [b'-', path @ ..] => Some(Line::Takes(path.trim_ascii())),
        path => Some(Line::Brings(path)),
    })
}

/// The files that lines written to `program_events` name, to be looked at before they are taken.
pub fn program_files(written: &[u8]) -> Vec<FileRequest> {
    let brings = |line| match line {
        Line::Brings(path) if path.starts_with(b"/") => Some(programs::wanted(path)),
        _ => None,
    };
    lines(written).filter_map(brings).collect()
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Engine {
    /// What `program_events` reads: a path a line.
    pub fn programs(&self) -> Vec<u8> {
        self.programs.all.iter().flat_map(|program| [&program.path[..], b"\n"]).flatten().copied().collect()
    }

    /// Takes what is written to `program_events`: a path brings its events, a path behind `-` takes them away.
    ///
    /// # Errors
    /// Of the first line that cannot be done: `EINVAL` for a file without events and a path that is not absolute, `EEXIST` for an
    /// event whose name is taken, `EBUSY` for events that are on, and what opening the file says. `files` are those of
    /// [`program_files`].
    pub fn bring(&mut self, written: &[u8], files: &Files) -> Result<(), Errno> {
        self.touch();
        lines(written).try_for_each(|line| match line {
            Line::Takes(path) => self.take_program(path),
            Line::Brings(path) => self.add_program(path, files),
        })
    }

    /// The programs as they are to be brought again: paths, and which files they led to.
    pub(in crate::engine) fn lasting_programs(&self) -> impl Iterator<Item = (&[u8], Identity)> {
        self.programs.all.iter().map(|program| (&program.path[..], program.file.identity()))
    }

    /// Takes the events of all programs away.
    ///
    /// # Errors
    /// `EBUSY` when one of them is on; all stay then.
    pub fn bring_none(&mut self) -> Result<(), Errno> {
        self.touch();
        let mut events = self.programs.all.iter().flat_map(|program| &program.events);
        if events.any(|(event, _)| self.is_busy(*event)) {
            return Err(Errno::BUSY);
        }
        let paths: Vec<Vec<u8>> = self.programs.all.iter().map(|program| program.path.clone()).collect();
        paths.iter().try_for_each(|path| self.take_program(path))
    }

    fn add_program(&mut self, path: &[u8], files: &Files) -> Result<(), Errno> {
        if !path.starts_with(b"/") {
            return Err(Errno::INVAL);
        }
        let file = files.get(&programs::wanted(path))?.file;
        if let Some(known) = self.programs.all.iter().find(|program| program.path == path) {
            if known.file == file {
                return Ok(());
            }
            // It was built anew.
            self.take_program(path)?;
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
            let id = self.events.free_id().ok_or(Errno::NOSPC)?;
            let place = programs::place(path, &file, &one);
            let format = Format { id, ..one.format };
            let made = Made {
                text: program::format_text(&format),
                printer: Printer::compile(&format, self.facts.as_ref()),
                format,
            };
            events.push((self.add_event(made)?, place));
            Ok(())
        });
        if let Err(errno) = added {
            for (event, _) in events {
                self.remove_event(event);
            }
            return Err(errno);
        }
        self.programs.all.push(Program { path: path.to_owned(), file, events });
        Ok(())
    }

    fn take_program(&mut self, path: &[u8]) -> Result<(), Errno> {
        let at = self.programs.all.iter().position(|program| program.path == path).ok_or(Errno::NOENT)?;
        let program = self.programs.all.get(at).ok_or(Errno::NOENT)?;
        if program.events.iter().any(|(event, _)| self.is_busy(*event)) {
            return Err(Errno::BUSY);
        }
        for (event, _) in self.programs.all.remove(at).events {
            self.remove_event(event);
        }
        Ok(())
    }
}
