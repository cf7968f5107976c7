//! `uprobe_profile`: hits of each probe of a file.

use crate::{
    event::dynamic::Kind,
    fs::entry::{Entry, Shows},
};

pub(super) const FILE: Entry =
    Entry::read("uprobe_profile", Shows::Seq(|mirror, _| Ok(mirror.profile(Kind::Uprobe)))).top();
