//! `events/SYSTEM/EVENT/enable`

use rustix::io::Errno;

use crate::{
    engine::instance::{Command, words},
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry = Entry::write(
    "enable",
    Shows::Text(|mirror, at| {
        let state = mirror.get(at.instance).ok_or(Errno::NODEV)?;
        Ok(state.enable_text(at.event()?).to_vec())
    }),
    |mirror, at, data| {
        let on = words::flag(data)?;
        all(data, mirror.apply(at.instance, &Command::Event { event: at.event()?, on }))
    },
);
