//! `trace_marker` and `trace_marker_raw`: what is written here is recorded.

use crate::{
    engine::instance::{
        Mirror,
        mark::{Mark, Writer},
    },
    fs::entry::{At, Entry, Result, Shows},
};

fn take(mirror: &mut Mirror, at: At, mark: Mark, data: &[u8]) -> Result<usize> {
    mirror.mark(at.instance, mark, data, Writer::of(at.who))
}

pub(super) const TEXT: Entry =
    Entry::write("trace_marker", Shows::Nothing, |mirror, at, data| take(mirror, at, Mark::Text, data))
        .mode(0o220)
        .marks(Mark::Text);

pub(super) const RAW: Entry =
    Entry::write("trace_marker_raw", Shows::Nothing, |mirror, at, data| take(mirror, at, Mark::Raw, data))
        .mode(0o220)
        .marks(Mark::Raw);
