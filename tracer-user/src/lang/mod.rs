//! The kernel's languages: text to a typed tree with spans.
//!
//! Every language returns a kind and a span; [`caret`] alone draws them, and knows nothing of any language.
//! What the languages share with the kernel's C library (character classes, number and CPU list syntax) lives
//! here too, because each of those rules shows in what a filter, a fetch argument or a trigger accepts.

pub mod caret;
pub mod cpulist;
pub mod ctype;
pub mod define;
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
