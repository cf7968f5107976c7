//! Settings of an instance: whether it records, its clock, its options, its tracer, and the log of refused commands.

use rustix::io::Errno;

use super::entry::{Entry, ReadKind, lines};
use crate::{
    buffer::clock::Clock,
    engine::{InstanceCommand, instances::words},
    lang::ctype,
    plan::source::UserData,
};

/// `tracing_on`: whether records are taken. Any number except 0 means yes.
pub(super) const TRACING_ON: Entry = Entry::write(
    "tracing_on",
    ReadKind::Text(|engine, at| Ok(flag(at.status(engine)?.is_on()))),
    |engine, data| {
        let on = words::number(data)? != 0;
        engine.take(data, InstanceCommand::Tracing(on))
    },
);

/// `syscall_user_buf_size`: how many bytes of user memory the record of a system call has at most. A larger number
/// means the largest.
pub(super) const SYSCALL_USER_BUF_SIZE: Entry = Entry::write(
    "syscall_user_buf_size",
    ReadKind::Text(|engine, at| Ok(lines([at.state(engine)?.user_data]))),
    |engine, data| {
        let bytes = words::number(data)?.min(u64::from(UserData::MAX));
        engine.take(data, InstanceCommand::UserData(bytes as u32))
    },
)
.in_kernel(|facts| facts.later_files().user_data.is_some());

/// `trace_clock`: the clock of the timestamps.
pub(super) const TRACE_CLOCK: Entry = Entry::write(
    "trace_clock",
    ReadKind::Seq(|engine, at| {
        let state = at.state(engine)?;
        let name = |clock: &Clock| {
            if *clock == state.clock { format!("[{}]", clock.name()) } else { clock.name().to_owned() }
        };
        Ok((Clock::ALL.iter().map(name).collect::<Vec<_>>().join(" ") + "\n").into_bytes())
    }),
    |engine, data| {
        // The size of the kernel's buffer for the name.
        if data.len() >= 64 {
            return Err(Errno::INVAL);
        }
        engine.take(data, InstanceCommand::Clock(ctype::trim_start(ctype::trim_end(data))))
    },
);

/// `trace_options`: all options. A write of an option's name sets it, with the prefix `no` unsets it.
pub(super) const TRACE_OPTIONS: Entry = Entry::write(
    "trace_options",
    ReadKind::Seq(|engine, at| Ok(at.state(engine)?.options.text().into_bytes())),
    |engine, data| engine.take(data, InstanceCommand::OptionWord(data)),
);

/// `options/NAME`: one option. The directory has the names of its files.
pub(super) const OPTION: Entry = Entry::write(
    "",
    ReadKind::Text(|engine, at| Ok(flag(at.state(engine)?.options.get(at.option()?)))),
    |engine, data| {
        let on = words::flag(data)?;
        engine.take(data, InstanceCommand::Option { option: engine.at.option()?, on })
    },
);

/// `current_tracer`: always `nop`. The engine refuses a write of another name.
pub(super) const CURRENT_TRACER: Entry =
    Entry::write("current_tracer", ReadKind::Text(|_, _| Ok(b"nop\n".to_vec())), |engine, data| {
        engine.take(data, InstanceCommand::Tracer(data))
    });

/// `error_log`: the errors of the last refused commands. A write has no effect; emptying the file clears the log.
pub(super) const ERROR_LOG: Entry =
    Entry::write("error_log", ReadKind::Seq(|engine, at| Ok(at.state(engine)?.errors.text())), |_, data| {
        Ok(data.len())
    })
    .truncates(|_| Ok(InstanceCommand::ClearErrors.into()));

fn flag(on: bool) -> Vec<u8> {
    if on { b"1\n".to_vec() } else { b"0\n".to_vec() }
}
