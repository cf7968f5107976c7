//! `events/SYSTEM/EVENT/trigger`: what a hit does beside being recorded.

use crate::{
    engine::instance::Command,
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry = Entry::write(
    "trigger",
    Shows::Seq(|mirror, at| mirror.trigger_text(at.instance, at.event()?)),
    |mirror, at, data| {
        if data.is_empty() {
            return Ok(0);
        }
        all(data, mirror.apply(at.instance, &Command::Trigger { event: at.event()?, text: data }))
    },
)
.truncates(|mirror, at| mirror.clear_hists(at.instance, at.event()?));
