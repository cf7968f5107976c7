//! `printk_formats`: the kernel's own list.

use rustix::io::Errno;

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read(
    "printk_formats",
    Shows::Seq(|mirror, _| {
        let text = mirror.facts.tracefs.read("printk_formats").map_err(|_| Errno::IO)?;
        Ok(text.unwrap_or_default().into_bytes())
    }),
)
.top();
