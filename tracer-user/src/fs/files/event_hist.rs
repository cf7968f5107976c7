//! `events/SYSTEM/EVENT/hist`: the event's histograms, one behind the other. Who polls it waits for hits (6.14 and later).

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry =
    Entry::read("hist", Shows::Hist(|mirror, at| mirror.hist_text(at.instance, at.event()?)));
