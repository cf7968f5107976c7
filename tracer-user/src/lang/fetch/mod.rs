//! Parser of fetch arguments: `[NAME=]FETCH[:TYPE]`, the values that a dynamic event records.
//!
//! [`parse`] builds the tree of a word. [`At`] is its only information about the probe; it decides the valid syntax.
//! The parser continues after an error: the kernel's parser looks up symbols, types and names while it reads, and one
//! of those errors may come first. The tree keeps every syntax error as a [`Stop`].
//!
//! [`Checker`] walks the tree in the kernel's order and reports the first error. Its result is a [`Program`], the steps
//! that fetch the value, which planning and code generation use.
//!
//! A word consists of bytes: the kernel does not require UTF-8.

mod ast;
mod check;
mod error;
mod parser;
mod program;
mod types;
mod value;

#[cfg(any(test, feature = "internals"))]
pub use ast::Argument;
pub use ast::{Cast, Fetch, FetchKind, Path, Step, TypeSpec};
pub use check::{Checked, Checker, Site};
pub use error::{ErrorKind, Fault, Stop};
pub use parser::{Draft, parse};
pub use program::{Op, Program, Source, Store};

/// Maximum number of arguments of an event: `MAX_TRACE_ARGS`, `kernel/trace/trace_probe.h`.
pub const ARGS_MAX: usize = 128;
/// Maximum length of an argument in bytes, without its name: `MAX_ARGSTR_LEN`.
pub const TEXT_MAX: usize = 63;
/// Its maximum length in later kernels ([`Feature::LongArguments`](super::facts::Feature::LongArguments)).
pub const LONG_TEXT_MAX: usize = 255;
/// Maximum number of dereferences and casts around a value: `TRACEPROBE_MAX_NESTED_LEVEL`.
pub const NESTING_MAX: usize = 8;
/// Maximum length of an argument's name in bytes: `MAX_ARG_NAME_LEN`.
pub const ARG_NAME_MAX: usize = 32;
/// Maximum number of array elements: `MAX_ARRAY_LEN`.
pub const ARRAY_MAX: u32 = 64;
/// Maximum size of all arguments in the fixed part of the record, in bytes: `MAX_PROBE_EVENT_SIZE`.
pub const SIZE_MAX: u32 = 3072;
/// Maximum number of steps of an argument: `FETCH_INSN_MAX` less the end marker.
pub const OPS_MAX: usize = 15;

/// The kind of location of a probe, as far as the syntax depends on it (`TPARG_FL_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Entry of a kernel function, by kprobe.
    KprobeEntry,
    /// Return of a kernel function, by kprobe.
    KprobeExit,
    /// Any other instruction of the kernel.
    KprobeInside,
    /// Entry of a kernel function, by fprobe.
    FprobeEntry,
    /// Return of a kernel function, by fprobe.
    FprobeExit,
    /// A tracepoint.
    Tracepoint,
    /// An instruction in a user-space file.
    User,
    /// Return of a function in a user-space file.
    UserExit,
    /// Another event.
    Event,
}

impl At {
    /// Whether the probe is in the kernel.
    pub fn is_kernel(self) -> bool {
        !matches!(self, Self::User | Self::UserExit)
    }

    /// Whether the arguments of a kernel function are available (`tparg_is_function_entry()`).
    pub fn is_entry(self) -> bool {
        matches!(self, Self::KprobeEntry | Self::FprobeEntry | Self::Tracepoint)
    }

    /// Whether the probe is at the return of a kernel function (`tparg_is_function_return()`).
    pub fn is_exit(self) -> bool {
        matches!(self, Self::KprobeExit | Self::FprobeExit)
    }

    /// Whether a return value is available.
    pub fn has_return(self) -> bool {
        self.is_exit() || self == Self::UserExit
    }

    /// Whether registers are available.
    pub fn has_registers(self) -> bool {
        !matches!(self, Self::FprobeEntry | Self::FprobeExit | Self::Tracepoint | Self::Event)
    }
}

/// Whether a text is a valid name of a field or an event, or with `hyphen` (`-` counts as a letter) of a group.
pub(crate) fn is_name(text: &[u8], hyphen: bool) -> bool {
    let letter = |byte: u8| is_alpha(byte) || byte == b'_' || (hyphen && byte == b'-');
    match text.split_first() {
        Some((first, rest)) => letter(*first) && rest.iter().all(|b| letter(*b) || b.is_ascii_digit()),
        None => false,
    }
}

/// `isalpha()`, including the Latin-1 letters.
pub(crate) fn is_alpha(byte: u8) -> bool {
    super::ctype::is_alnum(byte) && !byte.is_ascii_digit()
}
