//! The lists of threads of a session: a table of thread ids, each with the lists that it is in.

use std::os::fd::{AsFd, BorrowedFd};

use crate::{
    attach::{AttachError, Cause},
    sys::{Errno, bpf::map::Map},
};

/// Threads, by their ids in the initial pid namespace.
#[derive(Debug)]
pub struct ThreadTable(Map);

impl ThreadTable {
    pub(super) fn new(map: Map) -> Self {
        Self(map)
    }

    /// Puts a thread into lists, bits of [`tracer_abi::lists`]; 0 removes it from all.
    ///
    /// # Errors
    /// `E2BIG` when the table is full.
    pub fn set(&self, thread: u32, lists: u8) -> Result<(), AttachError> {
        let done = if lists == 0 {
            self.0.delete(&thread.to_ne_bytes()).map(drop)
        } else {
            self.0.update(&thread.to_ne_bytes(), &[lists])
        };
        done.map_err(|errno| AttachError::new(format!("pid {thread}"), Cause::System("pid table", errno)))
    }

    /// The threads that are in lists, each with its lists.
    ///
    /// # Errors
    /// When the kernel refuses to read the table.
    pub fn all(&self) -> Result<Vec<(u32, u8)>, AttachError> {
        let fail = |errno: Errno| AttachError::new("threads", Cause::System("pid table", errno));
        let mut listed = Vec::new();
        for key in self.0.keys().map_err(fail)? {
            let value = self.0.lookup(&key).map_err(fail)?;
            if let (Some(thread), Some(lists)) = (key.first_chunk(), value.as_deref().and_then(<[u8]>::first))
            {
                listed.push((u32::from_ne_bytes(*thread), *lists));
            }
        }
        Ok(listed)
    }
}

impl AsFd for ThreadTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
