//! Opening a file: the charge to the caller's quota, and the flags that tell the kernel how to treat the file.

use std::sync::Arc;

use fuser::{Errno, FileHandle, FopenFlags, INodeNo, ReplyOpen};

use super::{
    errno::errno,
    hub::Hub,
    owner::{BorrowedTree, When},
    reads::PATIENCE,
};
use crate::{
    engine::quota::{Charge, Kind},
    fs::tree::{inodes, open::Access},
};

/// A request to open a file.
pub(crate) struct Opening {
    pid: u32,
    ino: u64,
    access: Access,
    reply: ReplyOpen,
    charge: Charge,
    when: When,
    /// How often it was queued again.
    put_off: u32,
}

impl Opening {
    pub(crate) fn start(hub: &Arc<Hub>, pid: u32, ino: u64, access: Access, reply: ReplyOpen) {
        match hub.quotas.charge(access.payer, Kind::OpenFiles, 1) {
            Ok(charge) => Self { pid, ino, access, reply, charge, when: When::Any, put_off: 0 }.queue(hub),
            Err(_) => reply.error(Errno::EMFILE),
        }
    }

    fn queue(self, hub: &Arc<Hub>) {
        let ours = Arc::clone(hub);
        hub.jobs.post(self.access.payer, "open", self.when, move |tree| self.open(&ours, tree));
    }

    fn open(self, hub: &Arc<Hub>, tree: &mut BorrowedTree<'_>) {
        let (ino, mut access) = (self.ino, self.access);
        let file = inodes::file(ino);
        // Shells open with `O_TRUNC` for each `>`. Only emptying a file must wait for the operation that is running.
        access.truncate &= access.write && tree.truncates(file);
        if access.truncate && self.when != When::Alone {
            return Self { when: When::Alone, ..self }.queue(hub);
        }
        Hub::modules_now(tree.engine());
        // Root may have this inode open since only root could. A path leads to another one.
        let opened = || tree.attributes(file).is_ok_and(|found| found.opened);
        if access.payer != 0 && access.write && inodes::is_shared(ino) && opened() {
            return self.reply.error(Errno::ESTALE);
        }
        // A reader of `trace` starts with the records that exist now.
        if access.read && self.put_off < PATIENCE && !tree.settle_file(file) {
            return Self { put_off: self.put_off + 1, ..self }.queue(hub);
        }
        let Self { pid, reply, charge, .. } = self;
        let (handle, stream) = match tree.open(file, access, pid) {
            Ok(opened) => opened,
            Err(error) if access.truncate => {
                return hub.change(tree, |_| (), move |()| reply.error(errno(error)));
            }
            Err(error) => return reply.error(errno(error)),
        };
        hub.hold(handle, charge);
        // Files have no size, and the kernel must not cache their contents. Older kernels can map a file only without
        // direct I/O.
        let mut how = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
        if tree.page(handle).is_some() {
            hub.updater.open_page(handle, ino);
            if !hub.maps_directly() {
                how = FopenFlags::FOPEN_NOFLUSH;
            }
        }
        if stream {
            how |= FopenFlags::FOPEN_NONSEEKABLE | FopenFlags::FOPEN_STREAM;
        }
        let answer = move || reply.opened(FileHandle(handle), how);
        if access.read && tree.has_pages(handle) {
            // After the answer the kernel locks all pages of the file.
            hub.waits.end_pages(&hub.streams, ino);
            let its = Arc::clone(hub);
            // The notification before the answer can take long, so the reads that came meanwhile end too.
            let answer = move || {
                its.streams.opens(INodeNo(ino));
                its.waits.end_pages(&its.streams, ino);
                answer();
            };
            return hub.streams.open(handle, INodeNo(ino), answer);
        }
        if access.truncate {
            // Emptying the file may have disabled events.
            hub.change(tree, |_| (), move |()| answer());
        } else {
            answer();
        }
    }
}
