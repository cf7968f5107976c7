//! Reads: they wait for facts and for records, and some fill pages of the kernel's page cache.

use std::{sync::Arc, time::Duration};

use fuser::{Errno, ReplyData};

use super::{
    errno::errno,
    hub::Hub,
    owner::{View, When},
    streams::PageRead,
    waits::Waiting,
};
use crate::{
    engine::quota::{Charge, Kind},
    fs::tree::open::Outcome,
};

/// How often a request is queued again while records come faster than they are collected.
pub(in crate::fs) const PATIENCE: u32 = 64;
/// How often a running thread is looked at, at an interval of 1 ms, until it waits in a system call.
const LOOKS: u32 = 50;

/// A read.
#[derive(Clone, Copy, Debug)]
pub(in crate::fs) struct Read {
    pub(in crate::fs) uid: u32,
    pub(in crate::fs) pid: u32,
    pub(in crate::fs) ino: u64,
    pub(in crate::fs) handle: u64,
    pub(in crate::fs) offset: u64,
    pub(in crate::fs) size: usize,
    pub(in crate::fs) waits: bool,
    /// Whether the read fills a page of the kernel's page cache.
    pub(in crate::fs) of_page: bool,
}

impl Read {
    /// Queues the read.
    pub(in crate::fs) fn start(self, hub: &Arc<Hub>, reply: ReplyData) {
        self.queue(hub, reply, 0);
    }

    fn queue(self, hub: &Arc<Hub>, reply: ReplyData, put_off: u32) {
        let ours = Arc::clone(hub);
        hub.post(self.uid, "read", When::File(self.handle), move |view| {
            self.serve(&ours, view, reply, put_off);
        });
    }

    fn serve(self, hub: &Arc<Hub>, view: &mut View<'_>, reply: ReplyData, put_off: u32) {
        if self.of_page
            && let Some(page) = view.page(self.handle)
        {
            return self.page(hub, &page, reply);
        }
        if put_off == 0
            && let Some(lookup) = view.lookup_for(self.handle, self.offset)
        {
            let Ok(charge) = hub.quotas.charge(self.uid, Kind::WaitingReads, 1) else {
                return reply.error(Errno::EAGAIN);
            };
            let ours = Arc::clone(hub);
            return hub.lookups.ask(lookup, move |text| {
                drop(charge);
                if let Some(text) = text {
                    ours.jobs().files().put_text(self.handle, text);
                }
                self.queue(&ours, reply, 1);
            });
        }
        self.records(hub, view, reply, put_off);
    }

    /// Answers a read of a file that can be mapped: the page for a mapping, the text for a read(2). Before 6.6 a read(2) of
    /// such a file goes through the page cache, too.
    fn page(self, hub: &Arc<Hub>, page: &[u8], reply: ReplyData) {
        let behind = usize::try_from(self.offset).ok().and_then(|from| page.get(from..)).unwrap_or_default();
        let part = behind.get(..self.size).unwrap_or(behind).to_vec();
        if hub.maps_directly() {
            return reply.data(&part);
        }
        let Ok(charge) = hub.quotas.charge(self.uid, Kind::WaitingReads, 1) else {
            return reply.error(Errno::EAGAIN);
        };
        // Another thread looks at the caller, because it may have to wait until the caller sleeps.
        let ours = Arc::clone(hub);
        let look = move |reply: ReplyData| {
            let reads = is_reading(self.pid);
            drop(charge);
            if reads {
                ours.forget_page();
                Self { of_page: false, ..self }.queue(&ours, reply, 0);
            } else {
                reply.data(&part);
            }
        };
        let (give, given) = std::sync::mpsc::channel();
        let started =
            std::thread::Builder::new().name("look".to_owned()).spawn(move || given.recv().map(look));
        match started {
            Ok(_) => drop(give.send(reply)),
            Err(_) => reply.error(Errno::EAGAIN),
        }
    }

    fn records(self, hub: &Arc<Hub>, view: &mut View<'_>, reply: ReplyData, put_off: u32) {
        if put_off < PATIENCE && !view.settle(self.handle) {
            return self.queue(hub, reply, put_off + 1);
        }
        let pages = view.has_pages(self.handle);
        let page = if self.of_page && pages {
            hub.streams.page_read(self.handle, self.offset)
        } else {
            PageRead::Waits
        };
        if page == PageRead::Nowhere {
            return reply.error(Errno::EIO);
        }
        // A page stays locked until the read is answered, so only reads of a stream in order may wait.
        let may_wait = if self.of_page { pages && page == PageRead::Waits } else { true };
        match view.read_some(self.handle, self.offset, self.size) {
            Ok(Some(Outcome::Data(data))) => {
                if self.of_page {
                    hub.streams.filled(self.handle, self.offset, data.len());
                }
                reply.data(&data);
            }
            Ok(Some(Outcome::Wait)) if !self.waits => reply.error(Errno::EAGAIN),
            Ok(Some(Outcome::Wait)) if !may_wait => reply.error(Errno::EINTR),
            Ok(Some(Outcome::Wait)) => match hub.quotas.charge(self.uid, Kind::WaitingReads, 1) {
                Ok(charge) => self.wait(hub, reply, charge),
                Err(_) => reply.error(Errno::EAGAIN),
            },
            Ok(None) => self.queue(hub, reply, PATIENCE),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn wait(self, hub: &Hub, reply: ReplyData, charge: Charge) {
        hub.waits.add(Waiting {
            handle: self.handle,
            size: self.size,
            pid: self.pid,
            page: self.of_page.then_some((self.ino, self.offset)),
            reply,
            _charge: charge,
        });
        hub.changed.notify_one();
    }
}

/// Whether a thread waits in a system call that reads, and not for a page that it accessed (proc(5)).
fn is_reading(pid: u32) -> bool {
    const READS: [i64; 6] = [
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_readv,
        libc::SYS_preadv,
        libc::SYS_preadv2,
        libc::SYS_sendfile,
    ];
    for _ in 0..LOOKS {
        let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        if !text.starts_with("running") {
            let number = text.split(' ').next().and_then(|number| number.parse().ok());
            return number.is_some_and(|number| READS.contains(&number));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}
