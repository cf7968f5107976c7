//! Why a recording did not start.

use std::{fmt, io, ops::Range};

use crate::{
    attach::AttachError,
    engine::{probes::DefineError, programs, selection::SelectError},
};

/// Why a recording did not start. Its text names the event, probe or process that it is about; [`source`] has the causes.
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
    /// The command cannot be started.
    Command,
    /// The kernel's tracefs cannot be read.
    Tracefs,
    /// The kernel refused a program, map or hook, often for missing privileges.
    Attach,
    /// No event, probe or program was named.
    Nothing,
    /// A descriptor or thread could not be made.
    System,
}

#[derive(Debug)]
enum Cause {
    Select(SelectError),
    Define(DefineError),
    Program(programs::Error),
    NoProcess(u32, io::Error),
    Command(io::Error),
    Kernel(crate::kernel::Error),
    Attach(AttachError),
    StrayFilter(String),
    Nothing,
    System(io::Error),
}

impl RecordError {
    /// What kind of error it is.
    pub fn kind(&self) -> RecordErrorKind {
        match &self.cause {
            Cause::Select(SelectError::NoEvent { .. }) => RecordErrorKind::NoEvent,
            Cause::Select(SelectError::Filter { .. } | SelectError::EmptyFilter(_))
            | Cause::StrayFilter(_) => RecordErrorKind::Filter,
            Cause::Select(SelectError::Format(_) | SelectError::Kernel(_)) | Cause::Kernel(_) => {
                RecordErrorKind::Tracefs
            }
            Cause::Define(_) => RecordErrorKind::Probe,
            Cause::Program(_) => RecordErrorKind::Program,
            Cause::NoProcess(..) => RecordErrorKind::Process,
            Cause::Command(_) => RecordErrorKind::Command,
            Cause::Attach(_) => RecordErrorKind::Attach,
            Cause::Nothing => RecordErrorKind::Nothing,
            Cause::System(_) => RecordErrorKind::System,
        }
    }

    /// The invalid part of a filter of an event, in bytes of its text; `None` for other errors.
    pub fn span(&self) -> Option<Range<usize>> {
        match &self.cause {
            Cause::Select(SelectError::Filter { error, .. }) => {
                let span = error.span();
                Some(span.start..span.end)
            }
            _ => None,
        }
    }

    /// Whether a name or filter is wrong, which the command line reports as wrong usage.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self.cause, Cause::Select(_))
    }

    pub(super) fn system(error: io::Error) -> Self {
        Cause::System(error).into()
    }

    pub(super) fn command(error: io::Error) -> Self {
        Cause::Command(error).into()
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
    DefineError => Define,
    programs::Error => Program,
    crate::kernel::Error => Kernel,
    AttachError => Attach,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Select(error) => error.fmt(f),
            Cause::Define(error) => error.fmt(f),
            Cause::Program(error) => error.fmt(f),
            Cause::NoProcess(pid, _) => write!(f, "there is no process {pid}"),
            Cause::Command(_) => f.write_str("cannot start the command"),
            Cause::Kernel(error) => error.fmt(f),
            Cause::Attach(error) => error.fmt(f),
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
            Cause::Define(error) => error.source(),
            Cause::Program(error) => error.source(),
            Cause::Kernel(error) => error.source(),
            Cause::Attach(error) => error.source(),
            Cause::NoProcess(_, error) | Cause::Command(error) | Cause::System(error) => Some(error),
            Cause::StrayFilter(_) | Cause::Nothing => None,
        }
    }
}
