//! The three answers to "does this kernel support it". They stay distinct up to the output.

use std::fmt;

/// Yes; no with a reason; or unknown with a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The feature exists, and these privileges suffice.
    Yes,
    /// The feature does not exist or is refused; the text states which, and what refuses it.
    No(String),
    /// The answer could not be determined; the text states why.
    Unknown(String),
}

impl Answer {
    /// A "no" with its reason.
    pub fn no(why: impl Into<String>) -> Self {
        Self::No(why.into())
    }

    /// An unknown answer with its reason.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self::Unknown(why.into())
    }

    /// Whether the answer is yes.
    #[cfg(any(test, feature = "internals"))]
    pub fn is_yes(&self) -> bool {
        matches!(self, Self::Yes)
    }

    /// Why the answer is not yes.
    #[cfg(any(test, feature = "internals"))]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Yes => None,
            Self::No(why) | Self::Unknown(why) => Some(why),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::No(why) => write!(f, "no: {why}"),
            Self::Unknown(why) => write!(f, "could not tell: {why}"),
        }
    }
}
