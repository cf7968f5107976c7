//! The event filter language: text to tokens to a typed tree, errors with the kernel's wording.
//!
//! The kernel (kernel/trace/trace_events_filter.c) works in two sweeps: it counts parentheses, quotes and terms
//! over the whole text, then reads the text once more and looks every field up while it reads, so that which
//! error is seen first depends on the event. The stages here are kept apart all the same. [`balance`] is the
//! first sweep. [`lex`] reads the text into tokens without knowing the event and says where it had to stop.
//! [`drafts`] groups the tokens into predicates, the last one perhaps unfinished; the resolver
//! ([`crate::plan::resolve`]) checks them in the text's order and reports the lexer's error only when none of
//! its own comes first. [`parse`] makes the tree.
//!
//! A filter is bytes: the kernel does not ask for UTF-8, and its letters are those of Latin-1.

pub mod ast;
pub mod balance;
mod dialect;
mod error;
mod lexer;
mod parser;
#[cfg(test)]
mod tests;
mod token;

pub use dialect::{Dialect, Feature, Probe};
pub use error::{ErrorKind, Fault, FilterError, shown};
pub use lexer::{Lexed, lex};
pub use parser::{Draft, drafts, parse, tree};
pub use token::{Op, Token, TokenKind, ValueKind};

use super::ctype;

/// Bytes that a filter may have at most less one: a write of a page or more fails with EINVAL and changes
/// nothing (`event_filter_write()`, kernel/trace/trace_events.c; 4 KiB pages).
pub const WRITE_MAX: usize = 4096;

/// Bytes of a quoted text must stay below this: `MAX_FILTER_STR_VAL`, include/linux/trace_events.h.
pub const TEXT_MAX: usize = 256;

/// Bytes of a number must stay below this: the size of `num_buf` in `parse_pred()`.
pub const NUMBER_MAX: usize = 24;

/// What a write to a `filter` file asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Too long: EINVAL, and nothing changes.
    TooLong,
    /// `0`: take the filter away.
    Clear,
    /// Set this filter: the text up to a NUL, white space at its end cut.
    Set(&'a [u8]),
}

/// Reads what was written to a `filter` file.
pub fn request(written: &[u8]) -> Request<'_> {
    if written.len() >= WRITE_MAX {
        return Request::TooLong;
    }
    let text = ctype::trim_end(written);
    if ctype::trim_start(text) == b"0" { Request::Clear } else { Request::Set(text) }
}
