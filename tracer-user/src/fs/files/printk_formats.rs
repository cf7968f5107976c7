//! `printk_formats`: the kernel's own list.

use rustix::io::Errno;

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read(
    "printk_formats",
    Shows::Kernel(|text| Ok(text.map_err(|_| Errno::IO)?.unwrap_or_default().into_bytes())),
)
.top();
