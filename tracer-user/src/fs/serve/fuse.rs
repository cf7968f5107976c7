//! The FUSE file system: each request becomes a job for the thread that owns the tree. Nothing here depends on single
//! files.
//!
//! One thread receives the requests and never blocks. A job answers its request itself. Both sides share the [`Hub`].

use std::{
    ffi::OsStr,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use fuser::{
    Errno, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::{
    errno::errno,
    hub::{Hub, TTL, kept},
    ioctl,
    opening::Opening,
    owner::{BorrowedTree, When},
    reads::Read,
};
use crate::{
    engine::{Client, Cooperative, quota::Kind, records::Writer, user},
    fs::{
        threads::lock,
        tree::{inodes, open::Access},
    },
    lang::facts::{FileRequest, Files},
};

/// Maximum bytes of a write to `user_events_data` that are passed on: an index and more than a record can hold.
const RECORD_MAX: usize = 4 + 2 * tracer_abi::MAX_PAYLOAD;

/// Maximum number of background requests: more than there can be waiting reads ([`Kind::WaitingReads`]).
const BACKGROUND_MAX: u16 = 4096;

pub(crate) struct Fuse {
    pub(crate) hub: Arc<Hub>,
}

/// Opens the user files that a write names, then executes the write and answers it. Other requests continue
/// meanwhile.
fn write_later(
    hub: &Arc<Hub>,
    client: Client,
    handle: u64,
    data: Vec<u8>,
    wanted: Vec<FileRequest>,
    answer: impl FnOnce(Result<usize, rustix::io::Errno>) + Send + 'static,
) {
    // Either the queued write or the refusal below takes the answer.
    let answer = Arc::new(Mutex::new(Some(answer)));
    let take = |answer: &Mutex<Option<_>>| lock(answer).take();
    let (ours, later) = (Arc::clone(hub), Arc::clone(&answer));
    let apply = move |files: Files| {
        let hub = Arc::clone(&ours);
        ours.jobs.post(client.payer, "write", When::Alone, move |tree| {
            let write = |tree: &mut BorrowedTree<'_>| tree.write_with(handle, &data, client, &files);
            if let Some(answer) = take(&later) {
                hub.change(tree, write, answer);
            }
        });
    };
    if let Err(error) = hub.opener.look_then((&hub.quotas, client.payer), wanted, apply)
        && let Some(answer) = take(&answer)
    {
        answer(Err(error));
    }
}

impl Filesystem for Fuse {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // The kernel must not read a stream ahead. Less than a page means no readahead.
        let _ = config.set_max_readahead(1);
        // While so many background requests are unanswered, the kernel sends no other. Closes are such requests, and so
        // are reads of pages by splice(2), which may wait for records while no other client needs the page.
        let _ = config.set_max_background(BACKGROUND_MAX);
        let maps = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        self.hub.set_maps_directly(maps);
        // A lookup that waits must not lock its directory for the lookups of others. All kernels from 4.7 on have it.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        // An open with `O_TRUNC` must be one request, because emptying a file has an effect that a change of size has
        // not.
        config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC).map_err(|_| {
            std::io::Error::new(std::io::ErrorKind::Unsupported, "the kernel's FUSE has no atomic O_TRUNC")
        })
    }

    fn destroy(&mut self) {
        self.hub.gone.notify_one();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (hub, name) = (Arc::clone(&self.hub), name.to_owned());
        let payer = self.hub.payer(request);
        self.hub.jobs.look(payer, "lookup", When::Lookup, move |view| {
            let found = name.to_str().ok_or(rustix::io::Errno::NOENT);
            match found.and_then(|name| view.lookup(inodes::file(parent.0), name)) {
                Ok(found) => {
                    let ino = hub.inodes.look_up(&found, payer);
                    reply.entry(&kept(&found), &hub.attr(&found, ino, view.since()), Generation(0));
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.hub.inodes.forget(ino.0, lookups);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if let Some(known) = self.hub.inodes.shared(ino.0) {
            let since = self.hub.jobs.files().since;
            return reply.attr(&kept(&known), &self.hub.attr(&known, ino.0, since));
        }
        let hub = Arc::clone(&self.hub);
        self.hub.jobs.look(self.hub.payer(request), "getattr", When::Attributes, move |view| {
            match view.attributes(inodes::file(ino.0)) {
                Ok(found) => reply.attr(&kept(&found), &hub.attr(&found, ino.0, view.since())),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let hub = Arc::clone(&self.hub);
        self.hub.jobs.post(self.hub.payer(request), "setattr", When::Any, move |tree| {
            let mode = mode.map(|mode| (mode & 0o7777) as u16);
            match tree.change(inodes::file(ino.0), mode, uid, gid) {
                Ok(found) => {
                    hub.inodes.change(&found);
                    reply.attr(&kept(&found), &hub.attr(&found, ino.0, tree.since()));
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let (hub, name) = (Arc::clone(&self.hub), name.to_owned());
        self.hub.jobs.post(self.hub.payer(request), "mkdir", When::Alone, move |tree| {
            let make = |tree: &mut BorrowedTree<'_>| {
                let name = name.to_str().ok_or(rustix::io::Errno::INVAL)?;
                Ok((tree.make_dir(inodes::file(parent.0), name)?, tree.since()))
            };
            let its = Arc::clone(&hub);
            hub.change(tree, make, move |made: Result<_, rustix::io::Errno>| match made {
                Ok((made, since)) => {
                    reply.entry(&TTL, &its.attr(&made, made.number, since), Generation(0));
                }
                Err(error) => reply.error(errno(error)),
            });
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (hub, name) = (Arc::clone(&self.hub), name.to_owned());
        self.hub.jobs.post(self.hub.payer(request), "rmdir", When::Alone, move |tree| {
            let remove = |tree: &mut BorrowedTree<'_>| {
                tree.remove_dir(inodes::file(parent.0), name.to_str().ok_or(rustix::io::Errno::NOENT)?)
            };
            hub.change(tree, remove, move |done| match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            });
        });
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::EACCES);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mode = flags.acc_mode();
        let access = Access {
            read: mode != OpenAccMode::O_WRONLY,
            write: mode != OpenAccMode::O_RDONLY,
            truncate: flags.0 & libc::O_TRUNC != 0,
            payer: self.hub.payer(request),
        };
        Opening::start(&self.hub, request.pid(), ino.0, access, reply);
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = Read {
            payer: self.hub.payer_at(request, handle.0),
            pid: request.pid(),
            ino: ino.0,
            handle: handle.0,
            offset,
            size: size as usize,
            waits: flags.0 & libc::O_NONBLOCK == 0,
            // A read of pages has no lock owner: by a mapping or splice(2), and on older kernels any read through the
            // page cache.
            of_page: owner.is_none(),
        };
        read.start(&self.hub, reply);
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // The kernel writes a page of a shared mapping back as uid 0 and pid 0, whoever changed the page. No file of
        // tracefs can be mapped for writing.
        if flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            return reply.error(Errno::EIO);
        }
        let answer = move |done: Result<usize, _>| match done {
            Ok(taken) => reply.written(taken as u32),
            Err(error) => reply.error(errno(error)),
        };
        let (hub, handle) = (Arc::clone(&self.hub), handle.0);
        if let Some((marks, mark)) = hub.jobs.files().marks(handle)
            && let Some(done) = marks.take(mark, data, || Writer::of(request.pid()))
        {
            answer(done.map_err(Into::into));
            if !hub.waits.is_empty() {
                hub.changed.notify_one();
            }
            return;
        }
        let client = Client { thread: request.pid(), payer: hub.payer_at(request, handle) };
        if hub.jobs.files().user_file(handle).is_some() {
            // The kernel splits long writes. The first part has more than a record can hold already.
            if offset > 0 {
                return answer(Ok(data.len()));
            }
            // The rest only counts as written.
            let length = data.len();
            let data = data.get(..RECORD_MAX).unwrap_or(data).to_vec();
            return self.hub.jobs.post(client.payer, "record", When::File(handle), move |tree| {
                answer(tree.write(handle, &data, client).map(|_| length));
                // The record is a hit: only reads and polls that wait for records must learn of it.
                if !hub.waits.is_empty() {
                    hub.changed.notify_one();
                }
            });
        }
        let Ok(charge) = hub.quotas.charge(client.payer, Kind::QueuedBytes, data.len()) else {
            return answer(Err(rustix::io::Errno::NOMEM));
        };
        let data = data.to_vec();
        self.hub.jobs.post(client.payer, "write", When::Alone, move |tree| {
            let _charge = charge;
            let wanted = tree.wanted(handle, &data);
            if !wanted.is_empty() {
                return write_later(&hub, client, handle, data, wanted, answer);
            }
            hub.change(tree, |tree| tree.write(handle, &data, client), answer);
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::EINVAL);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let (hub, handle) = (Arc::clone(&self.hub), handle.0);
        hub.waits.forget(handle);
        hub.streams.close(handle);
        hub.updater.close_page(handle);
        // A release has no uid.
        self.hub.jobs.post(0, "release", When::Closing(handle), move |tree| {
            tree.close(handle);
            hub.release_handle(handle);
            reply.ok();
            // In a turn, the operation that gives it applies the effects.
            if !tree.engine().scheduler().is_serving() {
                hub.change(tree, |_| (), |()| {});
            }
        });
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.hub.jobs.look(self.hub.payer(request), "readdir", When::Attributes, move |view| {
            match view.list(inodes::file(ino.0)) {
                Ok(all) => {
                    for (index, (number, name, is_dir)) in (0..).zip(all).skip(offset as usize) {
                        let kind = if is_dir { FileType::Directory } else { FileType::RegularFile };
                        if reply.add(INodeNo(number), index + 1, kind, name) {
                            break;
                        }
                    }
                    reply.ok();
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 4096, 255, 4096);
    }

    fn ioctl(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        flags: IoctlFlags,
        number: u32,
        data: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        let file = self.hub.jobs.files().user_file(handle.0);
        // The kernel's user events have no ioctls for 32-bit programs.
        let known = user::Request::of(number).filter(|_| !flags.contains(IoctlFlags::FUSE_IOCTL_COMPAT));
        match (file, known, data.try_into()) {
            (Some(file), Some(known), Ok(head)) => {
                let caller =
                    user::Caller { task: request.pid(), payer: self.hub.payer(request), file, number, head };
                ioctl::serve(&self.hub, caller, known, reply);
            }
            _ => reply.error(Errno::ENOTTY),
        }
    }

    fn poll(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        notifier: PollNotifier,
        _: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        let waits = flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY);
        let (hub, handle) = (Arc::clone(&self.hub), handle.0);
        self.hub.jobs.post(self.hub.payer_at(request, handle), "poll", When::File(handle), move |tree| {
            tree.settle(handle);
            let ready = tree.poll(handle, waits);
            let by_clock = tree.needs_looking_at(handle);
            // A caller can sleep although the file is ready, if it polls for other events. Histograms wake it then.
            if waits && !(by_clock && (ready.input || ready.news)) {
                hub.waits.poll(handle, notifier, by_clock);
                hub.changed.notify_one();
            }
            let mut events = PollEvents::empty();
            if ready.input {
                events |= PollEvents::POLLIN | PollEvents::POLLRDNORM;
            }
            if ready.news {
                events |= PollEvents::POLLPRI;
            }
            reply.poll(events);
        });
    }
}
