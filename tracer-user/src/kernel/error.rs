//! Why a fact could not be read. "Not found" is not an error here.

use std::io;

/// A fact of the kernel could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be opened or read.
    #[error("{path}")]
    Io {
        /// The file, as shown to users.
        path: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file does not have the form that the kernel writes.
    #[error("{path}: {what}")]
    Form {
        /// The file.
        path: String,
        /// The defect.
        what: String,
    },
    /// The kernel withholds the fact, or the privileges do not suffice.
    #[error("{fact}: {why}")]
    Withheld {
        /// The requested fact.
        fact: &'static str,
        /// The reason, and how to change it.
        why: String,
    },
}

impl Error {
    pub(crate) fn io(path: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.into(), source: source.into() }
    }

    /// An [`Error::Form`].
    pub(crate) fn form(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Form { path: path.into(), what: what.into() }
    }
}
