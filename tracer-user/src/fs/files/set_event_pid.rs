//! `set_event_pid` and `set_event_notrace_pid`: lists of threads; writing adds to them, emptying ends them.

use rustix::io::Errno;

use crate::{
    engine::instance::{Command, List, Mirror},
    fs::entry::{At, Entry, Result, Shows, all, lines},
};

fn show(mirror: &mut Mirror, at: At, list: List) -> Result<Vec<u8>> {
    let state = mirror.get_mut(at.instance).ok_or(Errno::NODEV)?;
    state.refresh_pids();
    Ok(lines(state.pids(list)))
}

fn add(mirror: &mut Mirror, at: At, list: List, text: &[u8]) -> Result<usize> {
    all(text, mirror.apply(at.instance, &Command::AddPids { list, text }))
}

pub(super) const TRACED: Entry = Entry::write(
    "set_event_pid",
    Shows::Seq(|mirror, at| show(mirror, at, List::Traced)),
    |mirror, at, data| add(mirror, at, List::Traced, data),
)
.truncates(|mirror, at| mirror.apply(at.instance, &Command::ClearPids(List::Traced)));

pub(super) const UNTRACED: Entry = Entry::write(
    "set_event_notrace_pid",
    Shows::Seq(|mirror, at| show(mirror, at, List::Untraced)),
    |mirror, at, data| add(mirror, at, List::Untraced, data),
)
.truncates(|mirror, at| mirror.apply(at.instance, &Command::ClearPids(List::Untraced)));
