//! `current_tracer`: `nop`, and any other is refused.

use crate::{
    engine::instance::Command,
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry =
    Entry::write("current_tracer", Shows::Text(|_, _| Ok(b"nop\n".to_vec())), |mirror, at, data| {
        all(data, mirror.apply(at.instance, &Command::Tracer(data)))
    });
