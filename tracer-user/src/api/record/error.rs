//! The error type of recordings.

use std::{fmt, io, ops::Range};

use crate::{
    attach::AttachError,
    engine::record::{SelectError, StartError},
};

/// The error of a recording that cannot start or continue. Its text names the event, probe or process; [`source`] has
/// the causes.
///
/// [`source`]: std::error::Error::source
#[derive(Debug)]
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

#[derive(Debug)]
enum Cause {
    Select(SelectError),
    NoProcess(u32, io::Error),
    Command(io::Error),
    CommandEnd(io::Error),
    Kernel(crate::kernel::Error),
    Attach(AttachError),
    Start(StartError),
    StrayFilter(String),
    Nothing,
    System(io::Error),
    Wait(io::Error),
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
        let of_definition = |error: &SelectError| {
            matches!(
                error,
                SelectError::Refused { .. }
                    | SelectError::NothingDefined(_)
                    | SelectError::TooMany
                    | SelectError::Program(_)
            )
        };
        matches!(&self.cause, Cause::Select(error) if !of_definition(error))
    }

    pub(super) fn system(error: io::Error) -> Self {
        Cause::System(error).into()
    }

    pub(super) fn command(error: io::Error) -> Self {
        Cause::Command(error).into()
    }

    pub(super) fn command_end(error: io::Error) -> Self {
        Cause::CommandEnd(error).into()
    }

    pub(super) fn wait(error: io::Error) -> Self {
        Cause::Wait(error).into()
    }

    pub(super) fn no_process(pid: u32, error: io::Error) -> Self {
        Cause::NoProcess(pid, error).into()
    }

    pub(super) fn stray_filter(text: &str) -> Self {
        Cause::StrayFilter(text.to_owned()).into()
    }

    pub(super) fn nothing() -> Self {
        Cause::Nothing.into()
    }
}

impl From<Cause> for RecordError {
    fn from(cause: Cause) -> Self {
        Self { cause }
    }
}

macro_rules! from_causes {
    ($($source:ty => $cause:ident),* $(,)?) => {$(
        impl From<$source> for RecordError {
            fn from(error: $source) -> Self {
                Cause::$cause(error).into()
            }
        }
    )*};
}

from_causes! {
    SelectError => Select,
    crate::kernel::Error => Kernel,
    AttachError => Attach,
    StartError => Start,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Select(error) => error.fmt(f),
            Cause::NoProcess(pid, _) => write!(f, "there is no process {pid}"),
            Cause::Command(_) => f.write_str("cannot start the command"),
            Cause::CommandEnd(_) => f.write_str("cannot wait for the command"),
            Cause::Wait(_) => f.write_str("cannot wait for records"),
            Cause::Kernel(error) => error.fmt(f),
            Cause::Attach(error) => error.fmt(f),
            Cause::Start(error) => error.fmt(f),
            Cause::StrayFilter(text) => write!(f, "the filter `{text}` follows no event"),
            Cause::Nothing => f.write_str("no event, probe or program is named"),
            Cause::System(_) => f.write_str("cannot set up the recording"),
        }
    }
}

impl std::error::Error for RecordError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            Cause::Select(error) => error.source(),
            Cause::Kernel(error) => error.source(),
            Cause::Attach(error) => error.source(),
            Cause::Start(error) => error.source(),
            Cause::NoProcess(_, error)
            | Cause::Command(error)
            | Cause::CommandEnd(error)
            | Cause::System(error)
            | Cause::Wait(error) => Some(error),
            Cause::StrayFilter(_) | Cause::Nothing => None,
        }
    }
}
