//! The error type of histograms.

use std::fmt;

use crate::{
    engine::{CommandError, ErrorKind},
    lang::hist::Refusal,
};

/// The error of a histogram that cannot be created or read. Its text names the event or definition. For a wrong
/// histogram, it shows the position and perhaps a suggestion.
#[derive(Debug)]
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

#[derive(Debug)]
pub(super) enum Cause {
    /// The name, and a suggestion.
    NoEvent(String, String),
    Refused {
        /// `system:name`.
        event: String,
        refusal: Refusal,
        /// A line with a suggestion; may be empty.
        hint: String,
    },
    /// The definition.
    NotDefined(String, CommandError),
    /// The event, or what failed.
    NotCounted(String, CommandError),
    Kernel(crate::kernel::Error),
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

impl From<Cause> for HistError {
    fn from(cause: Cause) -> Self {
        Self { cause }
    }
}

impl From<crate::kernel::Error> for HistError {
    fn from(error: crate::kernel::Error) -> Self {
        Cause::Kernel(error).into()
    }
}

impl fmt::Display for HistError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::NoEvent(event, hint) => write!(f, "no event {event}{hint}"),
            Cause::Refused { event, refusal, hint } => write!(f, "histogram of {event}: {refusal}{hint}"),
            Cause::NotDefined(definition, error) => write!(f, "{definition}: {error}"),
            Cause::NotCounted(event, error) => {
                write!(f, "histogram of {event}: ")?;
                match error.kind() {
                    ErrorKind::Unsupported => f.write_str("not counted in the kernel yet"),
                    ErrorKind::Exists => f.write_str("the same histogram exists"),
                    _ => error.fmt(f),
                }
            }
            Cause::Kernel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HistError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Kernel(error) => error.source(),
            // The text has the whole reason.
            _ => None,
        }
    }
}
