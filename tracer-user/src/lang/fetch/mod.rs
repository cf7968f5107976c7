//! Fetch arguments: `[NAME=]FETCH[:TYPE]`, what a dynamic event records of a hit.
//!
//! [`parse`] makes a tree of a word, knowing of the probe no more than what decides which words are words there
//! ([`At`]). It does not stop at the first thing it cannot read: the kernel's parser looks symbols, types and names
//! up while it reads, so that an error of theirs may come first. What cannot be read stays in the tree as a
//! [`Stop`], and [`Checker`] goes through the tree in the kernel's order, reports what comes first, and leaves a
//! [`Program`]: the steps that fetch the value, which is where planning and code generation start.
//!
//! A word is bytes: the kernel does not ask for UTF-8.

mod ast;
mod check;
mod error;
mod parser;
mod program;
mod types;
mod value;

pub use ast::{Argument, Fetch, FetchKind, Path, Step, TypeSpec};
pub use check::{Checked, Checker, Site};
pub use error::{ErrorKind, Fault, Stop};
pub use parser::{Draft, parse};
pub use program::{Op, Program, Source, Store};

/// Arguments of an event: `MAX_TRACE_ARGS`, kernel/trace/trace_probe.h.
pub const ARGS_MAX: usize = 128;
/// Bytes of an argument behind its name: `MAX_ARGSTR_LEN`.
pub const TEXT_MAX: usize = 63;
/// Bytes of an argument's name: `MAX_ARG_NAME_LEN`.
pub const ARG_NAME_MAX: usize = 32;
/// Elements of an array: `MAX_ARRAY_LEN`.
pub const ARRAY_MAX: u32 = 64;
/// Bytes of all arguments in the record's fixed part: `MAX_PROBE_EVENT_SIZE`.
pub const SIZE_MAX: u32 = 3072;
/// Steps of an argument: `FETCH_INSN_MAX` less the one that ends them.
pub const OPS_MAX: usize = 15;

/// Where a probe sits, as far as the language asks (`TPARG_FL_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// A kernel function's first instruction, by kprobe.
    KprobeEntry,
    /// A kernel function's return, by kprobe.
    KprobeExit,
    /// Another instruction of the kernel.
    KprobeInside,
    /// A kernel function's first instruction, by fprobe.
    FprobeEntry,
    /// A kernel function's return, by fprobe.
    FprobeExit,
    /// A tracepoint.
    Tracepoint,
    /// An instruction of a file.
    User,
    /// The return of a function of a file.
    UserExit,
    /// An event.
    Event,
}

impl At {
    /// Whether it is in the kernel.
    pub fn is_kernel(self) -> bool {
        !matches!(self, Self::User | Self::UserExit)
    }

    /// Whether a kernel function's arguments are at hand (`tparg_is_function_entry()`).
    pub fn is_entry(self) -> bool {
        matches!(self, Self::KprobeEntry | Self::FprobeEntry | Self::Tracepoint)
    }

    /// Whether it is a kernel function's return (`tparg_is_function_return()`).
    pub fn is_exit(self) -> bool {
        matches!(self, Self::KprobeExit | Self::FprobeExit)
    }

    /// Whether there is a value that is returned.
    pub fn has_return(self) -> bool {
        self.is_exit() || self == Self::UserExit
    }

    /// Whether there are registers.
    pub fn has_registers(self) -> bool {
        !matches!(self, Self::FprobeEntry | Self::FprobeExit | Self::Tracepoint | Self::Event)
    }
}

/// Whether a text can be the name of a field, an event or (with `-` as a letter) a group.
pub(crate) fn is_name(text: &[u8], hyphen: bool) -> bool {
    let letter = |byte: u8| is_alpha(byte) || byte == b'_' || (hyphen && byte == b'-');
    match text.split_first() {
        Some((first, rest)) => letter(*first) && rest.iter().all(|b| letter(*b) || b.is_ascii_digit()),
        None => false,
    }
}

/// `isalpha()`, with the letters of Latin-1.
pub(crate) fn is_alpha(byte: u8) -> bool {
    super::ctype::is_alnum(byte) && !byte.is_ascii_digit()
}
