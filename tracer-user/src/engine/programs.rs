//! Events that programs bring along ([`event::program`](crate::event::program)): selected by name, and hung on the places where
//! they hand their records over.

use std::{
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    hooks::AttachPlan,
    probes,
    selection::{self, Selected},
};
use crate::{
    attach::{AttachPoint, FilePlace},
    engine::facts::Facts,
    event::{
        Catalogue, Format,
        program::{Described, ProgramError},
    },
    kernel::opened::OpenedFile,
    lang::{
        facts::{Arch, FileRequest, Files, What},
        filter::FilterError,
    },
    plan::{
        resolve,
        source::{ProgramContext, UserRecord},
    },
};

/// Why a program's events cannot be traced.
#[derive(Debug)]
pub enum Error {
    /// Its file.
    File(PathBuf, std::io::Error),
    /// What is in it.
    Program(PathBuf, ProgramError),
    /// A filter is wrong.
    Filter(String, Box<FilterError>),
    /// There are no more ids.
    TooMany,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Program(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Filter(event, error) => write!(f, "filter of {event}: {error}"),
            Self::TooMany => f.write_str("there are more events than ids for them"),
        }
    }
}

impl std::error::Error for Error {}

/// The program that lines of `program_events` name: what is to be known of it.
pub fn wanted(path: &[u8]) -> FileRequest {
    FileRequest { path: path.to_vec(), what: What::Events }
}

/// A program's file and its events.
///
/// # Errors
/// When it cannot be read or has none.
pub fn read(path: &[u8], files: &Files) -> Result<(Arc<OpenedFile>, Vec<Described>), Error> {
    let named = || Path::new(OsStr::from_bytes(path)).to_owned();
    let found = files.get(&wanted(path)).map_err(|errno| Error::File(named(), errno.into()))?;
    let events = found.notes.unwrap_or(Err(ProgramError::NoEvents)).and_then(|notes| notes.events());
    Ok((found.file, events.map_err(|error| Error::Program(named(), error))?))
}

/// The hook of a program's event.
pub fn chosen(format: &Format, place: &FilePlace) -> AttachPlan {
    AttachPlan {
        hook: ProgramContext::UserRecord(UserRecord::of(format, Arch::native())),
        via: AttachPoint::Uprobe(place.clone()),
        reason: String::new(),
    }
}

/// Where a program's event is.
pub fn place(path: &[u8], file: &Arc<OpenedFile>, event: &Described) -> FilePlace {
    let (path, file) = (path.to_vec(), Arc::clone(file));
    FilePlace { file, path, offset: event.offset, reference: event.reference }
}

/// The programs' events that selections name, with the ids behind those of so many others, and the selections that name none of
/// them. Without any selection all are meant.
///
/// # Errors
/// When a program has no events or a filter is wrong for one of them.
pub fn select(
    paths: &[PathBuf],
    texts: &[String],
    others: usize,
    facts: &Facts,
) -> Result<(Vec<Selected>, Vec<String>), Error> {
    let mut known: Vec<(FilePlace, Format)> = Vec::new();
    for path in paths {
        let path = path.as_os_str().as_bytes();
        let (file, events) = read(path, &Files::at_once())?;
        for described in events {
            let id = probes::id(others.saturating_add(known.len())).ok_or(Error::TooMany)?;
            known.push((place(path, &file, &described), Format { id, ..described.format }));
        }
    }
    let names: Vec<String> = known.iter().map(|(_, format)| format.full_name()).collect();
    let catalogue = Catalogue::parse(&names.join("\n"));
    let all = ["*".to_owned()];
    let texts = if texts.is_empty() && !known.is_empty() { &all } else { texts };
    let mut selected: Vec<Selected> = Vec::new();
    let mut unnamed = Vec::new();
    for text in texts {
        let (pattern, filter) = selection::split(text);
        let named = catalogue.matching(pattern);
        if named.is_empty() || filter.is_some_and(str::is_empty) {
            unnamed.push(text.clone());
        }
        for (system, name) in named {
            let wanted = known.iter().filter(|(_, format)| format.system == system && format.name == name);
            for (place, format) in wanted {
                let resolved = filter
                    .map(|text| resolve::filter(text.as_bytes(), format, facts))
                    .transpose()
                    .map_err(|error| Error::Filter(format.full_name(), Box::new(error)))?;
                let event = Selected {
                    format: format.clone(),
                    filter: resolved,
                    probe: None,
                    base: None,
                    place: Some(place.clone()),
                };
                match selected.iter_mut().find(|other| other.format.id == format.id) {
                    Some(other) => *other = event,
                    None => selected.push(event),
                }
            }
        }
    }
    Ok((selected, unnamed))
}
