//! `program_events`, ours alone: files of programs whose own events are events here; emptying it takes all away.

use crate::{
    engine::instance::program_files,
    fs::entry::{Entry, Names, Shows, all},
};

pub(super) const FILE: Entry = Entry::names(
    "program_events",
    Shows::Seq(|mirror, _| Ok(mirror.programs())),
    Names { wanted: program_files, takes: |mirror, _, data, found| all(data, mirror.bring(data, found)) },
)
.truncates(|mirror, _| mirror.bring_none())
.top();
