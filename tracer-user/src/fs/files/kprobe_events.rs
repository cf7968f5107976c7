//! `kprobe_events`: the dynamic events of the kernel's text.

use crate::{
    fs::entry::{Entry, Shows, all},
    lang::define::File,
};

pub(super) const FILE: Entry = Entry::write(
    "kprobe_events",
    Shows::Seq(|mirror, _| Ok(mirror.definitions(File::Kprobe))),
    |mirror, _, data| all(data, mirror.define(File::Kprobe, data)),
)
.truncates(|mirror, _| mirror.undefine(File::Kprobe))
.top();
