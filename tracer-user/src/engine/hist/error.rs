//! Errors of the command line's histograms.

use crate::{engine::CommandError, lang::hist::Refusal};

/// Why a histogram was not created.
#[derive(Debug, thiserror::Error)]
pub enum HistError {
    /// There is no such event.
    #[error("no event {0}{1}")]
    NoEvent(String, String),
    /// The command is invalid.
    #[error("histogram of {event}: {refusal}{hint}")]
    Refused {
        /// `system:name`.
        event: String,
        /// The error of the command.
        refusal: Refusal,
        /// A line with a suggestion; may be empty.
        hint: String,
    },
    /// The definition of an event is invalid.
    #[error("{0}: {1}")]
    NotDefined(String, CommandError),
    /// The kernel refuses to count.
    #[error("histogram of {0}: {1}")]
    NotCounted(String, String),
    /// tracefs could not be read.
    #[error(transparent)]
    Kernel(#[from] crate::kernel::Error),
}
