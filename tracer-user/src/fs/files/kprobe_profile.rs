//! `kprobe_profile`: hits of each probe of the kernel's text, and hits that found it busy.

use crate::{
    event::dynamic::Kind,
    fs::entry::{Entry, Shows},
};

pub(super) const FILE: Entry =
    Entry::read("kprobe_profile", Shows::Seq(|mirror, _| Ok(mirror.profile(Kind::Kprobe)))).top();
