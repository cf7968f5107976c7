//! `events/SYSTEM/EVENT/id`

use rustix::io::Errno;

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read(
    "id",
    Shows::Text(|mirror, at| {
        let id = mirror.events.id(at.event()?, &mirror.facts).ok_or(Errno::NODEV)?;
        Ok(format!("{id}\n").into_bytes())
    }),
);
