//! `trace_marker` and `trace_marker_raw`: what is written here is recorded.

use crate::{
    control::instance::{
        Mirror,
        mark::{Mark, Writer},
    },
    tree::entry::{At, Entry, Result, Shows},
};

fn take(mirror: &mut Mirror, at: At, mark: Mark, data: &[u8]) -> Result<usize> {
    mirror.mark(at.instance, mark, data, Writer { pid: at.who, cpu: cpu_of(at.who) })
}

/// The CPU on which a thread that waits for us last ran: the 39th word of its `stat` file (proc(5)).
fn cpu_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, the second word, may hold anything.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    behind.split_whitespace().nth(36).and_then(|cpu| cpu.parse().ok()).unwrap_or(0)
}

pub(super) const TEXT: Entry =
    Entry::write("trace_marker", Shows::Nothing, |mirror, at, data| take(mirror, at, Mark::Text, data))
        .mode(0o220);

pub(super) const RAW: Entry =
    Entry::write("trace_marker_raw", Shows::Nothing, |mirror, at, data| take(mirror, at, Mark::Raw, data))
        .mode(0o220);
