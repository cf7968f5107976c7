//! The kernel's side of the tree: FUSE requests, passed on to [`Tree`]. No file's meaning is known here.
//!
//! A read that has nothing to give yet is kept, and answered when there is something ([`Hub::serve`]); the thread that
//! took the request goes on.

use std::{
    collections::HashMap,
    ffi::OsStr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, Notifier, OpenAccMode, OpenFlags, PollEvents, PollFlags,
    PollNotifier, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use tokio::sync::Notify;

use super::asked::{self, Asked};
use super::keeper::Keeper;
use super::tell::Teller;
use super::whole::{Access, Attributes, Outcome, Tree};
use crate::control::instance::user::{self, News};

/// How long the kernel may keep names and attributes: numbers mean the same for ever, and every change comes through it.
const TTL: Duration = Duration::from_secs(3600);

/// The same for what may go, events that were made and their systems.
fn kept(attributes: &Attributes) -> Duration {
    if attributes.lasting { TTL } else { Duration::ZERO }
}

/// What the kernel takes a stream's size to be while it is read.
const STREAM_SIZE: u64 = 1 << 62;

/// A read that waits.
struct Waiting {
    handle: u64,
    size: usize,
    pid: u32,
    reply: ReplyData,
}

/// Somebody who waits until a file is ready.
struct Polled {
    handle: u64,
    notifier: PollNotifier,
    /// Nothing but our looking at it tells when it is.
    by_clock: bool,
}

/// What requests and the daemon share.
pub(super) struct Hub {
    tree: Mutex<Tree>,
    waiting: Mutex<Vec<Waiting>>,
    polls: Mutex<Vec<Polled>>,
    keeper: Option<Mutex<Keeper>>,
    /// Streams of pages that are open to be read, by handle.
    streams: Mutex<HashMap<u64, INodeNo>>,
    /// To tell the kernel of changes by; there once the file system is mounted.
    pub(super) notifier: OnceLock<Notifier>,
    /// Tells programs of user events.
    teller: Teller,
    /// Requests by ioctl(2).
    pub(super) asked: Asked,
    /// Whether the kernel maps files that it keeps no pages of (6.6 and later).
    maps_directly: AtomicBool,
    own: Weak<Self>,
    /// Something changed that the daemon may have to act on.
    pub(super) changed: Notify,
    /// The file system was unmounted.
    pub(super) gone: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(super) fn new(tree: Tree, keeper: Option<Keeper>) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            teller: Teller::default(),
            asked: Asked::default(),
            maps_directly: AtomicBool::new(false),
            own: Weak::clone(own),
            tree: Mutex::new(tree),
            waiting: Mutex::default(),
            polls: Mutex::default(),
            keeper: keeper.map(Mutex::new),
            streams: Mutex::default(),
            notifier: OnceLock::new(),
            changed: Notify::new(),
            gone: Notify::new(),
        })
    }

    /// Tells programs what there is to tell, and then does something.
    pub(super) fn tell(&self, news: News, then: impl FnOnce() + Send + 'static) {
        self.teller.tell(&self.own, news, then);
    }

    /// Learns what became of programs, and tells them.
    pub(super) fn learn_tasks(&self) {
        let news = self.tree().mirror().user_news();
        self.tell(news, || {});
    }

    /// The tree.
    pub(super) fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.tree)
    }

    /// Keeps what was set, where it is kept.
    pub(super) fn keep(&self, tree: &mut Tree) {
        if let Some(keeper) = &self.keeper {
            lock(keeper).keep(tree.mirror());
        }
    }

    /// Forgets what was kept: the end is a regular one.
    pub(super) fn forget_kept(&self) {
        if let Some(keeper) = &self.keeper {
            lock(keeper).forget();
        }
    }

    /// Whether somebody waits for records.
    pub(super) fn is_awaited(&self) -> bool {
        !lock(&self.waiting).is_empty() || lock(&self.polls).iter().any(|polled| polled.by_clock)
    }

    /// Answers the reads that can be answered, and ends those whose thread was sent a signal.
    ///
    /// The kernel tells of signals by FUSE_INTERRUPT, which fuser 0.18 refuses, after which it is not told again: so the
    /// signals that a thread has pending are looked up.
    pub(super) fn serve(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        let mut left = Vec::new();
        for read in waiting {
            match self.tree().read(read.handle, 0, read.size) {
                Ok(Outcome::Data(data)) => read.reply.data(&data),
                Ok(Outcome::Wait) if is_interrupted(read.pid) => read.reply.error(Errno::EINTR),
                Ok(Outcome::Wait) => left.push(read),
                Err(error) => read.reply.error(errno(error)),
            }
        }
        lock(&self.waiting).extend(left);
        let polls = std::mem::take(&mut *lock(&self.polls));
        let mut left = Vec::new();
        for polled in polls {
            if self.tree().is_awaited(polled.handle) {
                // Whoever polled may be gone.
                let _ = polled.notifier.notify();
            } else {
                left.push(polled);
            }
        }
        lock(&self.polls).extend(left);
    }

    /// Lets splice(2) read a stream of pages. Since 6.5 it goes through the page cache, which ends where the file does: so while
    /// somebody reads it, a stream ends nowhere.
    fn open_stream(&self, handle: u64, ino: INodeNo) {
        lock(&self.streams).insert(handle, ino);
        // The kernel does not ask for the size again by itself; to be given the last byte tells it.
        if let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.store(ino, STREAM_SIZE - 1, &[0])
        {
            tracing::debug!("no splice from {ino:?}: {error}");
        }
    }

    fn close_stream(&self, handle: u64) {
        let closed = lock(&self.streams).remove(&handle);
        if let (Some(ino), Some(notifier)) = (closed, self.notifier.get()) {
            // Attributes alone; nobody may know the file any more.
            let _ = notifier.inval_inode(ino, -1, 0);
        }
    }

    fn attr(&self, attributes: &Attributes, since: SystemTime) -> FileAttr {
        let stream = lock(&self.streams).values().any(|ino| ino.0 == attributes.number);
        FileAttr {
            ino: INodeNo(attributes.number),
            size: if stream { STREAM_SIZE } else { attributes.size },
            blocks: 0,
            atime: since,
            mtime: since,
            ctime: since,
            crtime: since,
            kind: if attributes.is_dir { FileType::Directory } else { FileType::RegularFile },
            perm: attributes.mode,
            nlink: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn forget(&self, handle: u64) {
        lock(&self.polls).retain(|polled| polled.handle != handle);
    }
}

/// Whether a thread waits for a read(2) or the like, and not for memory that it touched (proc(5)).
fn is_reading(pid: u32) -> bool {
    const READS: [i64; 6] = [
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_readv,
        libc::SYS_preadv,
        libc::SYS_preadv2,
        libc::SYS_sendfile,
    ];
    for _ in 0..1000 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
        if !text.starts_with("running") {
            let number = text.split(' ').next().and_then(|number| number.parse().ok());
            return number.is_some_and(|number| READS.contains(&number));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Whether a thread has a signal pending that it does not block, or is no more (proc(5)).
fn is_interrupted(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let mask = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") != 0
}

pub(super) fn errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_i32(errno.raw_os_error())
}

/// The file system.
pub(super) struct Fuse {
    pub(super) hub: Arc<Hub>,
}

impl Filesystem for Fuse {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Of a stream nothing may be read before it is asked for; less than a page is none.
        let _ = config.set_max_readahead(1);
        let maps = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        self.hub.maps_directly.store(maps, Ordering::Release);
        // Emptying a file is part of opening it, as files here mean different things by the two.
        config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC).map_err(|_| {
            std::io::Error::new(std::io::ErrorKind::Unsupported, "the kernel's FUSE has no atomic O_TRUNC")
        })
    }

    fn destroy(&mut self) {
        self.hub.gone.notify_one();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut tree = self.hub.tree();
        tree.mirror().learn_modules();
        match name.to_str().ok_or(rustix::io::Errno::NOENT).and_then(|name| tree.lookup(parent.0, name)) {
            Ok(found) => reply.entry(&kept(&found), &self.hub.attr(&found, tree.since), Generation(0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let tree = self.hub.tree();
        match tree.attributes(ino.0) {
            Ok(found) => reply.attr(&kept(&found), &self.hub.attr(&found, tree.since)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
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
        let mut tree = self.hub.tree();
        match tree.change(ino.0, mode.map(|mode| (mode & 0o7777) as u16), uid, gid) {
            Ok(found) => reply.attr(&kept(&found), &self.hub.attr(&found, tree.since)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let mut tree = self.hub.tree();
        let made =
            name.to_str().ok_or(rustix::io::Errno::INVAL).and_then(|name| tree.make_dir(parent.0, name));
        self.hub.keep(&mut tree);
        match made {
            Ok(made) => reply.entry(&TTL, &self.hub.attr(&made, tree.since), Generation(0)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = name.to_str().ok_or(rustix::io::Errno::NOENT).and_then(|name| {
            let mut tree = self.hub.tree();
            let done = tree.remove_dir(parent.0, name);
            self.hub.keep(&mut tree);
            done
        });
        let news = self.hub.tree().mirror().user_news();
        self.hub.tell(news, move || match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
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
        };
        let opened = {
            let mut tree = self.hub.tree();
            tree.mirror().learn_modules();
            let opened = tree.open(ino.0, access, request.pid());
            self.hub.keep(&mut tree);
            opened
        };
        match opened {
            Ok((handle, stream)) => {
                if access.read && self.hub.tree().has_pages(handle) {
                    self.hub.open_stream(handle, ino);
                }
                // No file has a size, and none has pages that could be kept; but what is mapped must be, on older kernels.
                let mut how = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
                if !self.hub.maps_directly.load(Ordering::Acquire) && self.hub.tree().page(handle).is_some() {
                    how = FopenFlags::FOPEN_NOFLUSH;
                }
                if stream {
                    how |= FopenFlags::FOPEN_NONSEEKABLE | FopenFlags::FOPEN_STREAM;
                }
                // Emptying it may have turned events off.
                let news = self.hub.tree().mirror().user_news();
                self.hub.tell(news, move || reply.opened(FileHandle(handle), how));
            }
            Err(error) => reply.error(errno(error)),
        }
        self.hub.changed.notify_one();
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // Only a read of pages is nobody's: that of a mapping, or on older kernels any.
        let page = if owner.is_none() { self.hub.tree().page(handle.0) } else { None };
        if let Some(page) = page {
            let direct = self.hub.maps_directly.load(Ordering::Acquire);
            if direct || !is_reading(request.pid()) {
                let from = page.len().min(offset as usize);
                let to = page.len().min(from + size as usize);
                return reply.data(&page[from..to]);
            }
            self.hub.teller.forget_page(&self.hub.own);
        }
        let outcome = self.hub.tree().read(handle.0, offset, size as usize);
        match outcome {
            Ok(Outcome::Data(data)) => reply.data(&data),
            Ok(Outcome::Wait) if flags.0 & libc::O_NONBLOCK != 0 => reply.error(Errno::EAGAIN),
            Ok(Outcome::Wait) => {
                let waiting = Waiting { handle: handle.0, size: size as usize, pid: request.pid(), reply };
                lock(&self.hub.waiting).push(waiting);
                self.hub.changed.notify_one();
            }
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let answer = move |done: Result<usize, _>| match done {
            Ok(taken) => reply.written(taken as u32),
            Err(error) => reply.error(errno(error)),
        };
        let (done, news) = {
            let mut tree = self.hub.tree();
            if tree.user_file(handle.0).is_some() {
                // What comes behind the first part of a write is more than any record can hold.
                let rest = (offset > 0).then_some(data.len());
                let done = rest.map_or_else(|| tree.write(handle.0, data, request.pid()), Ok);
                drop(tree);
                answer(done);
                // A hit like any other: nothing changed but for who waits for one.
                if self.hub.is_awaited() {
                    self.hub.changed.notify_one();
                }
                return;
            }
            let done = tree.write(handle.0, data, request.pid());
            self.hub.keep(&mut tree);
            (done, tree.mirror().user_news())
        };
        self.hub.tell(news, move || answer(done));
        self.hub.changed.notify_one();
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
        self.hub.forget(handle.0);
        self.hub.close_stream(handle.0);
        {
            let mut tree = self.hub.tree();
            tree.close(handle.0);
            self.hub.keep(&mut tree);
        }
        self.hub.learn_tasks();
        reply.ok();
        self.hub.changed.notify_one();
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.hub.tree().list(ino.0) {
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
        let file = self.hub.tree().user_file(handle.0);
        // The kernel has none for 32-bit programs.
        let known = user::Request::of(number).filter(|_| !flags.contains(IoctlFlags::FUSE_IOCTL_COMPAT));
        match (file, known, data.try_into()) {
            (Some(file), Some(known), Ok(head)) => {
                let caller = user::Caller { task: request.pid(), file, number, head };
                asked::serve(&self.hub, caller, known, reply);
            }
            _ => reply.error(Errno::ENOTTY),
        }
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        notifier: PollNotifier,
        _: PollEvents,
        flags: PollFlags,
        reply: ReplyPoll,
    ) {
        let waits = flags.contains(PollFlags::FUSE_POLL_SCHEDULE_NOTIFY);
        let mut tree = self.hub.tree();
        let ready = tree.poll(handle.0, waits);
        let by_clock = tree.needs_looking_at(handle.0);
        drop(tree);
        // Who is not interested in what it is ready for sleeps nevertheless.
        if waits && (!ready.any() || !by_clock) {
            let mut polls = lock(&self.hub.polls);
            polls.retain(|polled| by_clock || polled.handle != handle.0);
            polls.push(Polled { handle: handle.0, notifier, by_clock });
            drop(polls);
            self.hub.changed.notify_one();
        }
        let mut events = PollEvents::empty();
        if ready.input {
            events |= PollEvents::POLLIN | PollEvents::POLLRDNORM;
        }
        if ready.news {
            events |= PollEvents::POLLPRI;
        }
        reply.poll(events);
    }
}
