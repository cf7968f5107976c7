//! `trace`: what was recorded; emptying it forgets that.

use crate::{
    engine::instance::Command,
    fs::entry::{Entry, Shows},
};

pub(super) const FILE: Entry = Entry::write("trace", Shows::Trace, |_, _, data| Ok(data.len()))
    .truncates(|mirror, at| mirror.apply(at.instance, &Command::Clear(at.cpu())));
