//! The kernel's languages: text to a typed tree with spans.
//!
//! Every language returns a kind and a span; [`caret`] alone draws them, and knows nothing of any language.

pub mod filter;
