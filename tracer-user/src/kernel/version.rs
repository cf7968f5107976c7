//! The kernel's version, and the changes that only it tells. Whatever a file, a type or an answer of the kernel tells is
//! asked there.

/// Major and minor number of the running kernel.
pub fn version() -> (u32, u32) {
    version_of(rustix::system::uname().release().to_str().unwrap_or_default())
}

/// Major and minor number of a release such as `6.12.9-cloud-amd64`; 0 for a part that is not a number.
pub fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// A change of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// `char` is unsigned on x86.
    UnsignedChars,
    /// An invalid filter of a trigger is logged.
    LoggedTriggerFilters,
    /// A program at a uretprobe reads which function returns.
    FunctionAtReturn,
    /// Instances have the options of the function graph tracer.
    GraphInInstances,
    /// Records and lines have the flag of a lazy reschedule.
    LazyFlag,
    /// Links that are closed at the same time wait together.
    LinksCloseTogether,
    /// Headers have new words for the preemption model.
    PreemptionWords,
    /// Lines of option `fields` show addresses of symbols by name.
    SymbolsInFields,
    /// Lines of system calls have `0x` before arguments above 9.
    PrefixesInCalls,
    /// Where casts are not available, an argument that begins with a parenthesis is refused with an errno of its own.
    CastErrors,
    /// Functions may jump to trampolines.
    JumpsToTrampolines,
    /// A read into the page cache of a FUSE file has `EIO` in place of its error.
    PageReadErrors,
    /// Programs at raw tracepoints may be preempted.
    PreemptibleTracepoints,
    /// Definitions have errors of their own for functions that cannot be probed.
    RegistrationErrors,
    /// Lines of option `fields` show the bytes of texts that are not printable.
    BytesOfTexts,
    /// Programs at perf tracepoints of system calls may be preempted.
    PreemptibleCalls,
    /// Print formats of synthetic events separate fields by blanks.
    BlanksInFormats,
}

impl Change {
    /// All changes, by version.
    #[cfg(test)]
    const ALL: [Self; 17] = [
        Self::UnsignedChars,
        Self::LoggedTriggerFilters,
        Self::FunctionAtReturn,
        Self::GraphInInstances,
        Self::LazyFlag,
        Self::LinksCloseTogether,
        Self::PreemptionWords,
        Self::SymbolsInFields,
        Self::PrefixesInCalls,
        Self::CastErrors,
        Self::JumpsToTrampolines,
        Self::PageReadErrors,
        Self::PreemptibleTracepoints,
        Self::RegistrationErrors,
        Self::BytesOfTexts,
        Self::PreemptibleCalls,
        Self::BlanksInFormats,
    ];

    /// The first version with the change, and where that is known from: a commit, or the versions in which it was seen
    /// and not seen.
    fn origin(self) -> ((u32, u32), &'static str) {
        match self {
            Self::UnsignedChars => ((6, 2), "3bc753c06dd0"),
            Self::LoggedTriggerFilters => ((6, 2), "in 6.12, not in 6.1"),
            Self::FunctionAtReturn => ((6, 6), "a3c485a5d8d4"),
            Self::GraphInInstances => ((6, 11), "in 6.12, not in 6.1"),
            Self::LazyFlag => ((6, 13), "in 6.18, not in 6.12"),
            Self::LinksCloseTogether => ((6, 14), "in 6.18, not in 6.12"),
            Self::PreemptionWords | Self::SymbolsInFields => ((6, 15), "in 6.18, not in 6.12"),
            Self::PrefixesInCalls | Self::CastErrors => ((6, 18), "in 6.18, not in 6.12"),
            Self::JumpsToTrampolines => ((6, 19), "25e4e3565d45"),
            Self::PageReadErrors => ((6, 19), "in 7.3, not in 6.18"),
            Self::PreemptibleTracepoints => ((7, 0), "a46023d5616e"),
            Self::RegistrationErrors | Self::BytesOfTexts => ((7, 0), "in 7.0, not in 6.18"),
            Self::PreemptibleCalls => ((7, 2), "in 7.2, not in 6.18"),
            Self::BlanksInFormats => ((7, 2), "in 7.2, not in 7.0"),
        }
    }

    /// Whether a kernel of this version has the change.
    pub fn is_in(self, version: (u32, u32)) -> bool {
        version >= self.origin().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_versions() {
        assert_eq!(version_of("6.18.44-fc-v657"), (6, 18));
        assert_eq!(version_of("6.1.0-29-cloud-amd64"), (6, 1));
        assert_eq!(version_of("odd"), (0, 0));
    }

    /// The page with the table of these changes.
    const PAGE: &str = include_str!("../../../docs/reference/kernels.md");

    #[test]
    fn the_documentation_lists_every_change_with_its_origin() {
        let versions: Vec<(u32, u32)> = Change::ALL.iter().map(|change| change.origin().0).collect();
        assert!(versions.is_sorted(), "{versions:?}");
        let rows: Vec<&str> =
            PAGE.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| since")).collect();
        let begins = |change: &Change| {
            let ((major, minor), origin) = change.origin();
            format!("| {major}.{minor} | {origin} | ")
        };
        let expected: Vec<String> = Change::ALL.iter().map(begins).collect();
        assert_eq!(rows.len(), expected.len(), "{rows:#?}");
        for (row, expected) in rows.iter().zip(expected) {
            assert!(row.starts_with(&expected), "{row} begins otherwise than {expected}");
        }
    }

    #[test]
    fn a_change_is_in_all_later_versions() {
        assert!(!Change::UnsignedChars.is_in((6, 1)) && Change::UnsignedChars.is_in((6, 2)));
        assert!(Change::UnsignedChars.is_in((7, 0)) && !Change::PreemptibleTracepoints.is_in((6, 19)));
    }
}
