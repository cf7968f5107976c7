//! The short form of the soak test; `cargo xtask soak` runs the long form.

use std::time::Duration;

use tracer_tests::{host, soak};

#[test]
fn every_hit_is_in_exactly_one_count() {
    if host::root_or_skip() {
        let report = soak::run(Duration::from_secs(12), 1, |report| println!("{report:?}"));
        report.unwrap_or_else(|error| panic!("{error:#}"));
    }
}
