//! From a command to histograms: names are resolved, and the set of triggers changes.

mod apply;
mod making;
mod params;
