//! Parser of the event filter language: text to tokens to a typed tree, with the kernel's errors.
//!
//! The kernel (`kernel/trace/trace_events_filter.c`) makes two passes. The first counts parentheses, quotes and terms
//! of the whole text. The second parses the text and looks up every field on the way. Its first error therefore depends
//! on the event.
//!
//! This module separates the stages. [`balance`] is the first pass. [`lex`] splits the text into tokens without the
//! event, and reports where it stopped. [`drafts`] groups the tokens into predicates, of which the last may be
//! incomplete. The resolver ([`crate::plan::resolve`]) checks the predicates in order. It reports the lexer's error
//! only if it finds no earlier error. [`parse`] builds the tree.
//!
//! A filter consists of bytes: the kernel does not require UTF-8, and its letters are Latin-1.

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

/// A filter must be shorter than this many bytes. A longer write fails with EINVAL and changes nothing
/// (`event_filter_write()`, `kernel/trace/trace_events.c`; 4 KiB pages).
pub const WRITE_MAX: usize = 4096;

/// A quoted text must be shorter than this many bytes: `MAX_FILTER_STR_VAL`, `include/linux/trace_events.h`.
pub const TEXT_MAX: usize = 256;

/// A number must be shorter than this many bytes: the size of `num_buf` in `parse_pred()`.
pub const NUMBER_MAX: usize = 24;

/// The request of a write to a `filter` file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// The write is too long: EINVAL, without a change.
    TooLong,
    /// `0`: remove the filter.
    Clear,
    /// Set this filter: the text before a NUL, without trailing white space.
    Set(&'a [u8]),
}

/// Parses a write to a `filter` file.
pub fn request(written: &[u8]) -> Request<'_> {
    if written.len() >= WRITE_MAX {
        return Request::TooLong;
    }
    let text = ctype::trim_end(written);
    if ctype::trim_start(text) == b"0" { Request::Clear } else { Request::Set(text) }
}
