//! `events/SYSTEM/EVENT/inject`: makes a record of the event, as kernels with `CONFIG_TRACE_EVENT_INJECT` have it.

use rustix::io::Errno;

use crate::{
    engine::instance::mark::Writer,
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry =
    Entry::write("inject", Shows::Once(|_, _| Err(Errno::PERM)), |mirror, at, data| {
        all(data, mirror.inject(at.instance, at.event()?, data, Writer::of(at.who)))
    })
    .mode(0o200);
