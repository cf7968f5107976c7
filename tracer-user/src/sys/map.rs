//! BPF maps: creation, access by key, and the memory of arrays that are mapped into this process.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::{
    Errno,
    bpf::{Block, Command, call, call_fd, name},
};

/// Kinds of maps, `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// Keys of any kind.
    Hash = 1,
    /// Keys are 0 to size - 1.
    Array = 2,
    /// Programs for tail calls.
    ProgArray = 3,
    /// Keys of any kind, a value a CPU.
    PerCpuHash = 5,
    /// Keys are 0 to size - 1, a value a CPU.
    PerCpuArray = 6,
    /// Keys of any kind; where there is no room, what was not used for longest makes room.
    LruHash = 9,
    /// Other maps.
    ArrayOfMaps = 12,
    /// Records from programs to user space.
    RingBuf = 27,
}

/// What a new map is like.
#[derive(Clone, Copy, Debug)]
pub struct MapSpec<'a> {
    /// Kind.
    pub kind: MapKind,
    /// Bytes of a key; 0 for a ring buffer.
    pub key_size: u32,
    /// Bytes of a value; 0 for a ring buffer.
    pub value_size: u32,
    /// Number of entries; bytes for a ring buffer (a power of two and of pages).
    pub max_entries: u32,
    /// `BPF_F_*`, see [`flag`].
    pub flags: u32,
    /// For a map of maps: a map like those inside.
    pub inner: Option<BorrowedFd<'a>>,
    /// Shown by `bpftool map`.
    pub name: &'a str,
}

/// Flags of [`MapSpec::flags`].
pub mod flag {
    /// `BPF_F_NO_PREALLOC`.
    pub const NO_PREALLOC: u32 = 1;
    /// `BPF_F_RDONLY_PROG`: programs only read.
    pub const RDONLY_PROG: u32 = 1 << 7;
    /// `BPF_F_MMAPABLE`: the array can be mapped into a process.
    pub const MMAPABLE: u32 = 1 << 10;
}

#[repr(C)]
#[derive(Default)]
struct Create {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner: u32,
    numa_node: u32,
    name: [u8; 16],
    ifindex: u32,
}
// SAFETY: plain integers, no pointers, 4-byte fields only.
unsafe impl Block for Create {}

#[repr(C)]
struct Element {
    fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}
// SAFETY: key and value point to buffers of the sizes the map was made with, checked in `Map`.
unsafe impl Block for Element {}

#[repr(C)]
struct Batch {
    start: u64,
    next: u64,
    keys: u64,
    values: u64,
    count: u32,
    fd: u32,
    elem_flags: u64,
    flags: u64,
}
// SAFETY: keys and values point to `count` elements of the map's sizes, checked in `Map`.
unsafe impl Block for Batch {}

#[repr(C)]
struct Only {
    fd: u32,
}
// SAFETY: one integer.
unsafe impl Block for Only {}

/// A BPF map.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key_size: usize,
    value_size: usize,
    max_entries: u32,
}

impl Map {
    /// A map that the kernel has, and what is known of it.
    pub(super) fn of(fd: OwnedFd, spec: &MapSpec<'_>) -> Self {
        Self {
            fd,
            key_size: spec.key_size as usize,
            value_size: spec.value_size as usize,
            max_entries: spec.max_entries,
        }
    }

    /// Makes a map.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF`, `EINVAL` when the kernel lacks the kind or a flag, `ENOMEM`, `E2BIG`.
    pub fn create(spec: &MapSpec<'_>) -> Result<Self, Errno> {
        let mut block = Create {
            kind: spec.kind as u32,
            key_size: spec.key_size,
            value_size: spec.value_size,
            max_entries: spec.max_entries,
            flags: spec.flags,
            inner: spec.inner.map_or(0, |fd| fd.as_raw_fd() as u32),
            name: name(spec.name),
            ..Create::default()
        };
        Ok(Self {
            fd: call_fd(Command::MapCreate, &mut block)?,
            key_size: spec.key_size as usize,
            value_size: spec.value_size as usize,
            max_entries: spec.max_entries,
        })
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// `E2BIG` when the map is full or the key out of range, `EINVAL` for a descriptor of the wrong kind.
    ///
    /// # Panics
    /// When key or value have another size than the map's.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        assert_eq!((key.len(), value.len()), (self.key_size, self.value_size), "sizes of key and value");
        let mut block = Element {
            fd: self.fd.as_raw_fd() as u32,
            pad: 0,
            key: key.as_ptr() as u64,
            value: value.as_ptr() as u64,
            flags: 0,
        };
        call(Command::MapUpdate, &mut block).map(drop)
    }

    /// Sets the descriptor (of a map or program) at an index.
    ///
    /// # Errors
    /// As [`Map::update`].
    pub fn set_fd(&self, index: u32, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.update(&index.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes())
    }

    /// Sets the descriptors of maps at the indices 0 and up, in one call where the kernel can: each call waits for
    /// all programs that run (`maybe_wait_bpf_programs()`).
    ///
    /// # Errors
    /// As [`Map::update`].
    pub fn set_fds(&self, maps: &[Self]) -> Result<(), Errno> {
        let keys: Vec<u32> = (0..maps.len() as u32).collect();
        let values: Vec<i32> = maps.iter().map(|map| map.fd.as_raw_fd()).collect();
        let mut block = Batch {
            start: 0,
            next: 0,
            keys: keys.as_ptr() as u64,
            values: values.as_ptr() as u64,
            count: maps.len() as u32,
            fd: self.fd.as_raw_fd() as u32,
            elem_flags: 0,
            flags: 0,
        };
        match call(Command::MapUpdateBatch, &mut block) {
            Ok(_) => Ok(()),
            // Maps of maps take batches from 5.20 on.
            Err(_) => (0..).zip(maps).try_for_each(|(index, map)| self.set_fd(index, map.as_fd())),
        }
    }

    /// The value of a key; None when there is no such key.
    ///
    /// # Errors
    /// What the kernel says but `ENOENT`.
    ///
    /// # Panics
    /// When the key has another size than the map's.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        assert_eq!(key.len(), self.key_size, "size of the key");
        let mut value = vec![0; self.value_size];
        let mut block = Element {
            fd: self.fd.as_raw_fd() as u32,
            pad: 0,
            key: key.as_ptr() as u64,
            value: value.as_mut_ptr() as u64,
            flags: 0,
        };
        match call(Command::MapLookup, &mut block) {
            Ok(_) => Ok(Some(value)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The values that CPUs have for a key, those of `cpus` possible ones; None when there is no such key.
    ///
    /// # Errors
    /// What the kernel says but `ENOENT`.
    ///
    /// # Panics
    /// When the key has another size than the map's.
    pub fn lookup_per_cpu(&self, key: &[u8], cpus: usize) -> Result<Option<Vec<Vec<u8>>>, Errno> {
        assert_eq!(key.len(), self.key_size, "size of the key");
        let each = self.value_size.next_multiple_of(8);
        let mut values = vec![0; each * cpus];
        let mut block = Element {
            fd: self.fd.as_raw_fd() as u32,
            pad: 0,
            key: key.as_ptr() as u64,
            value: values.as_mut_ptr() as u64,
            flags: 0,
        };
        match call(Command::MapLookup, &mut block) {
            Ok(_) => Ok(Some(values.chunks(each).map(|value| value[..self.value_size].to_vec()).collect())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a key; false when there was none.
    ///
    /// # Errors
    /// `EINVAL` for kinds whose keys cannot be removed.
    ///
    /// # Panics
    /// When the key has another size than the map's.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Errno> {
        assert_eq!(key.len(), self.key_size, "size of the key");
        let mut block =
            Element { fd: self.fd.as_raw_fd() as u32, pad: 0, key: key.as_ptr() as u64, value: 0, flags: 0 };
        match call(Command::MapDelete, &mut block) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All keys, as they are met while others may come and go.
    ///
    /// # Errors
    /// What the kernel says but `ENOENT`, which ends the list.
    pub fn keys(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        loop {
            let mut next = vec![0; self.key_size];
            let mut block = Element {
                fd: self.fd.as_raw_fd() as u32,
                pad: 0,
                key: keys.last().map_or(0, |last| last.as_ptr() as u64),
                value: next.as_mut_ptr() as u64,
                flags: 0,
            };
            match call(Command::MapNextKey, &mut block) {
                // A key that went away makes the walk begin again.
                Ok(_) if keys.len() >= self.max_entries as usize => return Ok(keys),
                Ok(_) => keys.push(next),
                Err(Errno::NOENT) => return Ok(keys),
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends user space's right to write, so that the verifier takes the values as constants.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn freeze(&self) -> Result<(), Errno> {
        call(Command::MapFreeze, &mut Only { fd: self.fd.as_raw_fd() as u32 }).map(drop)
    }

    /// Number of entries the map was made for; bytes for a ring buffer.
    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// Maps an array made with [`flag::MMAPABLE`] into this process.
    ///
    /// # Errors
    /// `ENOMEM`, or `EPERM` for a frozen map.
    pub fn mapped(&self) -> Result<MappedArray, Errno> {
        // The kernel gives every value a multiple of eight bytes.
        let stride = self.value_size.next_multiple_of(8);
        let length = stride * self.max_entries as usize;
        // SAFETY: a fresh mapping at an address the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &self.fd,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(MappedArray { start, length })
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The values of an array map in this process's memory, which programs write at any time.
#[derive(Debug)]
pub struct MappedArray {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: access goes through atomics only.
unsafe impl Send for MappedArray {}
// SAFETY: as above.
unsafe impl Sync for MappedArray {}

impl MappedArray {
    fn word<T>(&self, offset: usize) -> *mut T {
        assert!(
            offset.is_multiple_of(size_of::<T>()) && offset + size_of::<T>() <= self.length,
            "offset in the array"
        );
        // SAFETY: inside the mapping, checked above.
        unsafe { self.start.as_ptr().add(offset) }.cast()
    }

    fn short(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: aligned and inside the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.word(offset)) }
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `short`.
        unsafe { AtomicU64::from_ptr(self.word(offset)) }
    }

    /// Reads the eight-byte word at a byte offset.
    pub fn load(&self, offset: usize) -> u64 {
        self.long(offset).load(Ordering::Relaxed)
    }

    /// Reads the four-byte word at a byte offset.
    pub fn load_word(&self, offset: usize) -> u32 {
        self.short(offset).load(Ordering::Acquire)
    }

    /// Writes the four-byte word at a byte offset.
    pub fn store(&self, offset: usize, value: u32) {
        self.short(offset).store(value, Ordering::Release);
    }

    /// Writes the eight-byte word at a byte offset.
    pub fn store_long(&self, offset: usize, value: u64) {
        self.long(offset).store(value, Ordering::Release);
    }

    /// Writes the four-byte word at a byte offset and gives what was there.
    pub fn swap(&self, offset: usize, value: u32) -> u32 {
        self.short(offset).swap(value, Ordering::AcqRel)
    }

    /// Sets or clears bits of the four-byte word at a byte offset, in one step.
    pub fn change(&self, offset: usize, bits: u32, set: bool) {
        if set {
            self.short(offset).fetch_or(bits, Ordering::AcqRel);
        } else {
            self.short(offset).fetch_and(!bits, Ordering::AcqRel);
        }
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: our own mapping, not used after this.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
