//! `buffer_total_size_kb`: the sizes of all buffers together.

use rustix::io::Errno;

use super::buffer_size_kb;
use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read(
    "buffer_total_size_kb",
    Shows::Text(|mirror, at| {
        Ok(buffer_size_kb::text(mirror.get(at.instance).ok_or(Errno::NODEV)?.total_size()))
    }),
);
