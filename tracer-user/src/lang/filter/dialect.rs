//! The filter language of a kernel as a set of features.
//!
//! A kernel without a feature reports its own error for it. Features are detected, never derived from a version.

use std::fmt;

/// A feature of the filter language that only some kernels have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// `field.ustring`: the pointer refers to user memory (since 5.17).
    UserText,
    /// `field.function == name` (not in 6.1, in 6.12).
    Function,
    /// `field & CPUS{0-3}`, and cpumask fields with full support (not in 6.1, in 6.12).
    CpuSets,
    /// The generic fields `stacktrace` and `STACKTRACE` (not in 6.1, in 6.12).
    Stacktrace,
    /// Accepts a final junction without a following term (`a == 1 &&`). 6.18 does; Debian's 6.1 and 6.12 report a
    /// meaningless expression.
    LooseEnd,
    /// The parsing pass allows two terms and two parentheses more than the counting pass found. Only quotes inside
    /// `CPUS{}` can use them, and the kernel then writes past its arrays. 6.18 does.
    LooseCounts,
}

/// How to detect a [`Feature`] on a live kernel: write `filter` to the filter file of any event. The kernel lacks the
/// feature if it reports the parse error `refusal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// A filter for any event.
    pub filter: &'static str,
    /// The parse error of a kernel without the feature; no other kernel reports it.
    pub refusal: &'static str,
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 6] =
        [Self::UserText, Self::Function, Self::CpuSets, Self::Stacktrace, Self::LooseEnd, Self::LooseCounts];

    /// How to detect the feature on a live kernel.
    pub fn probe(self) -> Probe {
        let (filter, refusal) = match self {
            Self::UserText => ("CPU.ustring == 0", "Invalid operator"),
            // With the feature: "Illegal operation for field type", because the field is smaller than a pointer.
            Self::Function => ("common_pid.function == 0", "Invalid operator"),
            Self::CpuSets => ("CPU == CPUS{0}", "Invalid value (did you forget quotes)?"),
            Self::Stacktrace => ("stacktrace == 0", "Field not found"),
            Self::LooseEnd => ("CPU == 0 &&", "Meaningless filter expression"),
            // Two terms while one is counted. The write past the array stays in its kmalloc-96 slot.
            Self::LooseCounts => {
                ("CPU == CPUS{0\n'} && CPU == CPUS{0\n'}", "Too many terms in predicate expression")
            }
        };
        Probe { filter, refusal }
    }

    /// An enumerator in the kernel's BTF that exists exactly if the feature exists: the name of its enum (empty if the
    /// enum has no name), and its own name. `None` if BTF cannot show the feature.
    pub fn enumerator(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::UserText => Some(("filter_pred_fn", "FILTER_PRED_FN_PCHAR_USER")),
            Self::Function => Some(("filter_pred_fn", "FILTER_PRED_FN_FUNCTION")),
            Self::CpuSets => Some(("filter_pred_fn", "FILTER_PRED_FN_CPUMASK")),
            Self::Stacktrace => Some(("", "FILTER_STACKTRACE")),
            Self::LooseEnd | Self::LooseCounts => None,
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The filter language of one kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    features: u8,
    message_max: usize,
}

impl Dialect {
    /// Maximum size of a message in bytes if `struct trace_seq` is two pages (6.12).
    pub const MESSAGE_MAX: usize = 8156;

    /// Maximum size of a message in bytes if `struct trace_seq` holds one page (6.1).
    pub const MESSAGE_MAX_SMALL: usize = 4096;

    /// A filter whose error message exceeds [`Self::MESSAGE_MAX_SMALL`]. A kernel with that limit shows no
    /// `parse_error` for it. It is used like [`Feature::probe`].
    pub fn message_probe() -> Vec<u8> {
        [&[b' '; 3000], "no_such_field_anywhere == 1".as_bytes()].concat()
    }

    /// All features of any kernel, for a kernel that cannot be probed.
    pub fn newest() -> Self {
        Self { features: u8::MAX, message_max: Self::MESSAGE_MAX }
    }

    /// Only the features that every kernel has.
    pub fn oldest() -> Self {
        Self { features: 0, message_max: Self::MESSAGE_MAX_SMALL }
    }

    /// The dialect for which `known` reports whether the kernel has a feature. An unknown feature (`None`) counts as
    /// present, so that an unknown fact never causes the rejection of a filter.
    pub fn detect(known: impl Fn(Feature) -> Option<bool>) -> Self {
        Feature::ALL
            .into_iter()
            .filter(|feature| known(*feature) == Some(false))
            .fold(Self::newest(), Self::without)
    }

    /// Removes a feature.
    #[must_use]
    pub fn without(mut self, feature: Feature) -> Self {
        self.features &= !feature.bit();
        self
    }

    /// Sets the maximum size of a message in bytes.
    #[must_use]
    pub fn with_message_max(mut self, bytes: usize) -> Self {
        self.message_max = bytes;
        self
    }

    /// Whether the kernel has the feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.features & feature.bit() != 0
    }

    /// Maximum size of an error message in bytes. Lines that do not fit are dropped.
    pub fn message_max(&self) -> usize {
        self.message_max
    }
}

impl Default for Dialect {
    fn default() -> Self {
        Self::newest()
    }
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Feature::ALL.iter().filter(|feature| self.has(**feature))).finish()
    }
}
