//! `events/SYSTEM/EVENT/hist`: the event's histograms, one behind the other.

use crate::tree::entry::{Entry, Shows};

pub(super) const FILE: Entry =
    Entry::read("hist", Shows::Seq(|mirror, at| mirror.hist_text(at.instance, at.index)));
