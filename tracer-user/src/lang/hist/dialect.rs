//! What differs between kernels in the histogram language. There is one parser; a difference is a [`Feature`].

/// Something that only some kernels have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// `nohitcount`, and `hitcount` as a value with modifiers (6.3).
    NoHitcount,
    /// `.percent` and `.graph` (6.0, and 6.1 as Debian has it).
    Bars,
    /// Stack traces as values of variables: `common_stacktrace`, `.stacktrace`, fields of that kind (6.3).
    Stacktraces,
    /// `common_comm`, text of the current task's name (6.17).
    Comm,
    /// `SYSTEM.EVENT.$NAME` is read back as it was written, and not as `$SYSTEM.EVENT.NAME`, which nobody can write.
    /// We always do so.
    QualifiedNames,
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::NoHitcount, Self::Bars, Self::Stacktraces, Self::Comm, Self::QualifiedNames];
}

/// The features that a kernel has.
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
    /// Everything.
    pub fn newest() -> Self {
        Self { features: (1 << Feature::ALL.len()) - 1 }
    }

    /// Linux 6.12.
    pub fn v6_12() -> Self {
        Self::newest().without(Feature::Comm)
    }

    /// Linux 6.1.
    pub fn v6_1() -> Self {
        let lacks = Feature::ALL.into_iter().filter(|feature| *feature != Feature::Bars);
        lacks.fold(Self::newest(), Self::without)
    }

    /// The same without a feature.
    #[must_use]
    pub fn without(self, feature: Feature) -> Self {
        Self { features: self.features & !(1 << feature as u8) }
    }

    /// Whether it has a feature.
    pub fn has(self, feature: Feature) -> bool {
        self.features & 1 << feature as u8 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        assert!(Dialect::newest().has(Feature::Comm) && !Dialect::v6_12().has(Feature::Comm));
        assert!(Dialect::v6_12().has(Feature::NoHitcount) && !Dialect::v6_1().has(Feature::NoHitcount));
    }
}
