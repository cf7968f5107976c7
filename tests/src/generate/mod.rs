//! Generators of random test cases. The same seed makes the same case.

pub mod definitions;
pub mod filters;
pub mod histograms;
pub mod plans;
mod rng;
pub mod values;

pub use rng::Rng;
