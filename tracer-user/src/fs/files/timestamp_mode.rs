//! `timestamp_mode`: records keep the time since the one before.

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry =
    Entry::read("timestamp_mode", Shows::Seq(|_, _| Ok(b"[delta] absolute\n".to_vec())));
