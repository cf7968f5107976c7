//! `events/SYSTEM/EVENT/id`

use rustix::io::Errno;

use crate::tree::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read(
    "id",
    Shows::Text(|mirror, at| {
        let format = mirror.events.format(at.index, &mirror.facts).ok_or(Errno::NODEV)?;
        Ok(format!("{}\n", format.id).into_bytes())
    }),
);
