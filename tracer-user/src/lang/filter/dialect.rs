//! What a kernel's filter language knows: features came over the years, and a kernel without one
//! refuses it with an error of its own. Features are detected, never derived from a version.

use std::fmt;

/// Something that not every kernel's filter language has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// `field.ustring`: the pointer is one into user memory (since 5.17).
    UserText,
    /// `field.function == name` (not in 6.1, in 6.12).
    Function,
    /// `field & CPUS{0-3}`, and cpumask fields that are more than a number (not in 6.1, in 6.12).
    CpuSets,
    /// The generic fields `stacktrace` and `STACKTRACE` (not in 6.1, in 6.12).
    Stacktrace,
    /// A junction with nothing behind it at the end (`a == 1 &&`) is let pass. 6.18 does; the 6.1 and 6.12 of
    /// Debian call it meaningless.
    LooseEnd,
    /// The sweep that reads allows two terms and two parentheses more than the sweep that counts has found, which
    /// only quotes inside `CPUS{}` can make use of (writing behind the kernel's arrays as it goes). 6.18 does.
    LooseCounts,
}

/// How to find out on a live kernel whether it has a [`Feature`]: write `filter` to any event's filter file; the
/// kernel lacks the feature if the parse error it shows is `refusal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// A filter for any event.
    pub filter: &'static str,
    /// Text of the parse error that a kernel without the feature gives, and no other.
    pub refusal: &'static str,
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::UserText, Self::Function, Self::CpuSets, Self::Stacktrace, Self::LooseEnd, Self::LooseCounts];

    /// How to ask a live kernel.
    pub fn probe(self) -> Probe {
        let (filter, refusal) = match self {
            Self::UserText => ("CPU.ustring == 0", "Invalid operator"),
            // With the feature: "Illegal operation for field type", the field being smaller than a pointer.
            Self::Function => ("common_pid.function == 0", "Invalid operator"),
            Self::CpuSets => ("CPU == CPUS{0}", "Invalid value (did you forget quotes)?"),
            Self::Stacktrace => ("stacktrace == 0", "Field not found"),
            Self::LooseEnd => ("CPU == 0 &&", "Meaningless filter expression"),
            // Two terms where one is counted: what is written too much stays in the array's kmalloc-96 slot.
            Self::LooseCounts => {
                ("CPU == CPUS{0\n'} && CPU == CPUS{0\n'}", "Too many terms in predicate expression")
            }
        };
        Probe { filter, refusal }
    }

    /// An enumerator of the kernel's types (BTF) that is there exactly when the feature is: the name of its enum,
    /// empty for one without a name, and its own. None where the types do not tell.
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
    message_room: usize,
}

impl Dialect {
    /// Bytes of a message at most where `struct trace_seq` is two pages (6.12).
    pub const MESSAGE_ROOM: usize = 8156;

    /// Bytes of a message at most where `struct trace_seq` holds one page (6.1).
    pub const MESSAGE_ROOM_SMALL: usize = 4096;

    /// A filter whose error message is cut by a kernel that has only [`Self::MESSAGE_ROOM_SMALL`]: it shows no
    /// `parse_error`. Same form as [`Feature::probe`].
    pub fn message_probe() -> Vec<u8> {
        [&[b' '; 3000], "no_such_field_anywhere == 1".as_bytes()].concat()
    }

    /// All that any kernel takes: for one that cannot be asked.
    pub fn newest() -> Self {
        Self { features: u8::MAX, message_room: Self::MESSAGE_ROOM }
    }

    /// Only what every kernel takes.
    pub fn oldest() -> Self {
        Self { features: 0, message_room: Self::MESSAGE_ROOM_SMALL }
    }

    /// The dialect for which `known` says of each feature whether the kernel has it; where it cannot tell
    /// (None) the feature is taken as there, so that a filter is never refused for want of an answer.
    pub fn detect(known: impl Fn(Feature) -> Option<bool>) -> Self {
        Feature::ALL
            .into_iter()
            .filter(|feature| known(*feature) == Some(false))
            .fold(Self::newest(), Self::without)
    }

    /// The same without a feature.
    #[must_use]
    pub fn without(mut self, feature: Feature) -> Self {
        self.features &= !feature.bit();
        self
    }

    /// The same with another room for messages.
    #[must_use]
    pub fn with_message_room(mut self, bytes: usize) -> Self {
        self.message_room = bytes;
        self
    }

    /// Whether the kernel has the feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.features & feature.bit() != 0
    }

    /// Bytes of an error message at most; what does not fit is dropped line by line.
    pub fn message_room(&self) -> usize {
        self.message_room
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
