//! Errors of recordings whose events cannot be resolved or attached.

use std::fmt;

use crate::{
    attach::AttachError,
    engine::{command::error::CommandError, probes::Tried, programs},
    event::FormatError,
    kernel::Error,
    lang::{define::Refusal, filter::FilterError},
};

/// The error of a name, a definition or a filter.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// No event has this name.
    #[error("no event matches `{pattern}`{}", hint(.suggestion.as_deref()))]
    NoEvent {
        /// The name or glob as written.
        pattern: String,
        /// The nearest event.
        suggestion: Option<String>,
    },
    /// The filter is wrong for an event.
    #[error("filter of {event}")]
    Filter {
        /// `system:name`.
        event: String,
        /// The error of the filter.
        #[source]
        error: Box<FilterError>,
    },
    /// No filter follows `if`.
    #[error("`{0}`: no filter after `if`")]
    EmptyFilter(String),
    /// The definition of a probe is refused.
    #[error("{refusal}{}", .hint.as_ref().map_or_else(String::new, |hint| format!("\n{hint}")))]
    Refused {
        /// The refusal.
        refusal: Box<Refusal>,
        /// A suggestion.
        hint: Option<String>,
    },
    /// A definition defines nothing.
    #[error("`{0}` defines nothing: a definition is `p|r|f|t|e[:[GROUP/]EVENT] WHERE [ARGS][ if FILTER]`")]
    NothingDefined(String),
    /// All ids are in use.
    #[error("there are more events than ids for them")]
    TooMany,
    /// A program cannot be read, or has no events.
    #[error(transparent)]
    Program(#[from] programs::Error),
    /// A format file cannot be parsed.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The kernel's files cannot be read.
    #[error(transparent)]
    Kernel(#[from] Error),
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(
        || "; `tracer list` shows what there is".to_owned(),
        |name| format!("; did you mean `{name}`?"),
    )
}

/// The error of a recording that cannot start although its names are valid: the kernel refused something.
#[derive(Debug)]
pub struct StartError {
    /// The event that could not be attached, `system:name`; `None` if something else was refused.
    pub(super) event: Option<String>,
    pub(super) error: CommandError,
}

impl From<CommandError> for StartError {
    fn from(error: CommandError) -> Self {
        Self { event: None, error }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.event {
            // The error of a hook names its event.
            Some(event) if self.error.cause::<AttachError>().is_none() => {
                let no_hook = if self.error.cause::<Tried>().is_some() { "no hook: " } else { "" };
                write!(f, "{event}: {no_hook}{}", self.error)
            }
            _ => self.error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
