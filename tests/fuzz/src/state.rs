//! Fuzzes state files: an accepted state is within limits, restoring it never panics, and the state that the mirror
//! saves afterwards is accepted again.

use tracer_user::{
    engine::saved::{Saved, restore, settings},
    lang::facts::Found,
};

use super::frozen;

/// Restores the input as a state file.
pub fn run(data: &[u8]) {
    taken(data);
}

/// Does the same as [`run`] and returns how many state files were accepted: 0 or 1.
pub fn taken(data: &[u8]) -> u64 {
    let Ok(saved) = Saved::parse(data) else { return 0 };
    let written = serde_json::to_vec(&saved).expect("a state is JSON");
    assert_eq!(Saved::parse(&written).expect("what was read can be written"), saved);
    let mut mirror = frozen::mirror();
    let _ = restore(&mut mirror, &saved, &mut |wanted| Found::open(wanted));
    let kept = settings(&mirror);
    let written = serde_json::to_vec(&kept).expect("a state is JSON");
    let again =
        Saved::parse(&written).unwrap_or_else(|error| panic!("a saved state is rejected: {error}: {kept:?}"));
    let mut second = frozen::mirror();
    let _ = restore(&mut second, &again, &mut |wanted| Found::open(wanted));
    1
}
