//! The error type of histograms.

use crate::{
    engine::{CommandError, ErrorKind},
    lang::hist::Refusal,
};

/// The error of a histogram that cannot be created or read. Its text names the event or definition. For a wrong
/// histogram, it shows the position and perhaps a suggestion.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HistError {
    cause: Cause,
}

/// The kind of a [`HistError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistErrorKind {
    /// No event has this name, or several have it.
    NoEvent,
    /// The text of a histogram is wrong.
    Histogram,
    /// The definition of an event is wrong.
    Definition,
    /// The histogram is not counted: the kernel refused a program, map or hook, or the same histogram exists.
    Attach,
    /// The kernel's tracefs cannot be read.
    Tracefs,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    /// The name, and a suggestion.
    #[error("no event {0}{1}")]
    NoEvent(String, String),
    #[error("histogram of {event}: {refusal}{hint}")]
    Refused {
        /// `system:name`.
        event: String,
        refusal: Refusal,
        /// A line with a suggestion; may be empty.
        hint: String,
    },
    /// The definition.
    #[error("{0}: {1}")]
    NotDefined(String, CommandError),
    /// The event, or what failed.
    #[error("histogram of {0}: {reason}", reason = not_counted(.1))]
    NotCounted(String, CommandError),
    #[error(transparent)]
    Kernel(#[from] crate::kernel::Error),
}

fn not_counted(error: &CommandError) -> String {
    match error.kind() {
        ErrorKind::Unsupported => "not counted in the kernel yet".to_owned(),
        ErrorKind::Exists => "the same histogram exists".to_owned(),
        _ => error.to_string(),
    }
}

impl HistError {
    /// The kind of the error.
    pub fn kind(&self) -> HistErrorKind {
        match &self.cause {
            Cause::NoEvent(..) => HistErrorKind::NoEvent,
            Cause::Refused { .. } => HistErrorKind::Histogram,
            Cause::NotDefined(..) => HistErrorKind::Definition,
            Cause::NotCounted(..) => HistErrorKind::Attach,
            Cause::Kernel(_) => HistErrorKind::Tracefs,
        }
    }
}

impl<E> From<E> for HistError
where
    Cause: From<E>,
{
    fn from(error: E) -> Self {
        Self { cause: error.into() }
    }
}
