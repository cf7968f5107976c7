//! `events/SYSTEM/EVENT/filter`

use rustix::io::Errno;

use crate::{
    engine::instance::Command,
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry = Entry::write(
    "filter",
    Shows::Once(|mirror, at| {
        Ok(mirror.get(at.instance).ok_or(Errno::NODEV)?.filter_text(at.event()?).to_vec())
    }),
    |mirror, at, data| {
        all(data, mirror.apply(at.instance, &Command::Filter { event: at.event()?, text: data }))
    },
);
