//! The error type of recordings.

use std::{io, ops::Range};

use crate::{
    attach::AttachError,
    engine::record::{SelectError, StartError},
};

/// The error of a recording that cannot start or continue. Its text names the event, probe or process; [`source`] has
/// the causes.
///
/// [`source`]: std::error::Error::source
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct RecordError {
    cause: Cause,
}

/// The kind of a [`RecordError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordErrorKind {
    /// No event has this name.
    NoEvent,
    /// A filter is wrong, or [`filter`](super::RecordingBuilder::filter) follows no event.
    Filter,
    /// The definition of a probe is wrong.
    Probe,
    /// A program cannot be read, or has no events.
    Program,
    /// There is no such process.
    Process,
    /// The command cannot be started, or its end cannot be waited for.
    Command,
    /// The kernel's tracefs cannot be read.
    Tracefs,
    /// The kernel refused a program, map or hook, often for missing privileges.
    Attach,
    /// No event, probe or program was named.
    Nothing,
    /// A descriptor or thread could not be made, or a descriptor was closed.
    System,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("there is no process {0}")]
    NoProcess(u32, #[source] io::Error),
    #[error("cannot start the command")]
    Command(#[source] io::Error),
    #[error("cannot wait for the command")]
    CommandEnd(#[source] io::Error),
    #[error(transparent)]
    Kernel(#[from] crate::kernel::Error),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the filter `{0}` follows no event")]
    StrayFilter(String),
    #[error("no event, probe or program is named")]
    Nothing,
    #[error("cannot set up the recording")]
    System(#[source] io::Error),
    #[error("cannot wait for records")]
    Wait(#[source] io::Error),
}

impl<E> From<E> for RecordError
where
    Cause: From<E>,
{
    fn from(error: E) -> Self {
        Self { cause: error.into() }
    }
}

impl RecordError {
    /// The kind of the error.
    pub fn kind(&self) -> RecordErrorKind {
        match &self.cause {
            Cause::Select(error) => match error {
                SelectError::NoEvent { .. } => RecordErrorKind::NoEvent,
                SelectError::Filter { .. } | SelectError::EmptyFilter(_) => RecordErrorKind::Filter,
                SelectError::Refused { .. } | SelectError::NothingDefined(_) | SelectError::TooMany => {
                    RecordErrorKind::Probe
                }
                SelectError::Program(_) => RecordErrorKind::Program,
                SelectError::Format(_) | SelectError::Kernel(_) => RecordErrorKind::Tracefs,
            },
            Cause::StrayFilter(_) => RecordErrorKind::Filter,
            Cause::Kernel(_) => RecordErrorKind::Tracefs,
            Cause::NoProcess(..) => RecordErrorKind::Process,
            Cause::Command(_) | Cause::CommandEnd(_) => RecordErrorKind::Command,
            Cause::Attach(_) | Cause::Start(_) => RecordErrorKind::Attach,
            Cause::Nothing => RecordErrorKind::Nothing,
            Cause::System(_) | Cause::Wait(_) => RecordErrorKind::System,
        }
    }

    /// The invalid part of a filter, in bytes of its text; `None` for other errors.
    pub fn span(&self) -> Option<Range<usize>> {
        match &self.cause {
            Cause::Select(SelectError::Filter { error, .. }) => {
                let span = error.span();
                Some(span.start..span.end)
            }
            _ => None,
        }
    }

    /// Whether the caller named something wrong: an event that does not exist, or a filter that does not fit its event.
    /// The command line reports this as wrong usage.
    pub fn is_usage(&self) -> bool {
        let of_definition = matches!(self.kind(), RecordErrorKind::Probe | RecordErrorKind::Program);
        matches!(self.cause, Cause::Select(_)) && !of_definition
    }
}
