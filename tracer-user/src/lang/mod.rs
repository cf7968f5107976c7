//! Parsers of the kernel's languages: text to a typed tree with spans.
//!
//! Every parser reports an error as a kind and a span. Only [`caret`] draws errors, and it is independent of the
//! languages.
//!
//! The modules also share the rules of the kernel's C library for character classes, numbers and CPU lists. Those rules
//! decide which filters, fetch arguments and triggers are valid.

pub mod caret;
pub mod cpulist;
pub mod ctype;
pub mod define;
mod error_kinds;
pub mod facts;
pub mod fetch;
pub mod filter;
pub mod hist;
pub mod inject;
pub mod number;
mod span;
pub mod synth;
pub mod trigger;
pub mod user;

pub use span::Span;
