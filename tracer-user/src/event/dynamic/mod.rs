//! Dynamic events: what a definition of `dynamic_events` makes, as everybody else sees an event.
//!
//! An [`Event`] holds names, a place and arguments with types, and nothing of how a value is fetched: that is the
//! language's (`lang::fetch`). From it come the record's fields, the `format` file, the print fmt ([`layout`]) and
//! the line that `dynamic_events` shows ([`readback`]), all as the kernel writes them (kernel/trace/trace_probe.c
//! and the files of the four kinds of probe).
//!
//! The kernel's names are bytes whose letters are those of Latin-1. They are kept as text, one character a byte
//! ([`latin1`]), and written back as bytes ([`raw`]).

mod layout;
mod readback;
mod types;

pub(crate) use layout::RESERVED;
pub(in crate::event) use layout::{common_fields, field, format_text, format_text_with};
pub use types::{FetchType, TYPES};

/// Bytes of a group's or an event's name, the NUL included: `MAX_EVENT_NAME_LEN`, kernel/trace/trace.h.
pub const NAME_MAX: usize = 64;

/// An event that a definition makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Group: the event's directory under `events`.
    pub group: String,
    /// Name.
    pub name: String,
    /// Where it sits.
    pub target: Target,
    /// Returns that are followed at a time; 0 leaves it to the kernel.
    pub maxactive: u32,
    /// What a hit records, in order.
    pub args: Vec<Arg>,
}

/// Where a dynamic event sits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `f`: a function's entry or exit; the name may be a glob.
    Function {
        /// Name or glob.
        symbol: String,
        /// Whether it is the exit.
        exit: bool,
    },
    /// `t`: a tracepoint.
    Tracepoint {
        /// Its name.
        name: String,
    },
    /// `p`, `r`: an instruction of the kernel, or the return of the function that starts there.
    Kernel {
        /// Which instruction.
        place: Place,
        /// Whether it is the return.
        exit: bool,
    },
    /// `p`, `r`: an instruction of a file.
    File {
        /// The file's path as it was written.
        path: Vec<u8>,
        /// Offset in the file.
        offset: u64,
        /// Offset of a counter that is raised while the probe is in place; 0 for none.
        reference: u64,
        /// Whether it is the return of the function that starts there.
        exit: bool,
    },
    /// `e`: another event.
    Event {
        /// Its system.
        system: String,
        /// Its name.
        name: String,
        /// Which of its hits count; None for all.
        filter: Option<Vec<u8>>,
    },
}

/// An instruction of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `[MOD:]SYM[+OFFSET]`
    Symbol {
        /// Name, the module's in front of it.
        name: String,
        /// Bytes behind it.
        offset: u32,
    },
    /// An address.
    Address(u64),
}

/// What tells kinds of dynamic events apart: an event's probes are all of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `f` and `t`.
    Fprobe,
    /// `p` and `r` in the kernel.
    Kprobe,
    /// `p` and `r` in a file.
    Uprobe,
    /// `e`.
    Eprobe,
}

/// One recorded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    /// Name, also the field's.
    pub name: String,
    /// The definition behind `NAME=`, as it was written.
    pub text: Vec<u8>,
    /// Type of the value, or of one element.
    pub ty: &'static FetchType,
    /// Elements of an array; 0 for a single value.
    pub count: u32,
    /// Bytes from the first argument's place in the record.
    pub offset: u32,
}

impl Event {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self.target {
            Target::Function { .. } | Target::Tracepoint { .. } => Kind::Fprobe,
            Target::Kernel { .. } => Kind::Kprobe,
            Target::File { .. } => Kind::Uprobe,
            Target::Event { .. } => Kind::Eprobe,
        }
    }

    /// Whether it sits on a return.
    pub fn is_exit(&self) -> bool {
        match self.target {
            Target::Function { exit, .. } | Target::Kernel { exit, .. } | Target::File { exit, .. } => exit,
            Target::Tracepoint { .. } | Target::Event { .. } => false,
        }
    }

    /// Which argument is the first that differs in name, type or length from the other event's, counted from 0; that
    /// behind the shorter one's last where one has more (`trace_probe_compare_arg_type()`). Two probes of one event
    /// must not differ.
    pub fn first_difference(&self, other: &Self) -> Option<usize> {
        if self.args.len() != other.args.len() {
            return Some(self.args.len().min(other.args.len()));
        }
        self.args
            .iter()
            .zip(&other.args)
            .position(|(a, b)| a.ty != b.ty || a.count != b.count || a.name != b.name)
    }
}

impl Arg {
    /// Bytes in the record's fixed part.
    pub fn size(&self) -> u32 {
        self.ty.size * self.count.max(1)
    }
}

/// Bytes as text, one character a byte.
pub fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The bytes that [`latin1`] made text of.
pub fn raw(text: &str) -> Vec<u8> {
    text.chars().map(|c| c as u8).collect()
}
