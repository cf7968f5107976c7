//! `buffer_subbuf_size_kb`: the size of a page of the buffers.

use rustix::io::Errno;

use crate::{
    control::instance::{Command, words},
    tree::entry::{Entry, Shows, all},
};

/// Bytes of the smallest page, and how often it can be doubled.
const PAGE: u64 = 4096;
const DOUBLED: u32 = 7;

pub(super) const FILE: Entry = Entry::write(
    "buffer_subbuf_size_kb",
    Shows::Text(|mirror, at| {
        let page = mirror.get(at.instance).ok_or(Errno::NODEV)?.page();
        Ok(format!("{}\n", page / 1024).into_bytes())
    }),
    |mirror, at, data| {
        let bytes = words::number(data)?.checked_mul(1024).ok_or(Errno::INVAL)?;
        let pages = bytes.div_ceil(PAGE);
        if pages == 0 || pages > 1 << DOUBLED {
            return Err(Errno::INVAL);
        }
        let page = (pages.next_power_of_two() * PAGE) as usize;
        all(data, mirror.apply(at.instance, &Command::PageSize(page)))
    },
);
