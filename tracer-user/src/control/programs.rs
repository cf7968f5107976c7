//! Events that programs bring along ([`event::program`](crate::event::program)): selected by name, and hung on the places where
//! they hand their records over.

use std::{
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    hooks::Chosen,
    selection::{self, Selected},
};
use crate::{
    attach::{FilePlace, Via},
    control::facts::Facts,
    event::{
        Catalogue, Format,
        program::{self, Described, ProgramError},
    },
    lang::{facts::Arch, filter::FilterError},
    plan::{
        resolve,
        source::{Handed, Hook},
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
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Program(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Filter(event, error) => write!(f, "filter of {event}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// The events of a program's file.
///
/// # Errors
/// When it cannot be read or has none.
pub fn read(path: &Path) -> Result<Vec<Described>, Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::File(path.to_owned(), error))?;
    program::events(&bytes).map_err(|error| Error::Program(path.to_owned(), error))
}

/// The hook of a program's event.
pub fn chosen(format: &Format, place: &FilePlace) -> Chosen {
    Chosen {
        hook: Hook::Handed(Handed::of(format, Arch::native())),
        via: Via::Uprobe(place.clone()),
        reason: String::new(),
    }
}

/// Where a program's event is.
pub fn place(path: &Path, event: &Described) -> FilePlace {
    FilePlace { path: path.as_os_str().as_bytes().to_vec(), offset: event.offset, reference: event.reference }
}

/// The programs' events that selections name, with ids from `first` on, and the selections that name none of them. Without any
/// selection all are meant.
///
/// # Errors
/// When a program has no events or a filter is wrong for one of them.
pub fn select(
    paths: &[PathBuf],
    texts: &[String],
    first: u16,
    facts: &Facts,
) -> Result<(Vec<Selected>, Vec<String>), Error> {
    let mut known: Vec<(FilePlace, Format)> = Vec::new();
    for path in paths {
        for described in read(path)? {
            let id = first + known.len() as u16;
            known.push((place(path, &described), Format { id, ..described.format }));
        }
    }
    let names: Vec<String> = known.iter().map(|(_, format)| format.full_name()).collect();
    let catalogue = Catalogue::parse(&names.join("\n"));
    let all = ["*".to_owned()];
    let texts = if texts.is_empty() && !known.is_empty() { &all } else { texts };
    let mut selected: Vec<Selected> = Vec::new();
    let mut others = Vec::new();
    for text in texts {
        let (pattern, filter) = selection::split(text);
        let named = catalogue.matching(pattern);
        if named.is_empty() || filter.is_some_and(str::is_empty) {
            others.push(text.clone());
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
                    text: filter.map(str::to_owned),
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
    Ok((selected, others))
}
