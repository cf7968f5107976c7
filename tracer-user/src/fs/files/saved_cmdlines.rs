//! `saved_cmdlines`: the names of threads that records show.

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read(
    "saved_cmdlines",
    Shows::Seq(|mirror, _| {
        mirror.collect_all();
        let mut text = Vec::new();
        for (pid, name) in mirror.tasks.names() {
            text.extend(format!("{pid} ").bytes());
            text.extend_from_slice(name);
            text.push(b'\n');
        }
        Ok(text)
    }),
)
.top();
