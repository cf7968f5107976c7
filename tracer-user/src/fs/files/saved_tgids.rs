//! `saved_tgids`: the processes of threads that records show, once the option `record-tgid` has asked for them.

use crate::fs::entry::{Entry, Shows, lines};

pub(super) const FILE: Entry = Entry::read(
    "saved_tgids",
    Shows::Seq(|mirror, _| {
        mirror.collect_all();
        Ok(lines(mirror.tasks.groups().map(|(pid, group)| format!("{pid} {group}"))))
    }),
)
.top();
