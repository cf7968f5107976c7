//! Differences between kernels in the histogram language.
//!
//! One parser serves all kernels; a difference is a [`Feature`].

/// A feature that only some kernels have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// `nohitcount`, and `hitcount` as a value with modifiers (6.3).
    NoHitcount,
    /// `.percent` and `.graph` (6.0, and Debian's 6.1).
    Bars,
    /// Stack traces as values of variables: `common_stacktrace`, `.stacktrace`, and fields of that kind (6.3).
    Stacktraces,
    /// `common_comm`, the name of the current task as text (6.17).
    Comm,
    /// Reads `SYSTEM.EVENT.$NAME` back as written. Without it the text is `$SYSTEM.EVENT.NAME`, which the parser
    /// rejects. Our own language always has this feature.
    QualifiedNames,
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 5] =
        [Self::NoHitcount, Self::Bars, Self::Stacktraces, Self::Comm, Self::QualifiedNames];
}

/// The features of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    features: u8,
}

impl Default for Dialect {
    fn default() -> Self {
        Self::newest()
    }
}

impl Dialect {
    /// All features.
    pub fn newest() -> Self {
        Self { features: (1 << Feature::ALL.len()) - 1 }
    }

    /// Removes a feature.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn without(self, feature: Feature) -> Self {
        Self { features: self.features & !(1 << feature as u8) }
    }

    /// Whether the dialect has a feature.
    pub fn has(self, feature: Feature) -> bool {
        self.features & 1 << feature as u8 != 0
    }
}
