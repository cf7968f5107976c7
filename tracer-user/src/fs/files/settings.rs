//! Settings of an instance: whether it records, its clock, its options, its tracer, and the log of refused commands.

use rustix::io::Errno;

use super::entry::{Entry, Shows, all};
use crate::{
    buffer::clock::Clock,
    engine::{Command, instances::words},
    lang::ctype,
};

/// `tracing_on`: whether records are taken. Any number except 0 means yes.
pub(super) const TRACING_ON: Entry = Entry::write(
    "tracing_on",
    Shows::Text(|mirror, at| Ok(flag(at.status(mirror)?.is_on()))),
    |mirror, at, data| {
        let on = words::number(data)? != 0;
        all(data, mirror.apply(at.instance, &Command::Tracing(on)))
    },
);

/// `trace_clock`: the clock of the timestamps.
pub(super) const TRACE_CLOCK: Entry = Entry::write(
    "trace_clock",
    Shows::Seq(|mirror, at| {
        let state = at.state(mirror)?;
        let name = |clock: &Clock| {
            if *clock == state.clock { format!("[{}]", clock.name()) } else { clock.name().to_owned() }
        };
        Ok((Clock::ALL.iter().map(name).collect::<Vec<_>>().join(" ") + "\n").into_bytes())
    }),
    |mirror, at, data| {
        // The size of the kernel's buffer for the name.
        if data.len() >= 64 {
            return Err(Errno::INVAL);
        }
        let name = ctype::trim_end(data);
        let name = ctype::trim_start(name);
        all(data, mirror.apply(at.instance, &Command::Clock(name)))
    },
);

/// `trace_options`: all options. A write of an option's name sets it, with the prefix `no` unsets it.
pub(super) const TRACE_OPTIONS: Entry = Entry::write(
    "trace_options",
    Shows::Seq(|mirror, at| Ok(at.state(mirror)?.options.text().into_bytes())),
    |mirror, at, data| all(data, mirror.apply(at.instance, &Command::OptionWord(data))),
);

/// `options/NAME`: one option. The directory has the names of its files.
pub(super) const OPTION: Entry = Entry::write(
    "",
    Shows::Text(|mirror, at| Ok(flag(at.state(mirror)?.options.get(at.option()?)))),
    |mirror, at, data| {
        let on = words::flag(data)?;
        all(data, mirror.apply(at.instance, &Command::Option { option: at.option()?, on }))
    },
);

/// `current_tracer`: always `nop`. The engine refuses a write of another name.
pub(super) const CURRENT_TRACER: Entry =
    Entry::write("current_tracer", Shows::Text(|_, _| Ok(b"nop\n".to_vec())), |mirror, at, data| {
        all(data, mirror.apply(at.instance, &Command::Tracer(data)))
    });

/// `error_log`: the errors of the last refused commands. A write has no effect; emptying the file clears the log.
pub(super) const ERROR_LOG: Entry =
    Entry::write("error_log", Shows::Seq(|mirror, at| Ok(at.state(mirror)?.errors.text())), |_, _, data| {
        Ok(data.len())
    })
    .truncates(|mirror, at| mirror.apply(at.instance, &Command::ClearErrors));

fn flag(on: bool) -> Vec<u8> {
    if on { b"1\n".to_vec() } else { b"0\n".to_vec() }
}
