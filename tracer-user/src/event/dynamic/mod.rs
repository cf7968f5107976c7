//! Dynamic events: the event that a definition in `dynamic_events` creates.
//!
//! An [`Event`] consists of names, a place and typed arguments; `lang::fetch` defines how a value is fetched. The
//! record's fields, the `format` file, the print fmt ([`layout`]) and the line in `dynamic_events` ([`readback`])
//! derive from it, all in the kernel's form (kernel/trace/trace_probe.c and the files of the four kinds of probe).
//!
//! The kernel's names are bytes, interpreted as Latin-1. They are stored as text, one character for each byte
//! ([`latin1`]), and written back as bytes ([`raw`]).

mod layout;
mod readback;
mod types;

pub(crate) use layout::{RESERVED, common_fields, field};
pub use types::{FetchType, TYPES};

/// Maximum length of a group's or event's name, including the NUL: `MAX_EVENT_NAME_LEN`, kernel/trace/trace.h.
pub const NAME_MAX: usize = 64;

/// An event created by a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Group: the event's directory under `events`.
    pub group: String,
    /// Name.
    pub name: String,
    /// Where the event's probe is attached.
    pub target: Target,
    /// Maximum number of concurrent returns (`maxactive`); 0 selects the kernel's default.
    pub maxactive: u32,
    /// The values that a hit records, in order.
    pub args: Vec<Arg>,
}

/// Where a dynamic event's probe is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `f`: a function's entry or exit; the name may be a glob.
    Function {
        /// Name or glob.
        symbol: String,
        /// Whether the probe is on the exit.
        exit: bool,
    },
    /// `t`: a tracepoint.
    Tracepoint {
        /// Its name.
        name: String,
    },
    /// `p`, `r`: an instruction of the kernel, or the return of the function that starts there.
    Kernel {
        /// The instruction.
        place: Place,
        /// Whether the probe is on the return.
        exit: bool,
    },
    /// `p`, `r`: an instruction of a file, or the return of the function that starts there.
    File {
        /// The file's path as written.
        path: Vec<u8>,
        /// Offset in the file.
        offset: u64,
        /// Offset of a counter that the kernel increments while the probe is attached; 0 for none.
        reference: u64,
        /// Whether the probe is on the return.
        exit: bool,
    },
    /// `e`: another event.
    Event {
        /// Its system.
        system: String,
        /// Its name.
        name: String,
        /// The filter on its hits; None for all hits.
        filter: Option<Vec<u8>>,
    },
}

/// An instruction of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `[MOD:]SYM[+OFFSET]`
    Symbol {
        /// Name, with the module's name as a prefix.
        name: String,
        /// Bytes after the symbol.
        offset: u32,
    },
    /// An address.
    Address(u64),
}

/// The kind of a dynamic event. All probes of one event are of the same kind.
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

/// A recorded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    /// Name, which is also the field's.
    pub name: String,
    /// The definition after `NAME=`, as written.
    pub text: Vec<u8>,
    /// Type of the value, or of one element.
    pub ty: &'static FetchType,
    /// Number of elements of an array; 0 for a single value.
    pub count: u32,
    /// Offset in bytes from the first argument in the record.
    pub offset: u32,
}

impl Event {
    /// The event's kind.
    pub fn kind(&self) -> Kind {
        match self.target {
            Target::Function { .. } | Target::Tracepoint { .. } => Kind::Fprobe,
            Target::Kernel { .. } => Kind::Kprobe,
            Target::File { .. } => Kind::Uprobe,
            Target::Event { .. } => Kind::Eprobe,
        }
    }

    /// Whether the probe is on a return.
    pub fn is_exit(&self) -> bool {
        match self.target {
            Target::Function { exit, .. } | Target::Kernel { exit, .. } | Target::File { exit, .. } => exit,
            Target::Tracepoint { .. } | Target::Event { .. } => false,
        }
    }

    /// The index, from 0, of the first argument whose name, type or length differs from the other event's. If the
    /// numbers of arguments differ, the index after the last argument of the shorter list
    /// (`trace_probe_compare_arg_type()`). Two probes of one event must not differ.
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

/// Converts bytes to text, one character for each byte.
pub fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// Converts text from [`latin1`] back to bytes.
pub fn raw(text: &str) -> Vec<u8> {
    text.chars().map(|c| c as u8).collect()
}
