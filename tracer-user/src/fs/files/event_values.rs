//! `events/synthetic/EVENT/synth_event_trace`, a file of ours: a write of values traces the event in this instance, as the
//! kernel's function of that name does ([`crate::api::trace`]).

use rustix::io::Errno;

use crate::{
    api::wire::with_values,
    engine::instance::mark::Writer,
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry =
    Entry::write("synth_event_trace", Shows::Once(|_, _| Err(Errno::PERM)), |mirror, at, data| {
        let (event, writer) = (at.event()?, Writer::of(at.who));
        let done = with_values(data, |values| mirror.emit_in(at.instance, event, values, writer));
        all(data, done.ok_or(Errno::INVAL)?)
    })
    .mode(0o200);
