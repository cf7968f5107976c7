//! `uprobe_events`: the dynamic events of files.

use crate::{
    fs::entry::{Entry, Names, Shows, all},
    lang::define::{File, files},
};

pub(super) const FILE: Entry = Entry::names(
    "uprobe_events",
    Shows::Seq(|mirror, _| Ok(mirror.definitions(File::Uprobe))),
    Names {
        wanted: |data| files(File::Uprobe, data),
        takes: |mirror, _, data, found| all(data, mirror.define_with(File::Uprobe, data, found)),
    },
)
.truncates(|mirror, _| mirror.undefine(File::Uprobe))
.top();
