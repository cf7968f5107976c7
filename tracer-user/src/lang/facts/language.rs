//! Differences between kernels in the language of definitions.
//!
//! Every difference is a [`Feature`] that a kernel has or lacks. One parser serves all kernels.

use crate::kernel::Change;

/// A feature of the language that only some kernels have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// `p` and `r` on kernel functions (`CONFIG_KPROBE_EVENTS`).
    Kprobes,
    /// `f` and `t` (`CONFIG_FPROBE_EVENTS`, 6.5).
    Fprobes,
    /// `p` and `r` on files (`CONFIG_UPROBE_EVENTS`).
    Uprobes,
    /// `e` (5.15).
    Eprobes,
    /// Arguments and fields by name (`CONFIG_PROBE_EVENTS_BTF_ARGS`, 6.5).
    BtfArgs,
    /// Arguments of a function at its return (6.9).
    ArgsAtReturn,
    /// `%pd` and `%pD` (6.9).
    Dentry,
    /// Type `char`.
    Char,
    /// Errors as in kernels since 6.5. Before (seen on 6.1), arguments that are too long and missing symbols fail with
    /// another errno, some errors have other texts, and the kernel checks less.
    LaterErrors,
    /// A separate error for a text argument of a type other than `string` (6.12: "$comm and immediate-string ...").
    StringTypeError,
    /// A limit of 3,072 bytes for the arguments of an event.
    SizeLimit,
    /// A logged error for more than 128 arguments. Without it the write only fails with E2BIG.
    ArgumentCountError,
    /// Several probes on one tracepoint. Without it (6.12) the second probe fails with EEXIST.
    SharedTracepoints,
    /// `(STRUCT)FETCH`, an explicit type of a pointer (found in 6.18). The parser recognizes and rejects it, with the
    /// error of kernels that are built without it.
    Typecasts,
    /// `(STRUCT[,MEMBER])FETCH->FIELD`, with other casts inside (found in 7.3).
    Casts,
    /// `$current` (found in 7.3).
    Current,
    /// `this_cpu_ptr(FETCH)` and `this_cpu_read(FETCH)` (found in 7.3).
    ThisCpu,
    /// Fields of the event of an event probe without `$` (found in 7.3).
    FieldNames,
    /// Arguments of at most 255 bytes (found in 7.3). Before, 63.
    LongArguments,
    /// Errors as in 7.0: those of functions and tracepoints that cannot be probed, and a separate one for a line of no
    /// kind.
    RegistrationErrors,
    /// Errors as in 7.3: a limit of 8 for nesting, the errno of large numbers, and other texts.
    LatestErrors,
    /// `PATH:SYMBOL`, an extension that no kernel has.
    FileSymbols,
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 22] = [
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
        Self::Casts,
        Self::Current,
        Self::ThisCpu,
        Self::FieldNames,
        Self::LongArguments,
        Self::RegistrationErrors,
        Self::LatestErrors,
        Self::FileSymbols,
    ];
}

/// The features of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Language {
    features: u32,
}

impl Language {
    /// Our own language: all features on every kernel.
    pub fn full() -> Self {
        Self { features: (1 << Feature::ALL.len()) - 1 }
    }

    /// A kernel of this version with this `README` in its tracefs: without the later features that the text does not
    /// name. The others are available on every kernel.
    pub fn of_kernel(readme: &str, version: (u32, u32)) -> Self {
        let named = [
            ("$current", &[Feature::Current][..]),
            (
                "this_cpu_read(<fetcharg>)",
                &[Feature::ThisCpu, Feature::FieldNames, Feature::LongArguments, Feature::LatestErrors],
            ),
            // A kernel without the types of arguments does not name it.
            ("[(structname[,field])]<argname>", &[Feature::Casts]),
        ];
        let lacking =
            named.iter().filter(|(words, _)| !readme.contains(words)).flat_map(|(_, features)| *features);
        let named = lacking.copied().fold(Self::full(), Self::without);
        let dated = [
            (Change::CastErrors, Feature::Typecasts),
            (Change::RegistrationErrors, Feature::RegistrationErrors),
        ];
        let absent = dated.into_iter().filter(|(change, _)| !change.is_in(version));
        absent.map(|(_, feature)| feature).fold(named, Self::without)
    }

    /// The newest kernel: all features except our extensions.
    #[cfg(any(test, feature = "internals"))]
    pub fn newest() -> Self {
        Self::full().without(Feature::FileSymbols)
    }

    /// Linux 6.12 (Debian).
    #[cfg(any(test, feature = "internals"))]
    pub fn v6_12() -> Self {
        let later = [
            Feature::ArgumentCountError,
            Feature::SharedTracepoints,
            Feature::Typecasts,
            Feature::Casts,
            Feature::Current,
            Feature::ThisCpu,
            Feature::FieldNames,
            Feature::LongArguments,
            Feature::RegistrationErrors,
            Feature::LatestErrors,
        ];
        later.into_iter().fold(Self::newest(), Self::without)
    }

    /// Linux 6.1.
    #[cfg(any(test, feature = "internals"))]
    pub fn v6_1() -> Self {
        let features = [Feature::Kprobes, Feature::Uprobes, Feature::Eprobes];
        features.into_iter().fold(Self { features: 0 }, Self::with)
    }

    /// Whether the language has a feature.
    pub fn has(self, feature: Feature) -> bool {
        self.features & 1 << feature as u32 != 0
    }

    /// Adds a feature.
    #[cfg(any(test, feature = "internals"))]
    #[must_use]
    pub fn with(self, feature: Feature) -> Self {
        Self { features: self.features | 1 << feature as u32 }
    }

    /// Removes a feature.
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
        let readme = "fetcharg: $comm, $arg<N>, $current\n [(structname[,field])]<argname>[->field], ...";
        let read = Language::of_kernel(readme, (7, 3));
        assert!(read.has(Feature::Casts) && read.has(Feature::Current) && !read.has(Feature::ThisCpu));
        let with = Language::of_kernel(&format!("{readme} this_cpu_read(<fetcharg>)"), (7, 3));
        assert_eq!(with, Language::full());
        let without = Language::of_kernel("", (7, 2));
        assert!(!without.has(Feature::LatestErrors) && without.has(Feature::RegistrationErrors));
        assert!(!Language::of_kernel("", (6, 12)).has(Feature::RegistrationErrors));
        assert!(without.has(Feature::Typecasts) && Language::of_kernel("", (6, 18)).has(Feature::Typecasts));
        assert!(!Language::of_kernel("", (6, 12)).has(Feature::Typecasts));
        for (at, feature) in Feature::ALL.into_iter().enumerate() {
            assert_eq!(feature as usize, at);
        }
    }
}
