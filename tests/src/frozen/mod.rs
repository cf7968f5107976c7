//! Facts of kernels, frozen in files, and records with the text that a kernel rendered for them.

pub mod facts;
pub mod golden;
