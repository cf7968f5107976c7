//! `uprobe_events`: the dynamic events of files.

use crate::{
    lang::define::File,
    tree::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry = Entry::write(
    "uprobe_events",
    Shows::Seq(|mirror, _| Ok(mirror.definitions(File::Uprobe))),
    |mirror, _, data| all(data, mirror.define(File::Uprobe, data)),
)
.truncates(|mirror, _| mirror.undefine(File::Uprobe))
.top();
