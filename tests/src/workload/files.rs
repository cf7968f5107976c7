//! File operations: create, write, read, rename, lock and remove, on a disk's file system and on tmpfs.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{
    Access, Advice, AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom, Timespec, Timestamps,
    XattrFlags,
};

use super::provoked::Count::{AtLeast, Exactly};
use super::provoked::{Provoked, at_least, exactly, syscalls};
use super::site::Site;

/// One round on the disk's file system.
pub(super) fn disk(site: &Site) -> io::Result<()> {
    round(&site.dir)
}

/// One round on tmpfs.
pub(super) fn memory(site: &Site) -> io::Result<()> {
    round(&site.shm)
}

fn round(dir: &Path) -> io::Result<()> {
    let base = rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let base = base.as_fd();
    rustix::fs::mkdirat(base, "inner", Mode::from_raw_mode(0o750))?;
    let file = rustix::fs::openat(
        base,
        "inner/one",
        OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o640),
    )?;
    let file = file.as_fd();
    let block = [0x5a_u8; 10_000];
    rustix::io::write(file, &block)?;
    rustix::io::pwrite(file, b"deterministic", 5_000)?;
    rustix::fs::fsync(file)?;
    rustix::fs::fdatasync(file)?;
    rustix::fs::seek(file, SeekFrom::Start(100))?;
    let mut buffer = [0_u8; 4_096];
    rustix::io::read(file, &mut buffer)?;
    rustix::io::pread(file, &mut buffer, 4_096)?;
    rustix::fs::ftruncate(file, 6_000)?;
    // Some file systems do not support this; only the call matters.
    let _ = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, 16_384);
    rustix::fs::fadvise(file, 0, None, Advice::WillNeed)?;
    rustix::fs::fstat(file)?;
    rustix::fs::statx(base, "inner/one", AtFlags::empty(), rustix::fs::StatxFlags::ALL)?;
    rustix::fs::fstatfs(file)?;
    rustix::fs::accessat(base, "inner/one", Access::READ_OK, AtFlags::empty())?;
    rustix::fs::chmodat(base, "inner/one", Mode::from_raw_mode(0o600), AtFlags::empty())?;
    let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 5 };
    rustix::fs::utimensat(
        base,
        "inner/one",
        &Timestamps { last_access: time, last_modification: time },
        AtFlags::empty(),
    )?;
    rustix::fs::linkat(base, "inner/one", base, "inner/two", AtFlags::empty())?;
    rustix::fs::symlinkat("one", base, "inner/three")?;
    rustix::fs::readlinkat(base, "inner/three", Vec::with_capacity(64))?;
    rustix::fs::renameat(base, "inner/two", base, "inner/four")?;
    let _ = rustix::fs::fsetxattr(file, "user.tracer", b"value", XattrFlags::empty());
    let _ = rustix::fs::fgetxattr(file, "user.tracer", &mut buffer[..]);
    let _ = rustix::fs::fremovexattr(file, "user.tracer");
    let copy = rustix::fs::openat(
        base,
        "inner/copy",
        OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o640),
    )?;
    let mut offset = 0;
    rustix::fs::copy_file_range(file, Some(&mut offset), copy.as_fd(), None, 1_000)?;
    rustix::fs::sendfile(copy.as_fd(), file, Some(&mut 0), 2_000)?;
    let again = rustix::io::dup(copy.as_fd())?;
    drop(again);
    drop(copy);
    let names = fs::read_dir(dir.join("inner"))?.count();
    assert_eq!(names, 4, "files of the round");
    for name in ["inner/one", "inner/three", "inner/four", "inner/copy"] {
        rustix::fs::unlinkat(base, name, AtFlags::empty())?;
    }
    rustix::fs::unlinkat(base, "inner", AtFlags::REMOVEDIR)?;
    Ok(())
}

fn common_events() -> Vec<Provoked> {
    let mut events = syscalls(&[
        ("openat", AtLeast(4)),
        ("mkdirat", Exactly(1)),
        ("write", AtLeast(1)),
        ("pwrite64", Exactly(1)),
        ("fsync", Exactly(1)),
        ("fdatasync", Exactly(1)),
        ("lseek", AtLeast(1)),
        ("read", AtLeast(1)),
        ("pread64", Exactly(1)),
        ("ftruncate", Exactly(1)),
        ("fallocate", Exactly(1)),
        ("fadvise64", Exactly(1)),
        ("statx", AtLeast(1)),
        ("fstatfs", Exactly(1)),
        ("fchmodat", Exactly(1)),
        ("utimensat", Exactly(1)),
        ("linkat", Exactly(1)),
        ("symlinkat", Exactly(1)),
        ("readlinkat", Exactly(1)),
        ("fsetxattr", Exactly(1)),
        ("fgetxattr", Exactly(1)),
        ("fremovexattr", Exactly(1)),
        ("copy_file_range", Exactly(1)),
        ("sendfile64", Exactly(1)),
        ("getdents64", AtLeast(2)),
        ("unlinkat", AtLeast(5)),
        ("close", AtLeast(4)),
    ]);
    events.extend(at_least(&[
        ("kmem:kmem_cache_alloc", 10),
        ("kmem:kmem_cache_free", 5),
        ("kmem:kmalloc", 2),
        ("kmem:kfree", 2),
        ("kmem:mm_page_alloc", 2),
    ]));
    events
}

/// The events that [`disk`] provokes. The file system's own events depend on its type; [`EXT4_EVENTS`] lists those of
/// ext4.
pub(super) fn disk_events() -> Vec<Provoked> {
    let mut events = common_events();
    events.extend(at_least(&[
        ("filemap:mm_filemap_add_to_page_cache", 1),
        ("writeback:writeback_dirty_folio", 1),
        ("writeback:writeback_mark_inode_dirty", 1),
    ]));
    events.extend(at_least(EXT4_EVENTS));
    events
}

/// The events of a round when the scratch directory is on ext4.
const EXT4_EVENTS: &[(&str, u64)] = &[
    ("ext4:ext4_request_inode", 2),
    ("ext4:ext4_allocate_inode", 2),
    ("ext4:ext4_free_inode", 2),
    ("ext4:ext4_evict_inode", 2),
    ("ext4:ext4_drop_inode", 2),
    ("ext4:ext4_da_write_begin", 1),
    ("ext4:ext4_da_write_end", 1),
    ("ext4:ext4_sync_file_enter", 2),
    ("ext4:ext4_sync_file_exit", 2),
    ("ext4:ext4_unlink_enter", 4),
    ("ext4:ext4_unlink_exit", 4),
    ("ext4:ext4_truncate_enter", 1),
    ("ext4:ext4_truncate_exit", 1),
    ("ext4:ext4_mark_inode_dirty", 5),
    ("ext4:ext4_journal_start_inode", 5),
    ("ext4:ext4_es_lookup_extent_enter", 1),
    ("ext4:ext4_es_lookup_extent_exit", 1),
    ("ext4:ext4_ext_map_blocks_enter", 1),
    ("ext4:ext4_ext_map_blocks_exit", 1),
    ("ext4:ext4_mballoc_alloc", 0),
    ("ext4:ext4_fallocate_enter", 1),
    ("ext4:ext4_fallocate_exit", 1),
    // Only with a journal.
    ("jbd2:jbd2_handle_start", 0),
    ("jbd2:jbd2_handle_stats", 0),
];

/// The events that [`memory`] provokes.
pub(super) fn memory_events() -> Vec<Provoked> {
    let mut events = common_events();
    events.extend(at_least(&[("timestamp:inode_set_ctime_to_ts", 2)]));
    events
}

/// Locks of a whole file of both kinds, and a refused lock.
pub(super) fn locks(site: &Site) -> io::Result<()> {
    let path = site.dir.join("lock");
    let first = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    let second = File::open(&path)?;
    rustix::fs::flock(&first, FlockOperation::LockExclusive)?;
    assert!(
        rustix::fs::flock(&second, FlockOperation::NonBlockingLockShared).is_err(),
        "a second flock was let in"
    );
    rustix::fs::flock(&first, FlockOperation::Unlock)?;
    rustix::fs::fcntl_lock(&first, FlockOperation::NonBlockingLockExclusive)?;
    rustix::fs::fcntl_lock(&first, FlockOperation::Unlock)?;
    drop((first, second));
    fs::remove_file(&path)
}

/// The events that [`locks`] provokes.
pub(super) fn lock_events() -> Vec<Provoked> {
    let mut events = syscalls(&[("flock", Exactly(3)), ("fcntl", AtLeast(2)), ("unlink", Exactly(1))]);
    events.extend(exactly(&[("filelock:fcntl_setlk", 2), ("filelock:flock_lock_inode", 3)]));
    events.extend(at_least(&[
        ("filelock:posix_lock_inode", 2),
        ("filelock:locks_get_lock_context", 1),
        ("filelock:locks_remove_posix", 0),
    ]));
    events
}
