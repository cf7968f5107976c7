//! Builds histograms from commands: resolves names and changes the set of triggers.

mod apply;
mod making;
mod params;
