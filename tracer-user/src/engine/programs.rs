//! Events of programs ([`event::program`](crate::event::program)), and the places where programs pass their records.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::hooks::AttachPlan;
use crate::{
    attach::{AttachPoint, FilePlace},
    event::{
        Format,
        program::{Described, ProgramError},
    },
    kernel::opened::OpenedFile,
    lang::facts::{Arch, FileQuery, FileRequest, Files},
    plan::source::{ProgramContext, UserRecord},
};

/// Why a program's events cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its file cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, std::io::Error),
    /// Its notes are invalid.
    #[error("{}: {}", .0.display(), .1)]
    Program(PathBuf, ProgramError),
    /// No id is left.
    #[error("there are more events than ids for them")]
    TooMany,
}

/// The request for the file of a line of `program_events`.
pub fn wanted(path: &[u8]) -> FileRequest {
    FileRequest { path: path.to_vec(), what: FileQuery::Events }
}

/// A program's file and its events.
///
/// # Errors
/// The file cannot be read or has no events.
pub fn read(path: &[u8], files: &Files) -> Result<(Arc<OpenedFile>, Vec<Described>), Error> {
    let named = || Path::new(OsStr::from_bytes(path)).to_owned();
    let found = files.get(&wanted(path)).map_err(|errno| Error::File(named(), errno.into()))?;
    let events = found.notes.unwrap_or(Err(ProgramError::NoEvents)).and_then(|notes| notes.events());
    Ok((found.file, events.map_err(|error| Error::Program(named(), error))?))
}

/// The hook of a program's event.
pub fn chosen(format: &Format, place: &FilePlace) -> AttachPlan {
    let context = ProgramContext::UserRecord(UserRecord::of(format, Arch::native()));
    AttachPlan::new(context, AttachPoint::Uprobe(place.clone()))
}

/// The location of a program's event.
pub fn place(path: &[u8], file: &Arc<OpenedFile>, event: &Described) -> FilePlace {
    let (path, file) = (path.to_vec(), Arc::clone(file));
    FilePlace { file, path, offset: event.offset, reference: event.reference }
}
