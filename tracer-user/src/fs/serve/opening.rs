//! Opening a file: whose it is counted as, and what the kernel is told of it.

use std::sync::Arc;

use fuser::{Errno, FileHandle, FopenFlags, INodeNo, ReplyOpen};

use super::{
    errno::errno,
    hub::Hub,
    owner::{View, When},
    reads::PATIENCE,
};
use crate::{
    engine::quota::{Charge, Kind},
    fs::tree::open::Access,
};

/// A file that is to be opened.
#[derive(Clone, Copy, Debug)]
pub(in crate::fs) struct Opening {
    pub(in crate::fs) pid: u32,
    pub(in crate::fs) ino: u64,
    pub(in crate::fs) access: Access,
}

impl Opening {
    /// Has it opened.
    pub(in crate::fs) fn start(self, hub: &Arc<Hub>, reply: ReplyOpen) {
        match hub.quotas.charge(self.access.uid, Kind::OpenFiles, 1) {
            Ok(charge) => self.queue(hub, reply, charge, 0),
            Err(_) => reply.error(Errno::EMFILE),
        }
    }

    fn queue(self, hub: &Arc<Hub>, reply: ReplyOpen, charge: Charge, put_off: u32) {
        // Emptying a file changes something; opening it alone does not.
        let when = if self.access.truncate { When::Alone } else { When::Any };
        let ours = Arc::clone(hub);
        hub.post(self.access.uid, "open", when, move |view| self.open(&ours, view, reply, charge, put_off));
    }

    fn open(self, hub: &Arc<Hub>, view: &mut View<'_>, reply: ReplyOpen, charge: Charge, put_off: u32) {
        let Self { ino, access, pid, .. } = self;
        Hub::learn_modules(view.mirror());
        // A reader of `trace` begins with what there is now.
        if access.read && put_off < PATIENCE && !view.settle_file(ino) {
            return self.queue(hub, reply, charge, put_off + 1);
        }
        let opened = view.open(ino, access, pid);
        let news = access.truncate.then(|| hub.finish(view.mirror()));
        let (handle, stream) = match opened {
            Ok(opened) => opened,
            Err(error) => return reply.error(errno(error)),
        };
        hub.hold(handle, charge);
        // No file has a size, and none has pages that could be kept; but what is mapped must be, on older kernels.
        let mut how = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
        if !hub.maps_directly() && view.page(handle).is_some() {
            how = FopenFlags::FOPEN_NOFLUSH;
        }
        if stream {
            how |= FopenFlags::FOPEN_NONSEEKABLE | FopenFlags::FOPEN_STREAM;
        }
        let answer = move || reply.opened(FileHandle(handle), how);
        if access.read && view.has_pages(handle) {
            // The kernel locks all pages of the file when it has our answer.
            hub.waits.end_pages(ino);
            let its = Arc::clone(hub);
            // Those that came meanwhile too: what was told before the answer may have taken long.
            let answer = move || {
                its.streams.opens(INodeNo(ino));
                its.waits.end_pages(ino);
                answer();
            };
            return hub.streams.open(handle, INodeNo(ino), answer);
        }
        match news {
            // Emptying it may have turned events off.
            Some(news) => hub.tell(news, answer),
            None => answer(),
        }
    }
}
