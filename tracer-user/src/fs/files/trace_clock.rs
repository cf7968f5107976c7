//! `trace_clock`: the clock of time stamps.

use rustix::io::Errno;

use crate::{
    buffer::clock::Clock,
    engine::instance::Command,
    fs::entry::{Entry, Shows, all},
    lang::ctype,
};

pub(super) const FILE: Entry = Entry::write(
    "trace_clock",
    Shows::Seq(|mirror, at| {
        let state = mirror.get(at.instance).ok_or(Errno::NODEV)?;
        let name = |clock: &Clock| {
            if *clock == state.clock { format!("[{}]", clock.name()) } else { clock.name().to_owned() }
        };
        Ok((Clock::ALL.iter().map(name).collect::<Vec<_>>().join(" ") + "\n").into_bytes())
    }),
    |mirror, at, data| {
        // The kernel's buffer for it.
        if data.len() >= 64 {
            return Err(Errno::INVAL);
        }
        let name = ctype::trim_end(data);
        let name = ctype::trim_start(name);
        all(data, mirror.apply(at.instance, &Command::Clock(name)))
    },
);
