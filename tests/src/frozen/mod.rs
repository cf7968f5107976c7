//! The facts of kernels that are frozen in files, and records with the text that a kernel made of them.

pub mod facts;
pub mod golden;
