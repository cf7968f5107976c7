//! Events that programs bring along, in the mirror: `program_events` names the files, and each of their events is one like any
//! other from then on.

use std::{
    ffi::OsStr,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

use rustix::io::Errno;

use super::{catalogue::Made, mirror::Mirror};
use crate::{
    attach::FilePlace,
    control::{
        hooks::Chosen,
        programs::{self, Error},
    },
    event::{Format, program},
    render::Printer,
};

/// The programs whose events there are.
#[derive(Debug, Default)]
pub(super) struct Programs {
    all: Vec<Program>,
}

#[derive(Debug)]
struct Program {
    path: Vec<u8>,
    /// Device, inode, size and time of change: what tells whether the file is still the one that was read.
    file: [u64; 4],
    /// Numbers of the events and where they are.
    events: Vec<(u32, FilePlace)>,
}

impl Programs {
    /// Where a program's event hangs; none for an event of no program.
    pub(super) fn chosen(&self, event: u32, format: &Format) -> Option<Chosen> {
        let mut events = self.all.iter().flat_map(|program| &program.events);
        let (_, place) = events.find(|(number, _)| *number == event)?;
        Some(programs::chosen(format, place))
    }
}

fn identity(path: &Path) -> Result<[u64; 4], Errno> {
    let file = std::fs::metadata(path).map_err(|error| errno(&error))?;
    Ok([file.dev(), file.ino(), file.size(), file.mtime_nsec() as u64 ^ (file.mtime() as u64) << 32])
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Mirror {
    /// What `program_events` reads: a path a line.
    pub fn programs(&self) -> Vec<u8> {
        self.programs.all.iter().flat_map(|program| [&program.path[..], b"\n"]).flatten().copied().collect()
    }

    /// Takes what is written to `program_events`: a path brings its events, a path behind `-` takes them away.
    ///
    /// # Errors
    /// Of the first line that cannot be done: `EINVAL` for a file without events and a path that is not absolute, `EEXIST` for an
    /// event whose name is taken, `EBUSY` for events that are on, and what opening the file says.
    pub fn bring(&mut self, written: &[u8]) -> Result<(), Errno> {
        self.touch();
        for line in written.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
            match line {
                [] => {}
                [b'-', path @ ..] => self.take_program(path.trim_ascii())?,
                path => self.add_program(path)?,
            }
        }
        Ok(())
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

    fn add_program(&mut self, path: &[u8]) -> Result<(), Errno> {
        let file_path = Path::new(OsStr::from_bytes(path));
        if !file_path.is_absolute() {
            return Err(Errno::INVAL);
        }
        let file = identity(file_path)?;
        if let Some(known) = self.programs.all.iter().find(|program| program.path == path) {
            if known.file == file {
                return Ok(());
            }
            // It was built anew.
            self.take_program(path)?;
        }
        let described = programs::read(file_path).map_err(|error| {
            tracing::warn!("program_events: {error}");
            match error {
                Error::File(_, error) => errno(&error),
                Error::Program(..) | Error::Filter(..) => Errno::INVAL,
            }
        })?;
        let mut events = Vec::with_capacity(described.len());
        let added = described.into_iter().try_for_each(|one| {
            let id = self.events.free_id().ok_or(Errno::NOSPC)?;
            let place = programs::place(file_path, &one);
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
        if self.programs.all[at].events.iter().any(|(event, _)| self.is_busy(*event)) {
            return Err(Errno::BUSY);
        }
        for (event, _) in self.programs.all.remove(at).events {
            self.remove_event(event);
        }
        Ok(())
    }
}
