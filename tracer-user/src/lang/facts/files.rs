//! Files named by definitions, opened in advance.
//!
//! Opening a file and reading its symbols can block in its file system, and the thread that handles definitions must
//! not block. [`super::super::define::files`] lists the files of a text ([`FileRequest`]), another thread can open them
//! ([`Found`]), and the parser checks the definition against the results ([`Files`]).

use std::{collections::BTreeMap, sync::Arc};

use object::ReadCache;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::elf;
use crate::{
    event::program::{Notes, ProgramError},
    kernel::opened::OpenedFile,
};

/// Maximum length of a path in bytes, with the NUL (`PATH_MAX`).
const PATH_MAX: usize = 4096;

/// A request for information about a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileRequest {
    /// Path of the file.
    pub path: Vec<u8>,
    /// The requested information.
    pub what: FileQuery,
}

/// Kinds of information about a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FileQuery {
    /// The identity of the file.
    Identity,
    /// The offset of a function.
    Symbol(String),
    /// The events described in the file.
    Events,
}

/// The result of a request.
#[derive(Clone, Debug)]
pub struct Found {
    /// The opened file.
    pub file: Arc<OpenedFile>,
    /// Offset of the requested symbol.
    pub symbol: Option<u64>,
    /// The requested events.
    pub notes: Option<Result<Arc<Notes>, ProgramError>>,
}

impl Found {
    /// Opens a file and reads the requested information. This can block in its file system.
    ///
    /// # Errors
    /// The errno of opening or reading the file.
    pub fn open(wanted: &FileRequest) -> Result<Self, Errno> {
        if wanted.path.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let mut found = Self { file: Arc::new(OpenedFile::open(&wanted.path)?), symbol: None, notes: None };
        match &wanted.what {
            FileQuery::Symbol(symbol) if found.file.is_regular() => {
                found.symbol = elf::symbol_offset(&ReadCache::new(found.file.content()?), symbol);
            }
            FileQuery::Events => {
                let cache = ReadCache::new(found.file.content()?);
                found.notes = Some(Notes::read(&cache).map(Arc::new));
            }
            _ => {}
        }
        Ok(found)
    }
}

/// Results of requests.
#[derive(Clone, Debug, Default)]
pub struct Files {
    found: BTreeMap<FileRequest, Result<Found, Errno>>,
    /// Whether to open other files on demand.
    at_once: bool,
}

impl Files {
    /// Opens every file on demand, for callers that may block.
    pub fn at_once() -> Self {
        Self { at_once: true, ..Self::default() }
    }

    /// Runs `open` once for every distinct request.
    pub fn of(wanted: Vec<FileRequest>, mut open: impl FnMut(&FileRequest) -> Result<Found, Errno>) -> Self {
        let mut found = BTreeMap::new();
        for one in wanted {
            found.entry(one).or_insert_with_key(&mut open);
        }
        Self { found, at_once: false }
    }

    /// Returns the result of a request.
    ///
    /// # Errors
    /// The errno of opening the file; `ENOENT` for a request that was not made in advance.
    pub fn get(&self, wanted: &FileRequest) -> Result<Found, Errno> {
        match self.found.get(wanted) {
            Some(found) => found.clone(),
            None if self.at_once => Found::open(wanted),
            None => Err(Errno::NOENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_looked_up_once() {
        let program = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
        let wanted = |what| FileRequest { path: program.clone(), what };
        let main = wanted(FileQuery::Symbol("main".to_owned()));
        let mut looks = 0;
        let files = Files::of(vec![main.clone(), main.clone()], |one| {
            looks += 1;
            Found::open(one)
        });
        assert_eq!(looks, 1);
        assert!(files.get(&main).unwrap().symbol.is_some());
        assert_eq!(files.get(&wanted(FileQuery::Identity)).unwrap_err(), Errno::NOENT);
        let direct = Files::at_once();
        assert_eq!(direct.get(&wanted(FileQuery::Identity)).unwrap().file, files.get(&main).unwrap().file);
        let none = direct.get(&wanted(FileQuery::Symbol("no_such_function".to_owned()))).unwrap();
        assert_eq!(none.symbol, None);
        let long = FileRequest { path: vec![b'/'; PATH_MAX], what: FileQuery::Identity };
        assert_eq!(direct.get(&long).unwrap_err(), Errno::NAMETOOLONG);
    }
}
