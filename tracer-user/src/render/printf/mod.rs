//! The kernel's printf (lib/vsprintf.c): conversions, numbers, strings and the `%p` extensions.
//!
//! It differs from C's in what a trace shows: precision does not stop zero padding of numbers, `%c` knows a
//! width, strings at bad addresses print a word, and `%p` is a language of its own.

mod errno;
pub mod number;
pub mod pointer;
pub mod spec;
