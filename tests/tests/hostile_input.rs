//! What the fuzz targets do, over some inputs each and seeded, so that every run of the tests does the same: state files, requests to
//! the tree, files of programs, and records. Nothing here needs root, and nothing is attached.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "a crate of its own elsewhere")]
#[allow(dead_code, clippy::pedantic, missing_docs)]
mod drive;

/// Runs a target over so many inputs that are the same every time.
fn over(inputs: u32, longest: usize, run: fn(&[u8])) {
    let config = Config { cases: inputs, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner
        .run(&vec(any::<u8>(), 0..longest), |input| {
            run(&input);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn requests_in_any_order() {
    over(400, 3000, drive::tree::run);
}

#[test]
fn records_that_hold_anything() {
    over(150, 2000, drive::wire::run);
}

#[test]
fn files_of_programs() {
    over(2000, 600, drive::note::run);
}

/// A state with something of every sort, some of which can be had.
const STATE: &str = include_str!("../fuzz/seeds/state/whole.json");

#[test]
fn state_files() {
    drive::state::run(STATE.as_bytes());
    over(500, 400, |input| {
        let mut state = STATE.as_bytes().to_vec();
        // Each three bytes put one of the alphabet's in some place, or take it out.
        for change in input.chunks_exact(3).take(4) {
            let at = usize::from(change[0]) * 256 + usize::from(change[1]);
            let at = at % state.len();
            match change[2] {
                0..=63 => drop(state.remove(at)),
                byte => state[at] = b"0123456789-.eE\",:[]{}truefalsn\\u"[usize::from(byte) % 32],
            }
        }
        drive::state::run(&state);
    });
}
