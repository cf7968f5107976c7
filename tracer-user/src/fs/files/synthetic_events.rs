//! `synthetic_events`: a line a synthetic event; lines define them, `!NAME` deletes one, and emptying it takes all away.

use crate::fs::entry::{Entry, Shows, all};

pub(super) const FILE: Entry = Entry::write(
    "synthetic_events",
    Shows::Seq(|mirror, _| Ok(mirror.synthetic_definitions())),
    |mirror, _, data| all(data, mirror.define_synthetic(data)),
)
.truncates(|mirror, _| mirror.undefine_synthetic())
.top();
