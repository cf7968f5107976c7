//! `snapshot` and `snapshot_raw`: what was recorded at the moment of the last snapshot, as text and as pages.

use crate::{
    engine::instance::{Command, words},
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry = Entry::write("snapshot", Shows::Snapshot, |mirror, at, data| {
    mirror.apply(at.instance, &Command::Expand)?;
    let number = words::number(data)?;
    all(data, mirror.apply(at.instance, &Command::Snapshot { cpu: at.cpu(), number }))
});

pub(super) const RAW: Entry = Entry::read("snapshot_raw", Shows::RawSnapshot);
