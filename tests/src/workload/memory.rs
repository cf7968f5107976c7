//! Memory operations: map, touch, protect, grow and drop, with their page faults.

use std::fs::OpenOptions;
use std::io;

use super::provoked::Count::{AtLeast, Exactly};
use super::provoked::{Provoked, at_least, syscalls};
use super::raw::{Mapping, heap_end};
use super::site::Site;

/// Bytes of the mapping that is touched page by page.
const LEN: usize = 64 * 4096;

/// One round.
pub(super) fn run(site: &Site) -> io::Result<()> {
    let mut memory = Mapping::anonymous(LEN)?;
    memory.touch();
    memory.protect_and_back()?;
    memory.residence();
    memory.drop_pages()?;
    memory.lock_and_unlock()?;
    memory.grow(2 * LEN)?;
    memory.touch();
    drop(memory);
    let path = site.dir.join("mapped");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    file.set_len(LEN as u64)?;
    let mut mapped = Mapping::file(&file, LEN)?;
    mapped.touch();
    mapped.sync()?;
    drop(mapped);
    drop(file);
    heap_end();
    std::fs::remove_file(path)
}

/// The events that [`run`] provokes.
pub(super) fn events() -> Vec<Provoked> {
    let mut events = syscalls(&[
        ("mmap", AtLeast(2)),
        ("munmap", AtLeast(2)),
        ("mprotect", AtLeast(2)),
        ("mincore", Exactly(1)),
        ("madvise", Exactly(1)),
        ("mlock", Exactly(1)),
        ("munlock", Exactly(1)),
        ("mremap", Exactly(1)),
        ("msync", Exactly(1)),
        ("brk", AtLeast(1)),
    ]);
    events.extend(at_least(&[
        ("exceptions:page_fault_user", 64),
        ("kmem:mm_page_alloc", 64),
        ("kmem:mm_page_free_batched", 1),
        ("kmem:rss_stat", 1),
        ("mmap:vm_unmapped_area", 2),
        ("mmap_lock:mmap_lock_start_locking", 2),
        ("mmap_lock:mmap_lock_acquire_returned", 2),
        ("mmap_lock:mmap_lock_released", 2),
        ("filemap:mm_filemap_fault", 0),
        ("pagemap:mm_lru_insertion", 1),
        // Only x86 code calls it; other kernels have the event and never hit it.
        ("tlb:tlb_flush", u64::from(cfg!(target_arch = "x86_64"))),
    ]));
    events
}
