//! `dynamic_events`: a line a probe; lines define probes and delete them, and emptying it takes all away.

use crate::{
    lang::define::File,
    tree::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry = Entry::write(
    "dynamic_events",
    Shows::Seq(|mirror, _| Ok(mirror.definitions(File::Dynamic))),
    |mirror, _, data| all(data, mirror.define(File::Dynamic, data)),
)
.truncates(|mirror, _| mirror.undefine(File::Dynamic))
.top();
