//! `uprobe_events`: the dynamic events of files.

use crate::{
    lang::define::{File, files},
    tree::entry::{Entry, Names, Shows, all},
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
