//! `program_events`, ours alone: files of programs whose own events are events here; emptying it takes all away.

use crate::tree::entry::{Entry, Shows, all};

pub(super) const FILE: Entry =
    Entry::write("program_events", Shows::Seq(|mirror, _| Ok(mirror.programs())), |mirror, _, data| {
        all(data, mirror.bring(data))
    })
    .truncates(|mirror, _| mirror.bring_none())
    .top();
