//! What differs between kernels in the language of definitions. A difference is a [`Feature`] that a kernel has or
//! lacks; there is one parser.

/// Something that only some kernels have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// `p` and `r` on the kernel (`CONFIG_KPROBE_EVENTS`).
    Kprobes,
    /// `f` and `t` (`CONFIG_FPROBE_EVENTS`, 6.5).
    Fprobes,
    /// `p` and `r` on files (`CONFIG_UPROBE_EVENTS`).
    Uprobes,
    /// `e` (5.15).
    Eprobes,
    /// Arguments and fields by name (`CONFIG_PROBE_EVENTS_BTF_ARGS`, 6.5).
    BtfArgs,
    /// A function's arguments at its return (6.9).
    ArgsAtReturn,
    /// `%pd` and `%pD` (6.9).
    Dentry,
    /// Type `char`.
    Char,
    /// Errors as kernels since 6.5 have them. Before (seen on 6.1), arguments that are too long and symbols that are
    /// not there fail with another errno, some errors have other words, and fewer things are looked at.
    LaterErrors,
    /// Its own words for a text argument of a type other than `string` (6.12's "$comm and immediate-string ...").
    StringTypeError,
    /// An event's arguments have an end: 3,072 bytes.
    SizeLimit,
    /// More than 128 arguments are an error of their own, with words; without it E2BIG alone tells.
    ArgumentCountError,
    /// Several probes on one tracepoint. Without it (6.12) the second one fails with EEXIST.
    SharedTracepoints,
    /// `(STRUCT)FETCH`, a pointer's type given by hand (found in 6.18). It is known here, and refused: the kernel's own
    /// words for it are those of kernels that are built without.
    Typecasts,
    /// `PATH:SYMBOL`. No kernel has it: it is ours.
    FileSymbols,
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Kprobes,
        Self::Fprobes,
        Self::Uprobes,
        Self::Eprobes,
        Self::BtfArgs,
        Self::ArgsAtReturn,
        Self::Dentry,
        Self::Char,
        Self::LaterErrors,
        Self::StringTypeError,
        Self::SizeLimit,
        Self::ArgumentCountError,
        Self::SharedTracepoints,
        Self::Typecasts,
        Self::FileSymbols,
    ];
}

/// The features that a kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Language {
    features: u32,
}

impl Language {
    /// Ours: everything, on every kernel.
    pub fn full() -> Self {
        Self { features: (1 << Feature::ALL.len()) - 1 }
    }

    /// The newest kernel's: everything but what is ours alone.
    pub fn newest() -> Self {
        Self::full().without(Feature::FileSymbols)
    }

    /// Linux 6.12 (Debian's).
    pub fn v6_12() -> Self {
        let later = [Feature::ArgumentCountError, Feature::SharedTracepoints, Feature::Typecasts];
        later.into_iter().fold(Self::newest(), Self::without)
    }

    /// Linux 6.1.
    pub fn v6_1() -> Self {
        Feature::ALL.into_iter().fold(Self::newest(), |language, feature| match feature {
            Feature::Kprobes | Feature::Uprobes | Feature::Eprobes => language,
            _ => language.without(feature),
        })
    }

    /// Whether it has a feature.
    pub fn has(self, feature: Feature) -> bool {
        self.features & 1 << feature as u32 != 0
    }

    /// The same with a feature.
    #[must_use]
    pub fn with(self, feature: Feature) -> Self {
        Self { features: self.features | 1 << feature as u32 }
    }

    /// The same without a feature.
    #[must_use]
    pub fn without(self, feature: Feature) -> Self {
        Self { features: self.features & !(1 << feature as u32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_come_and_go() {
        assert!(Feature::ALL.into_iter().all(|feature| Language::full().has(feature)));
        let less = Language::full().without(Feature::Dentry);
        assert!(!less.has(Feature::Dentry) && less.has(Feature::BtfArgs));
        assert_eq!(less.with(Feature::Dentry), Language::full());
        assert!(!Language::v6_1().has(Feature::Fprobes) && Language::v6_1().has(Feature::Eprobes));
        for (at, feature) in Feature::ALL.into_iter().enumerate() {
            assert_eq!(feature as usize, at);
        }
    }
}
