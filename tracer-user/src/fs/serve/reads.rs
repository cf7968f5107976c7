//! Reads: they wait for facts and for records, and some fill pages of the kernel's page cache.

use std::{sync::Arc, time::Instant};

use fuser::{Errno, ReplyData};

use super::{
    errno::errno,
    hub::Hub,
    owner::{BorrowedTree, When},
    streams::PageRead,
    waits::Waiting,
};
use crate::{
    engine::{
        quota::{Charge, Kind},
        records::LineContext,
    },
    fs::{
        threads::spawn,
        tree::{
            held::{Cursor, TextSpan},
            open::{Open, Outcome},
        },
    },
    kernel::proc::syscall::CurrentSyscall,
};

/// Maximum number of times that a request is queued again while records come faster than they are collected.
pub(crate) const PATIENCE: u32 = 64;
/// The system calls that read a file.
const READS: [i64; 6] = [
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_readv,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_sendfile,
];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub(crate) payer: u32,
    pub(crate) pid: u32,
    pub(crate) ino: u64,
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) size: usize,
    pub(crate) waits: bool,
    /// Whether the read fills a page of the kernel's page cache.
    pub(crate) of_page: bool,
}

/// One of the jobs that serve a read.
#[derive(Debug, Default)]
struct Attempt {
    /// How many attempts came before.
    number: u32,
    /// The place in the text of records that the attempts before reached.
    text: Option<Box<Cursor>>,
    /// The charge of a read that fills a page, from its start.
    charge: Option<Charge>,
}

impl Read {
    /// Answers the read, or queues it.
    pub(crate) fn start(self, hub: &Arc<Hub>, reply: ReplyData) {
        if !self.of_page {
            return self.queue(hub, reply, Attempt::default());
        }
        // The kernel keeps the page locked until the answer. Threads of the daemon wait for the lock of these pages, so
        // their reads do not wait for other jobs.
        if let Some(page) = hub.updater.page_of(self.handle) {
            return self.page(hub, &page, reply);
        }
        if hub.streams.page_read(self.handle, self.offset) == PageRead::Nowhere {
            return reply.error(Errno::EIO);
        }
        // Each such read is one of the kernel's background requests, whose number is limited.
        match self.charge(hub) {
            Some(charge) => self.queue(hub, reply, Attempt { charge: Some(charge), ..Attempt::default() }),
            None => reply.error(Errno::EAGAIN),
        }
    }

    /// Charges the payer for a read that may wait.
    fn charge(self, hub: &Hub) -> Option<Charge> {
        hub.quotas.charge(self.payer, Kind::WaitingReads, 1).ok()
    }

    fn queue(self, hub: &Arc<Hub>, reply: ReplyData, attempt: Attempt) {
        let ours = Arc::clone(hub);
        hub.jobs.post(self.payer, "read", When::File(self.handle), move |tree| {
            self.serve(&ours, tree, reply, attempt);
        });
    }

    fn serve(self, hub: &Arc<Hub>, tree: &mut BorrowedTree<'_>, reply: ReplyData, attempt: Attempt) {
        if attempt.number == 0
            && let Some(lookup) = tree.lookup_for(self.handle, self.offset)
        {
            let Some(charge) = attempt.charge.or_else(|| self.charge(hub)) else {
                return reply.error(Errno::EAGAIN);
            };
            let ours = Arc::clone(hub);
            return hub.lookups.queue(self.payer, lookup, move |text| {
                let charge = Some(charge).filter(|_| self.of_page);
                if let Some(text) = text {
                    ours.jobs.files().put_text(self.handle, text);
                }
                self.queue(&ours, reply, Attempt { number: 1, text: attempt.text, charge });
            });
        }
        self.records(hub, tree, reply, attempt);
    }

    /// Answers a read of a file that can be mapped: the page for a mapping, the text for a read(2). Before 6.6 a
    /// read(2) of such a file goes through the page cache, too.
    fn page(self, hub: &Arc<Hub>, page: &[u8], reply: ReplyData) {
        let behind = usize::try_from(self.offset).ok().and_then(|from| page.get(from..)).unwrap_or_default();
        let part = behind.get(..self.size).unwrap_or(behind).to_vec();
        if hub.maps_directly() {
            return reply.data(&part);
        }
        let Some(charge) = self.charge(hub) else {
            return reply.error(Errno::EAGAIN);
        };
        // Another thread looks at the caller, because it may have to wait until the caller sleeps.
        let ours = Arc::clone(hub);
        let look = move |reply: ReplyData| {
            let reads = CurrentSyscall::is_one_of(self.pid, &READS);
            drop(charge);
            if reads {
                self.cached_text(&ours, reply);
            } else {
                reply.data(&part);
            }
        };
        let (give, given) = std::sync::mpsc::channel();
        match spawn("look", move || given.recv().map(look)) {
            Ok(_) => drop(give.send(reply)),
            Err(_) => reply.error(Errno::EAGAIN),
        }
    }

    /// Answers a read(2) of a file that can be mapped with a page of its text, before 6.6. A page that is not full tells
    /// the kernel the file's end, unless a notification changes the file's attributes during the read. So the kernel drops
    /// the pages, which mappings see as long as they are cached, only after the last one.
    fn cached_text(self, hub: &Arc<Hub>, reply: ReplyData) {
        let ours = Arc::clone(hub);
        hub.jobs.post(self.payer, "read", When::File(self.handle), move |tree| {
            match tree.read(self.handle, self.offset, self.size) {
                Ok(Outcome::Data(data)) => {
                    reply.data(&data);
                    if data.len() == self.size {
                        ours.updater.set_caches_text();
                    } else if !data.is_empty() {
                        ours.updater.forget_page();
                    }
                }
                Ok(Outcome::Wait) => reply.error(Errno::EAGAIN),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn records(self, hub: &Arc<Hub>, tree: &mut BorrowedTree<'_>, reply: ReplyData, attempt: Attempt) {
        if attempt.number < PATIENCE && !tree.settle(self.handle) {
            return self.queue(hub, reply, Attempt { number: attempt.number + 1, ..attempt });
        }
        let pages = tree.has_pages(self.handle);
        let page = if self.of_page && pages {
            hub.streams.page_read(self.handle, self.offset)
        } else {
            PageRead::Waits
        };
        if page == PageRead::Nowhere {
            return reply.error(Errno::EIO);
        }
        let is_splice = self.of_page && pages;
        let fail = |reply: ReplyData, charge: Option<Charge>, error| {
            if is_splice {
                let charge = charge.or_else(|| self.charge(hub));
                hub.streams.fail((self.handle, self.offset), self.pid, (reply, charge), error);
            } else {
                reply.error(error);
            }
        };
        // The page stays locked until the read is answered, so only reads of a stream in order may wait.
        let may_wait = !self.of_page || (pages && page == PageRead::Waits);
        match tree.begin_text(self.handle, self.offset, attempt.text) {
            Ok(Some(begun)) => return self.text(hub, begun, reply, attempt.charge),
            Ok(None) => {}
            Err(error) => return reply.error(errno(error)),
        }
        match tree.read(self.handle, self.offset, self.size) {
            Ok(Outcome::Data(data)) => {
                if self.of_page {
                    hub.streams.filled(self.handle, self.offset, data.len());
                }
                reply.data(&data);
            }
            Ok(Outcome::Wait) if !self.waits => fail(reply, attempt.charge, Errno::EAGAIN),
            Ok(Outcome::Wait) if !may_wait => fail(reply, attempt.charge, Errno::EINTR),
            Ok(Outcome::Wait) => match attempt.charge.or_else(|| self.charge(hub)) {
                Some(charge) => self.wait(hub, reply, charge),
                None => fail(reply, None, Errno::EAGAIN),
            },
            Err(error) => fail(reply, attempt.charge, errno(error)),
        }
    }

    /// Lets a thread make text of records.
    fn text(
        self,
        hub: &Arc<Hub>,
        (open, context, cursor): (Open, LineContext, Box<Cursor>),
        reply: ReplyData,
        charge: Option<Charge>,
    ) {
        let ours = Arc::clone(hub);
        // A page of a mapping has no end within the text.
        let span = TextSpan { offset: self.offset, size: self.size, whole: self.of_page };
        hub.jobs.make_text(self.handle, open, move |open| {
            let text = open.read_text(&context, span, cursor);
            drop(context);
            move || match text {
                Ok(text) => reply.data(&text),
                Err(cursor) => {
                    self.queue(&ours, reply, Attempt { number: PATIENCE, text: Some(cursor), charge });
                }
            }
        });
    }

    fn wait(self, hub: &Hub, reply: ReplyData, charge: Charge) {
        hub.waits.add(Waiting {
            handle: self.handle,
            size: self.size,
            pid: self.pid,
            page: self.of_page.then_some((self.ino, self.offset)),
            since: Instant::now(),
            reply,
            charge,
        });
        hub.changed.notify_one();
    }
}
