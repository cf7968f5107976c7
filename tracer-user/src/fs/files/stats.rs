//! `per_cpu/cpuN/stats`: the counts of a CPU's buffer. The last lines are ours: hits of the events' programs
//! and how many of them the filters dropped, and hits that no program saw.

use rustix::io::Errno;

use crate::{
    buffer::clock::{Conversion, monotonic},
    fs::entry::{Entry, Shows},
};

pub(super) const FILE: Entry = Entry::read(
    "stats",
    Shows::Text(|mirror, at| {
        let cpu = at.cpu().ok_or(Errno::NODEV)?;
        mirror.collect(at.instance);
        let state = mirror.get(at.instance).ok_or(Errno::NODEV)?;
        let buffer = state.buffer.cpu(cpu).ok_or(Errno::NODEV)?;
        let stats = buffer.stats();
        let time = |time: u64| {
            if state.clock.in_ns() {
                let micros = time.saturating_add(500) / 1000;
                format!("{:5}.{:06}", micros / 1_000_000, micros % 1_000_000)
            } else {
                time.to_string()
            }
        };
        let counts = state.counts(cpu);
        let now = Conversion::now(state.clock).time(monotonic(), state.counted());
        Ok(format!(
            "entries: {}\noverrun: {}\ncommit overrun: 0\nbytes: {}\noldest event ts: {}\nnow ts: {}\n\
             dropped events: {}\nread events: {}\nhits: {}\nfiltered: {}\nmissed events on all CPUs: {}\n",
            stats.entries,
            stats.overrun,
            stats.bytes,
            time(buffer.first_time().unwrap_or(0)),
            time(now),
            stats.dropped,
            stats.read,
            counts.hits(),
            counts.filtered,
            state.missed()
        )
        .into_bytes())
    }),
);
