//! `available_filter_functions`: the functions that can be probed at their entry, as the kernel lists them.

use rustix::io::Errno;

use crate::fs::entry::{Entry, Shows};

pub(super) const FILE: Entry = Entry::read(
    "available_filter_functions",
    Shows::Kernel(|text| match text {
        Ok(Some(text)) => Ok(text.into_bytes()),
        Ok(None) => Err(Errno::NODEV),
        // A security module may have it so.
        Err(_) => Err(Errno::PERM),
    }),
)
.top();
