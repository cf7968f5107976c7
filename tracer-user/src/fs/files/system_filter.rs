//! `events/SYSTEM/filter`: sets the filter of all events of a system that have its fields.

use crate::{
    engine::instance::Command,
    fs::entry::{Entry, Shows, all},
};

/// The kernel keeps no text here: a filter always succeeds, and what does not fit is told by the events.
const TEXT: &str = "### global filter ###\n\
    # Use this to set filters for multiple events.\n\
    # Only events with the given fields will be affected.\n\
    # If no events are modified, an error message will be displayed here\n";

pub(super) const FILE: Entry =
    Entry::write("filter", Shows::Once(|_, _| Ok(TEXT.as_bytes().to_vec())), |mirror, at, data| {
        all(data, mirror.apply(at.instance, &Command::SystemFilter { system: at.system()?, text: data }))
    });
