//! A file system with one file. Its pages become available only when a test releases them, and an access to a mapping
//! waits in a page fault until then. With `O_DIRECT` the file bypasses the page cache, and mmap(2) invalidates the
//! page cache first.

use std::{
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    SessionACL,
};

/// Size of the file, in bytes.
const SIZE: u64 = 64 * 4096;
/// Inode number of the file.
const PAGE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct State {
    /// Waiting reads; `None` after [`Held::release`].
    waiting: Mutex<Option<Vec<(ReplyData, u32)>>>,
    reads: AtomicUsize,
    /// Waiting writes while [`BlockedFs::hold_writes`] is in effect.
    writes: Mutex<Option<Vec<(ReplyWrite, u32)>>>,
}

impl State {
    fn release(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        for (reply, size) in waiting.into_iter().flatten() {
            reply.data(&vec![0; size as usize]);
        }
    }

    fn writes(&self) -> MutexGuard<'_, Option<Vec<(ReplyWrite, u32)>>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_writes(&self) {
        let waiting = self.writes().take();
        for (reply, size) in waiting.into_iter().flatten() {
            reply.written(size);
        }
    }
}

/// The mounted file system, which is unmounted on drop.
pub struct BlockedFs {
    state: Arc<State>,
    dir: PathBuf,
    session: Option<BackgroundSession>,
}

impl BlockedFs {
    /// Mounts the file system.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount(purpose: &str) -> Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tracer-held-{purpose}-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir)?;
        let state = Arc::new(State { waiting: Mutex::new(Some(Vec::new())), ..State::default() });
        let mut config = Config::default();
        config.acl = SessionACL::All;
        let files = Files(Arc::clone(&state));
        let session = fuser::Session::new(files, &dir, &config)
            .and_then(fuser::Session::spawn)
            .context("a file system that holds pages")?;
        Ok(Self { state, dir, session: Some(session) })
    }

    /// Path of the file.
    pub fn file(&self) -> PathBuf {
        self.dir.join("page")
    }

    /// Number of reads so far.
    pub fn reads(&self) -> usize {
        self.state.reads.load(Ordering::Acquire)
    }

    /// Answers all waiting and all later reads.
    pub fn release(&self) {
        self.state.release();
    }

    /// Answers no writes from now on, until [`BlockedFs::release_writes`].
    pub fn hold_writes(&self) {
        self.state.writes().get_or_insert_default();
    }

    /// Answers all waiting and all later writes. Returns whether there were waiting ones.
    pub fn release_writes(&self) -> bool {
        let waited = self.state.writes().as_ref().is_some_and(|waiting| !waiting.is_empty());
        self.state.release_writes();
        waited
    }
}

impl Drop for BlockedFs {
    fn drop(&mut self) {
        self.release();
        self.state.release_writes();
        drop(self.session.take());
        let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// Opens the file as clients do.
///
/// # Errors
/// The errors of open(2).
pub fn open(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).open(path)
}

struct Files(Arc<State>);

fn attributes(ino: INodeNo) -> FileAttr {
    let is_dir = ino != PAGE;
    FileAttr {
        ino,
        size: if is_dir { 0 } else { SIZE },
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: if is_dir { FileType::Directory } else { FileType::RegularFile },
        perm: if is_dir { 0o755 } else { 0o666 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == "page" {
            reply.entry(&TTL, &attributes(PAGE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let direct = flags.0 & libc::O_DIRECT != 0;
        let how = if direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE };
        reply.opened(FileHandle(0), how);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.reads.fetch_add(1, Ordering::AcqRel);
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waiting {
            Some(waiting) => waiting.push((reply, size)),
            None => reply.data(&vec![0; size as usize]),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: fuser::WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let size = data.len() as u32;
        match &mut *self.0.writes() {
            Some(waiting) => waiting.push((reply, size)),
            None => reply.written(size),
        }
    }
}
