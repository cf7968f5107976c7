//! `user_events_status`: text to who reads it, a page of bits to who maps it. Nobody opens it to be written: a shared mapping
//! of it would change what others see.

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read(
    "user_events_status",
    Shows::Page(|mirror| Ok(mirror.user_status()), |mirror| mirror.user_page().to_vec()),
)
.mode(0o640)
.top();
