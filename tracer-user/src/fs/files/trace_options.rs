//! `trace_options`: all options at once; a word sets one, with `no` in front unsets it.

use rustix::io::Errno;

use crate::{
    engine::instance::Command,
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry = Entry::write(
    "trace_options",
    Shows::Seq(|mirror, at| Ok(mirror.get(at.instance).ok_or(Errno::NODEV)?.options.text().into_bytes())),
    |mirror, at, data| all(data, mirror.apply(at.instance, &Command::OptionWord(data))),
);
