//! `error_log`: what was wrong with the last filters.

use rustix::io::Errno;

use crate::{
    engine::instance::Command,
    fs::entry::{Entry, Shows},
};

pub(super) const FILE: Entry = Entry::write(
    "error_log",
    Shows::Seq(|mirror, at| Ok(mirror.get(at.instance).ok_or(Errno::NODEV)?.errors.text())),
    |_, _, data| Ok(data.len()),
)
.truncates(|mirror, at| mirror.apply(at.instance, &Command::ClearErrors));
