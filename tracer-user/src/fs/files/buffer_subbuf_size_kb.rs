//! `buffer_subbuf_size_kb`: the size of a page of the buffers.

use rustix::io::Errno;

use crate::{
    buffer::PageSize,
    engine::instance::{Command, words},
    fs::entry::{Entry, Shows, all},
};

pub(super) const FILE: Entry = Entry::write(
    "buffer_subbuf_size_kb",
    Shows::Text(|mirror, at| {
        let page = mirror.get(at.instance).ok_or(Errno::NODEV)?.page();
        Ok(format!("{}\n", page.bytes() / 1024).into_bytes())
    }),
    |mirror, at, data| {
        let bytes = words::number(data)?.checked_mul(1024).ok_or(Errno::INVAL)?;
        let page = PageSize::holding(bytes).ok_or(Errno::INVAL)?;
        all(data, mirror.apply(at.instance, &Command::PageSize(page)))
    },
);
