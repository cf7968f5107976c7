//! `events/header_page`: how a page of a buffer looks.

use rustix::io::Errno;

use crate::{
    buffer::HEAD,
    fs::entry::{Entry, Shows},
};

pub(super) const FILE: Entry = Entry::read(
    "header_page",
    Shows::Once(|mirror, at| {
        let data = mirror.get(at.instance).ok_or(Errno::NODEV)?.page().data();
        let rows = [
            ("u64 timestamp", 0, 8, 0),
            ("local_t commit", 8, 8, 1),
            ("int overwrite", 8, 1, 1),
            // Since 6.2 the kernel's char has no sign anywhere.
            (
                "char data",
                HEAD,
                data,
                i32::from(cfg!(target_arch = "x86_64") && mirror.facts.version() < (6, 2)),
            ),
        ];
        let line = |(field, offset, size, signed)| {
            format!("\tfield: {field};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n")
        };
        Ok(rows.map(line).concat().into_bytes())
    }),
);
