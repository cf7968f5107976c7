//! `buffer_size_kb`: the size of each CPU's buffer, or of one.

use rustix::io::Errno;

use crate::{
    engine::instance::{Command, Size, words},
    fs::entry::{Entry, Shows, all},
};

/// The text of a size.
pub(super) fn text(size: Size) -> Vec<u8> {
    match size {
        Size::Kib(size) => format!("{size}\n"),
        Size::Expands(size, later) => format!("{size} (expanded: {later})\n"),
        Size::Mixed => "X\n".to_owned(),
    }
    .into_bytes()
}

pub(super) const FILE: Entry = Entry::write(
    "buffer_size_kb",
    Shows::Text(|mirror, at| Ok(text(mirror.get(at.instance).ok_or(Errno::NODEV)?.size(at.cpu())))),
    |mirror, at, data| {
        let kib = words::number(data)?;
        if kib == 0 {
            return Err(Errno::INVAL);
        }
        let bytes =
            kib.checked_mul(1024).and_then(|bytes| usize::try_from(bytes).ok()).ok_or(Errno::NOMEM)?;
        all(data, mirror.apply(at.instance, &Command::BufferSize { cpu: at.cpu(), bytes }))
    },
);
