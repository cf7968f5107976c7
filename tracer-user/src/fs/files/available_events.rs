//! `available_events`: every event that can be turned on.

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read(
    "available_events",
    Shows::Seq(|mirror, _| {
        Ok(mirror
            .events
            .ordinary()
            .map(|event| mirror.events.full_name(event) + "\n")
            .collect::<String>()
            .into())
    }),
)
.top();
