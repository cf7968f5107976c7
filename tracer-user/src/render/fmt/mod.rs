//! The print-fmt engine: text to tokens, tokens to a tree, the tree and the event's fields to a [`Program`],
//! and the program over a record's bytes to text.
//!
//! The kernel does not read this text, it compiled it; so what counts is what the C compiler made of it: integer
//! promotions, sign extension into `unsigned long` parameters, arguments cut to their conversion's width.

pub mod ast;
mod ctype;
mod eval;
mod lexer;
mod lower;
mod parser;
mod program;

pub use ctype::{CType, Type};
pub use lexer::SyntaxError;
pub use parser::parse;
pub use program::Program;

pub(super) use eval::Eval;
pub(super) use lower::{lower, scalar};
