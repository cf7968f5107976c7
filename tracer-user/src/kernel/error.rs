//! Why a fact could not be had. "Not found" is no error here.

use std::io;

/// A fact of the kernel could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be opened or read.
    #[error("{path}")]
    Io {
        /// The file, as a person would name it.
        path: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file does not say what the kernel writes there.
    #[error("{path}: {what}")]
    Form {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// The kernel or these privileges withhold the fact.
    #[error("{fact}: {why}")]
    Withheld {
        /// What was asked for.
        fact: &'static str,
        /// Who withholds it, and how that may change.
        why: String,
    },
}

impl Error {
    /// An [`Error::Io`].
    pub(crate) fn io(path: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { path: path.into(), source: source.into() }
    }

    /// An [`Error::Form`].
    pub(crate) fn form(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Form { path: path.into(), what: what.into() }
    }
}
