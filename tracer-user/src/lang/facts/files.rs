//! The files that definitions name, looked at in advance: opening a file and reading its symbols takes as long as its file
//! system pleases, and whoever takes a definition must not wait for that.
//!
//! [`super::super::define::files`] says what a text names ([`FileRequest`]), somebody opens it ([`Found`]), and the definition is checked
//! against what was found ([`Files`]).

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use object::ReadCache;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::elf;
use crate::{
    event::program::{Notes, ProgramError},
    kernel::opened::OpenedFile,
};

/// Bytes of a path, its NUL included (`PATH_MAX`).
const PATH_MAX: usize = 4096;

/// A file that a text names, and what is to be known of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileRequest {
    /// Its path.
    pub path: Vec<u8>,
    /// What is to be known.
    pub what: What,
}

/// What is to be known of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum What {
    /// Which file it is.
    Identity,
    /// Where a function of it is.
    Symbol(String),
    /// The events that it brings along.
    Events,
}

/// What was found at a path.
#[derive(Clone, Debug)]
pub struct Found {
    /// The file.
    pub file: Arc<OpenedFile>,
    /// The offset of the symbol that was asked for.
    pub symbol: Option<u64>,
    /// The events that were asked for.
    pub notes: Option<Result<Arc<Notes>, ProgramError>>,
}

impl Found {
    /// Opens a file and looks for what is to be known of it. Its file system may take its time.
    ///
    /// # Errors
    /// What opening and reading it says.
    pub fn look(wanted: &FileRequest) -> Result<Self, Errno> {
        if wanted.path.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let mut found = Self { file: Arc::new(OpenedFile::open(&wanted.path)?), symbol: None, notes: None };
        match &wanted.what {
            What::Symbol(symbol) if found.file.is_regular() => {
                found.symbol = elf::symbol_offset(&ReadCache::new(found.file.content()?), symbol);
            }
            What::Events => {
                let cache = ReadCache::new(found.file.content()?);
                found.notes = Some(Notes::read(&cache).map(Arc::new));
            }
            _ => {}
        }
        Ok(found)
    }
}

/// Files that were looked at.
#[derive(Clone, Debug, Default)]
pub struct Files {
    found: BTreeMap<FileRequest, Result<Found, Errno>>,
    /// Others are looked at when they are asked for.
    at_once: bool,
}

impl Files {
    /// Every file is opened when it is asked for: for whoever may wait.
    pub fn at_once() -> Self {
        Self { at_once: true, ..Self::default() }
    }

    /// Those that `look` finds.
    pub fn of(wanted: Vec<FileRequest>, mut look: impl FnMut(&FileRequest) -> Result<Found, Errno>) -> Self {
        let mut found = BTreeMap::new();
        for one in wanted {
            if let Entry::Vacant(place) = found.entry(one) {
                let looked = look(place.key());
                place.insert(looked);
            }
        }
        Self { found, at_once: false }
    }

    /// What was found.
    ///
    /// # Errors
    /// What opening it said; `ENOENT` for what nobody looked at.
    pub fn get(&self, wanted: &FileRequest) -> Result<Found, Errno> {
        match self.found.get(wanted) {
            Some(found) => found.clone(),
            None if self.at_once => Found::look(wanted),
            None => Err(Errno::NOENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_looked_at_once() {
        let program = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
        let wanted = |what| FileRequest { path: program.clone(), what };
        let main = wanted(What::Symbol("main".to_owned()));
        let mut looks = 0;
        let files = Files::of(vec![main.clone(), main.clone()], |one| {
            looks += 1;
            Found::look(one)
        });
        assert_eq!(looks, 1);
        assert!(files.get(&main).unwrap().symbol.is_some());
        assert_eq!(files.get(&wanted(What::Identity)).unwrap_err(), Errno::NOENT);
        let direct = Files::at_once();
        assert_eq!(direct.get(&wanted(What::Identity)).unwrap().file, files.get(&main).unwrap().file);
        let none = direct.get(&wanted(What::Symbol("no_such_function".to_owned()))).unwrap();
        assert_eq!(none.symbol, None);
        let long = FileRequest { path: vec![b'/'; PATH_MAX], what: What::Identity };
        assert_eq!(direct.get(&long).unwrap_err(), Errno::NAMETOOLONG);
    }
}
