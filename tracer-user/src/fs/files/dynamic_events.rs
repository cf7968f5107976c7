//! `dynamic_events`: a line a probe; lines define probes and delete them, and emptying it takes all away.

use crate::{
    fs::entry::{Entry, Names, Shows, all},
    lang::define::{File, files},
};

pub(super) const FILE: Entry = Entry::names(
    "dynamic_events",
    Shows::Seq(|mirror, _| Ok(mirror.definitions(File::Dynamic))),
    Names {
        wanted: |data| files(File::Dynamic, data),
        takes: |mirror, _, data, found| all(data, mirror.define_with(File::Dynamic, data, found)),
    },
)
.truncates(|mirror, _| mirror.undefine(File::Dynamic))
.top();
