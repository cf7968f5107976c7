//! `events/SYSTEM/EVENT/format`: the kernel's own.

use rustix::io::Errno;

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read(
    "format",
    Shows::Seq(|mirror, at| {
        let text = mirror.events.format_text(at.event()?, &mirror.facts);
        Ok(text.ok_or(Errno::NODEV)?.as_bytes().to_vec())
    }),
);
