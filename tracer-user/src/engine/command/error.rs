//! Errors of commands: the kind, the kernel's error number and wording, and the cause.

use std::{error::Error, fmt};

use rustix::io::Errno;

use crate::{
    attach::{AttachError, Cause},
    engine::probes::Tried,
    lang::{Span, define, filter::FilterError, hist, synth},
};

/// The kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A filter is invalid.
    Filter,
    /// The definition of a probe is invalid.
    Probe,
    /// The definition of a synthetic event is invalid.
    Synthetic,
    /// A histogram command is invalid.
    Histogram,
    /// The kernel refuses a program, a map or a hook.
    Attach,
    /// A value is not valid here (`EINVAL`).
    Invalid,
    /// The instance or event does not exist any more (`ENODEV`).
    Gone,
    /// Nothing has this name (`ENOENT`).
    NotFound,
    /// The name exists (`EEXIST`).
    Exists,
    /// It is in use (`EBUSY`).
    Busy,
    /// The caller lacks a privilege (`EPERM`).
    Denied,
    /// A quota or the memory is exhausted (`ENOMEM`).
    NoMemory,
    /// All ids are in use (`ENOSPC`).
    NoIds,
    /// The caller has reached a limit (`EMFILE`).
    TooMany,
    /// The text is too long (`E2BIG`).
    TooLong,
    /// The number is out of range (`ERANGE`).
    Range,
    /// The machine or kernel cannot do this (`EOPNOTSUPP`).
    Unsupported,
    /// The kernel's file changed since it was named (`ESTALE`).
    Stale,
    /// The user event has other fields (`EADDRINUSE`).
    NameInUse,
    /// The file has no such table or entry (`EBADF`).
    BadFile,
    /// Memory of the caller cannot be read (`EFAULT`).
    BadAddress,
    /// The process does not exist (`ESRCH`).
    NoProcess,
    /// The kernel's tables cannot be read (`EIO`).
    Io,
    /// The owner ends (`EINTR`).
    Interrupted,
    /// The kernel did not answer in time (`ETIMEDOUT`).
    TimedOut,
    /// It may succeed later (`EAGAIN`).
    Again,
    /// Another error of a system call.
    System,
}

impl ErrorKind {
    /// The kind of an error of a system call.
    fn of(errno: Errno) -> Self {
        let named = SIMPLE.iter().find(|(_, number)| *number == errno);
        named.map_or(Self::System, |(kind, _)| *kind)
    }

    /// The error number of a kind with a unique one.
    fn errno(self) -> Errno {
        SIMPLE.iter().find(|(kind, _)| *kind == self).map_or(Errno::INVAL, |(_, errno)| *errno)
    }
}

/// The kinds with a unique error number.
const SIMPLE: [(ErrorKind, Errno); 21] = [
    (ErrorKind::Invalid, Errno::INVAL),
    (ErrorKind::Gone, Errno::NODEV),
    (ErrorKind::NotFound, Errno::NOENT),
    (ErrorKind::Exists, Errno::EXIST),
    (ErrorKind::Busy, Errno::BUSY),
    (ErrorKind::Denied, Errno::PERM),
    (ErrorKind::NoMemory, Errno::NOMEM),
    (ErrorKind::NoIds, Errno::NOSPC),
    (ErrorKind::TooMany, Errno::MFILE),
    (ErrorKind::TooLong, Errno::TOOBIG),
    (ErrorKind::Range, Errno::RANGE),
    (ErrorKind::Unsupported, Errno::OPNOTSUPP),
    (ErrorKind::Stale, Errno::STALE),
    (ErrorKind::NameInUse, Errno::ADDRINUSE),
    (ErrorKind::BadFile, Errno::BADF),
    (ErrorKind::BadAddress, Errno::FAULT),
    (ErrorKind::NoProcess, Errno::SRCH),
    (ErrorKind::Io, Errno::IO),
    (ErrorKind::Interrupted, Errno::INTR),
    (ErrorKind::TimedOut, Errno::TIMEDOUT),
    (ErrorKind::Again, Errno::AGAIN),
];

/// The refusal of a command. The state is then the state that the kernel would have left.
#[derive(Debug)]
pub struct CommandError(Box<Details>);

#[derive(Debug)]
struct Details {
    kind: ErrorKind,
    errno: Errno,
    span: Option<Span>,
    wording: Vec<Vec<u8>>,
    logged: bool,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl CommandError {
    fn new(kind: ErrorKind, errno: Errno) -> Self {
        Self(Box::new(Details { kind, errno, span: None, wording: Vec::new(), logged: false, cause: None }))
    }

    fn caused(mut self, cause: impl Error + Send + Sync + 'static) -> Self {
        self.0.cause = Some(Box::new(cause));
        self
    }

    /// The same error with the error number of another kind, if the kernel returns that one.
    pub(crate) fn answered_as(mut self, kind: ErrorKind) -> Self {
        self.0.errno = kind.errno();
        self
    }

    /// Adds an entry for `error_log`.
    pub(crate) fn worded(mut self, entry: Vec<u8>) -> Self {
        self.0.wording.push(entry);
        self
    }

    /// Removes the entries for `error_log`, for errors that the running kernel does not log.
    pub(crate) fn unlogged(mut self) -> Self {
        self.0.wording.clear();
        self
    }

    /// Marks the error as logged. Returns whether it was marked before.
    pub(crate) fn set_logged(&mut self) -> bool {
        std::mem::replace(&mut self.0.logged, true)
    }

    /// The kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The error number with which the kernel refuses the command.
    pub fn errno(&self) -> Errno {
        self.0.errno
    }

    /// The invalid part of the command's text, in bytes.
    pub fn span(&self) -> Option<Span> {
        self.0.span
    }

    /// The entries for `error_log`, in the kernel's wording and without their times.
    pub fn wording(&self) -> &[Vec<u8>] {
        &self.0.wording
    }

    /// The cause, as a type of the layer that refused the command.
    pub fn cause<E: Error + 'static>(&self) -> Option<&E> {
        self.0.cause.as_ref()?.downcast_ref()
    }
}

/// The children of threads cannot be followed.
#[derive(Debug, thiserror::Error)]
#[error(
    "children cannot be traced: the place of a task's pid is unknown (the kernel needs CONFIG_DEBUG_INFO_BTF)"
)]
pub(crate) struct NoTaskPid;

impl From<NoTaskPid> for CommandError {
    fn from(cause: NoTaskPid) -> Self {
        Self::from(Errno::NOSYS).caused(cause)
    }
}

/// Errors are equal if a client sees no difference.
impl PartialEq for CommandError {
    fn eq(&self, other: &Self) -> bool {
        let seen = |error: &Self| (error.0.kind, error.0.errno, error.0.span);
        seen(self) == seen(other) && self.0.wording == other.0.wording
    }
}

impl Eq for CommandError {}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.cause {
            Some(cause) => cause.fmt(f),
            None => self.0.errno.fmt(f),
        }
    }
}

impl Error for CommandError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.cause.as_ref()?.source()
    }
}

impl From<ErrorKind> for CommandError {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind, kind.errno())
    }
}

impl From<Errno> for CommandError {
    fn from(errno: Errno) -> Self {
        Self::new(ErrorKind::of(errno), errno)
    }
}

impl From<Tried> for CommandError {
    fn from(tried: Tried) -> Self {
        Self::new(ErrorKind::Attach, tried.errno()).caused(tried)
    }
}

impl From<AttachError> for CommandError {
    fn from(error: AttachError) -> Self {
        let errno = match error.cause() {
            Cause::Map(_, errno) | Cause::Hook(_, errno) | Cause::System(_, errno) => *errno,
            Cause::Load(_, error) => error.errno,
            Cause::TooMany(_) => Errno::NOMEM,
            _ => Errno::NOSYS,
        };
        Self::new(ErrorKind::Attach, errno).caused(error)
    }
}

impl From<FilterError> for CommandError {
    fn from(error: FilterError) -> Self {
        let mut made = Self::new(ErrorKind::Filter, error.errno()).worded(error.log_entry());
        made.0.span = Some(error.span());
        made.caused(error)
    }
}

impl From<define::Refusal> for CommandError {
    fn from(refusal: define::Refusal) -> Self {
        let mut made = Self::new(ErrorKind::Probe, refusal.errno());
        made.0.wording = refusal.log_entries();
        made.0.span = refusal.findings().first().map(|finding| finding.span);
        made.caused(refusal)
    }
}

impl From<synth::Refusal> for CommandError {
    fn from(refusal: synth::Refusal) -> Self {
        let mut made = Self::new(ErrorKind::Synthetic, refusal.errno());
        made.0.wording.extend(refusal.log_entry());
        made.0.span = refusal.span();
        made.caused(refusal)
    }
}

impl From<hist::Refusal> for CommandError {
    fn from(refusal: hist::Refusal) -> Self {
        let mut made = Self::new(ErrorKind::Histogram, refusal.errno());
        made.0.wording = refusal.log().texts();
        made.caused(refusal)
    }
}

/// Clients of files and of the kernel's event API get only the error number.
impl From<CommandError> for Errno {
    fn from(error: CommandError) -> Self {
        error.errno()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lang::synth::{File, Set};

    #[test]
    fn errors_keep_what_refused_the_command() {
        let refusal = Set::default().apply(b"two u8 a; two", File::Synthetic).unwrap_err();
        let (errno, entry, span) = (refusal.errno(), refusal.log_entry(), refusal.span());
        let error = CommandError::from(refusal.clone());
        assert_eq!((error.kind(), error.errno(), error.span()), (ErrorKind::Synthetic, errno, span));
        assert_eq!(error.wording(), entry.as_slice());
        assert_eq!(error.cause(), Some(&refusal));
        assert_eq!(error.to_string(), refusal.to_string());
        assert!(error.unlogged().wording().is_empty());
    }

    #[test]
    fn kinds_and_numbers_belong_together() {
        for (kind, errno) in SIMPLE {
            assert_eq!(CommandError::from(kind).errno(), errno);
            assert_eq!(CommandError::from(errno).kind(), kind);
        }
        let other = CommandError::from(Errno::CONNRESET);
        assert_eq!((other.kind(), other.errno()), (ErrorKind::System, Errno::CONNRESET));
    }

    #[test]
    fn errors_are_logged_once() {
        let mut error = CommandError::from(ErrorKind::Busy);
        assert!(!error.set_logged() && error.set_logged());
    }
}
