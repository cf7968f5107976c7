//! The print-fmt engine. It compiles text to tokens, tokens to a tree, and the tree with the event's fields to a
//! [`Program`]. The program renders a record's bytes to text.
//!
//! The kernel contains the compiled form of this text. The result therefore follows the C compiler: integer
//! promotions, sign extension into `unsigned long` parameters, arguments truncated to their conversion's width.

mod ast;
mod ctype;
mod eval;
mod flat;
mod lexer;
mod lower;
mod parser;
mod program;

pub use lexer::SyntaxError;
pub use parser::parse;

pub(super) use ctype::CType;
pub(super) use flat::{Builder, Flat};
pub(super) use lower::{lower, scalar};
pub(super) use program::Program;
