//! The files of tracefs that depend on the kernel's version.

use rustix::fs::OFlags;

use super::Tracefs;

/// What a kernel has of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaterFiles {
    /// Number of bytes of a system call's user memory that the kernel's own records have at most
    /// (`syscall_user_buf_size`); `None` for a kernel that records none.
    pub user_data: Option<u32>,
    /// Whether files list the filters and triggers of all events.
    pub lists_filters: bool,
    /// The text of `events/header_page`; empty if there is none.
    pub header_page: String,
    /// Whether events have files `btf_ids`.
    pub has_btf_ids: bool,
}

impl LaterFiles {
    /// Reads a tracefs.
    pub fn of(tracefs: &Tracefs) -> Self {
        let text = |path: &str| tracefs.read(path).ok().flatten();
        let has = |path: &str| tracefs.open_file(path, OFlags::PATH).is_ok_and(|file| file.is_some());
        Self {
            user_data: text("syscall_user_buf_size").and_then(|bytes| bytes.trim().parse().ok()),
            lists_filters: has("show_event_filters"),
            header_page: text("events/header_page").unwrap_or_default(),
            // An event of every kernel.
            has_btf_ids: has("events/sched/sched_switch/btf_ids"),
        }
    }
}
