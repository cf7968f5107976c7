//! BPF maps: creation, access by key, and arrays mapped into this process's memory.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use aya_obj::generated::{bpf_cmd, bpf_map_type};
use memmap2::{MmapOptions, MmapRaw};

use super::{arguments, call, call_fd, name};
use crate::sys::{Errno, cpus::Cpus, errno_of};

/// Map types, `enum bpf_map_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// Arbitrary keys.
    Hash = bpf_map_type::BPF_MAP_TYPE_HASH as u32,
    /// Keys are 0 to `max_entries` - 1.
    Array = bpf_map_type::BPF_MAP_TYPE_ARRAY as u32,
    /// Programs for tail calls.
    ProgArray = bpf_map_type::BPF_MAP_TYPE_PROG_ARRAY as u32,
    /// Arbitrary keys, one value for each CPU.
    #[cfg_attr(
        not(any(test, feature = "internals")),
        expect(dead_code, reason = "only tests make such a map")
    )]
    PerCpuHash = bpf_map_type::BPF_MAP_TYPE_PERCPU_HASH as u32,
    /// Keys are 0 to `max_entries` - 1, one value for each CPU.
    PerCpuArray = bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY as u32,
    /// Arbitrary keys; a full map evicts the least recently used entry.
    LruHash = bpf_map_type::BPF_MAP_TYPE_LRU_HASH as u32,
    /// Keys are 0 to `max_entries` - 1, the values are other maps.
    ArrayOfMaps = bpf_map_type::BPF_MAP_TYPE_ARRAY_OF_MAPS as u32,
    /// Records from programs to user space.
    RingBuf = bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32,
}

impl MapKind {
    /// Whether a key has a value for each possible CPU, all of which the kernel copies at once.
    fn is_per_cpu(self) -> bool {
        matches!(self, Self::PerCpuHash | Self::PerCpuArray)
    }
}

/// The parameters of a new map.
#[derive(Clone, Copy, Debug)]
pub struct MapSpec<'a> {
    /// Map type.
    pub kind: MapKind,
    /// Bytes of a key; 0 for a ring buffer.
    pub key_size: u32,
    /// Bytes of a value; 0 for a ring buffer.
    pub value_size: u32,
    /// Number of entries; bytes for a ring buffer (a power of two and of pages).
    pub max_entries: u32,
    /// `BPF_F_*`, see [`flag`].
    pub flags: u32,
    /// For a map of maps: a template for the inner maps.
    pub inner: Option<BorrowedFd<'a>>,
    /// Shown by `bpftool map`.
    pub name: &'a str,
}

/// Flags of [`MapSpec::flags`].
pub mod flag {
    use aya_obj::generated::{BPF_F_MMAPABLE, BPF_F_RDONLY_PROG};

    /// Programs only read.
    pub const RDONLY_PROG: u32 = BPF_F_RDONLY_PROG;
    /// The array can be mapped into a process.
    pub const MMAPABLE: u32 = BPF_F_MMAPABLE;
}

/// A BPF map.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    kind: MapKind,
    key_size: usize,
    value_size: usize,
    /// Bytes that a lookup or an update copies: the values of all possible CPUs for a per-CPU map.
    transfer: usize,
    max_entries: u32,
}

/// Bytes that a lookup copies out and an update copies in (`bpf_map_value_size()`, kernel/bpf/syscall.c).
fn transfer(spec: &MapSpec<'_>) -> Result<usize, Errno> {
    let size = spec.value_size as usize;
    if !spec.kind.is_per_cpu() {
        return Ok(size);
    }
    size.next_multiple_of(8).checked_mul(Cpus::possible()?.count()).ok_or(Errno::INVAL)
}

impl Map {
    /// Wraps the descriptor of an existing map that matches the specification.
    ///
    /// # Errors
    /// As [`Cpus::possible`] for a per-CPU map.
    pub(super) fn of(fd: OwnedFd, spec: &MapSpec<'_>) -> Result<Self, Errno> {
        Ok(Self {
            transfer: transfer(spec)?,
            fd,
            kind: spec.kind,
            key_size: spec.key_size as usize,
            value_size: spec.value_size as usize,
            max_entries: spec.max_entries,
        })
    }

    /// Creates a map.
    ///
    /// # Errors
    /// `EPERM` without `CAP_BPF`, `EINVAL` if the kernel lacks the type or a flag, `ENOMEM`, `E2BIG`; as
    /// [`Cpus::possible`] for a per-CPU map.
    pub fn create(spec: &MapSpec<'_>) -> Result<Self, Errno> {
        let mut arguments = arguments();
        arguments.__bindgen_anon_1.map_type = spec.kind as u32;
        arguments.__bindgen_anon_1.key_size = spec.key_size;
        arguments.__bindgen_anon_1.value_size = spec.value_size;
        arguments.__bindgen_anon_1.max_entries = spec.max_entries;
        arguments.__bindgen_anon_1.map_flags = spec.flags;
        arguments.__bindgen_anon_1.inner_map_fd = spec.inner.map_or(0, |fd| fd.as_raw_fd().cast_unsigned());
        arguments.__bindgen_anon_1.map_name = name(spec.name);
        // SAFETY: the command returns a descriptor, and there are no addresses.
        Self::of(unsafe { call_fd(bpf_cmd::BPF_MAP_CREATE, &mut arguments) }?, spec)
    }

    /// Checks the key's size: the kernel would read past the end of a shorter key.
    fn check_key(&self, key: &[u8]) -> Result<(), Errno> {
        if key.len() == self.key_size { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Calls bpf(2) for one element of the map.
    ///
    /// # Safety
    /// `key` is 0 or the address of a key of the map's size. `value` is 0 if the command has none; otherwise it is the
    /// address of as many bytes as the command reads or writes: a value's or, for `BPF_MAP_GET_NEXT_KEY`, a key's.
    unsafe fn element(&self, command: bpf_cmd, key: u64, value: u64) -> Result<(), Errno> {
        let mut arguments = arguments();
        arguments.__bindgen_anon_2.map_fd = self.fd.as_raw_fd().cast_unsigned();
        arguments.__bindgen_anon_2.key = key;
        arguments.__bindgen_anon_2.__bindgen_anon_1.value = value;
        // SAFETY: as the caller vouches.
        unsafe { call(command, &mut arguments) }.map(drop)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// `E2BIG` if the map is full or the key is out of range; `EINVAL` for a descriptor of the wrong kind, for a key
    /// or value of another size than the map's, and for a per-CPU map.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.check_key(key)?;
        if self.kind.is_per_cpu() || value.len() != self.value_size {
            return Err(Errno::INVAL);
        }
        // SAFETY: key and value have the map's sizes, checked above.
        unsafe { self.element(bpf_cmd::BPF_MAP_UPDATE_ELEM, key.as_ptr() as u64, value.as_ptr() as u64) }
    }

    /// Sets the descriptor (of a map or program) at an index.
    pub(crate) fn set_fd(&self, index: u32, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.update(&index.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes())
    }

    /// Sets the descriptors of maps at the indices from 0. Uses one call if the kernel can, because each call waits
    /// for all running programs (`maybe_wait_bpf_programs()`).
    pub(crate) fn set_fds(&self, maps: &[impl AsFd]) -> Result<(), Errno> {
        // Keys and values are four-byte numbers here.
        if self.kind.is_per_cpu() || (self.key_size, self.value_size) != (4, 4) {
            return Err(Errno::INVAL);
        }
        let keys: Vec<u32> = (0..maps.len() as u32).collect();
        let values: Vec<i32> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
        let mut arguments = arguments();
        arguments.batch.keys = keys.as_ptr() as u64;
        arguments.batch.values = values.as_ptr() as u64;
        arguments.batch.count = maps.len() as u32;
        arguments.batch.map_fd = self.fd.as_raw_fd().cast_unsigned();
        // SAFETY: there are `count` keys and values of the map's sizes, checked above.
        match unsafe { call(bpf_cmd::BPF_MAP_UPDATE_BATCH, &mut arguments) } {
            Ok(_) => Ok(()),
            // Maps of maps support batches since 5.19 (9263dddc7b6f).
            Err(_) => (0..).zip(maps).try_for_each(|(index, map)| self.set_fd(index, map.as_fd())),
        }
    }

    /// The value of a key; None if the map lacks the key.
    ///
    /// # Errors
    /// `EINVAL` for a key of another size than the map's and for a per-CPU map; any kernel error except `ENOENT`.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        if self.kind.is_per_cpu() { Err(Errno::INVAL) } else { self.copy_out(key) }
    }

    /// The values of all possible CPUs for a key; None if the map lacks the key.
    ///
    /// # Errors
    /// `EINVAL` for a key of another size than the map's and for a map that is not per-CPU; any kernel error except
    /// `ENOENT`.
    pub fn lookup_per_cpu(&self, key: &[u8]) -> Result<Option<Vec<Vec<u8>>>, Errno> {
        if !self.kind.is_per_cpu() || self.value_size == 0 {
            return Err(Errno::INVAL);
        }
        let each = self.value_size.next_multiple_of(8);
        let values = self.copy_out(key)?;
        let own = |value: &[u8]| value.get(..self.value_size).unwrap_or(value).to_vec();
        Ok(values.map(|values| values.chunks(each).map(own).collect()))
    }

    /// Everything that the kernel copies for a key.
    fn copy_out(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        self.check_key(key)?;
        let mut value = vec![0; self.transfer];
        let (from, to) = (key.as_ptr() as u64, value.as_mut_ptr() as u64);
        // SAFETY: the key has the map's size, and the buffer takes all that the kernel copies.
        match unsafe { self.element(bpf_cmd::BPF_MAP_LOOKUP_ELEM, from, to) } {
            Ok(()) => Ok(Some(value)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a key; false if the map lacked it.
    ///
    /// # Errors
    /// `EINVAL` for map types whose keys cannot be removed and for a key of another size than the map's.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Errno> {
        self.check_key(key)?;
        // SAFETY: the key has the map's size, and the command has no value.
        match unsafe { self.element(bpf_cmd::BPF_MAP_DELETE_ELEM, key.as_ptr() as u64, 0) } {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// All keys. Concurrent insertions and removals may or may not be included.
    ///
    /// # Errors
    /// Any kernel error except `ENOENT`, which ends the list.
    pub fn keys(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        loop {
            let mut next = vec![0; self.key_size];
            let last = keys.last().map_or(0, |last| last.as_ptr() as u64);
            // SAFETY: both keys have the map's size.
            let found =
                unsafe { self.element(bpf_cmd::BPF_MAP_GET_NEXT_KEY, last, next.as_mut_ptr() as u64) };
            match found {
                // If the previous key was removed meanwhile, the kernel restarts at the first key: the length limits
                // the walk.
                Ok(()) if keys.len() >= self.max_entries as usize => return Ok(keys),
                Ok(()) => keys.push(next),
                Err(Errno::NOENT) => return Ok(keys),
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends user space's write access, so that the verifier treats the values as constants.
    pub(crate) fn freeze(&self) -> Result<(), Errno> {
        // SAFETY: the command reads only the descriptor.
        unsafe { self.element(bpf_cmd::BPF_MAP_FREEZE, 0, 0) }.map(drop)
    }

    /// The map's type.
    pub(super) fn kind(&self) -> MapKind {
        self.kind
    }

    /// Number of entries the map was created for; bytes for a ring buffer.
    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// Bytes of a value.
    pub(super) fn value_size(&self) -> usize {
        self.value_size
    }

    /// Maps an array created with [`flag::MMAPABLE`] into this process.
    ///
    /// # Errors
    /// `ENOMEM`; `EPERM` for a frozen map; `EINVAL` for another map.
    pub fn mapped(&self) -> Result<MappedArray, Errno> {
        if self.kind != MapKind::Array {
            return Err(Errno::INVAL);
        }
        // The kernel rounds the size of every value up to a multiple of eight bytes.
        let stride = self.value_size.next_multiple_of(8);
        let length = stride.checked_mul(self.max_entries as usize).ok_or(Errno::INVAL)?;
        let memory = MmapOptions::new().len(length).map_raw(&self.fd).map_err(|error| errno_of(&error))?;
        Ok(MappedArray { memory })
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The values of an array map in this process's memory. Programs may write them at any time.
#[derive(Debug)]
pub struct MappedArray {
    memory: MmapRaw,
}

impl MappedArray {
    /// The word at a byte offset; None unless it is aligned and entirely inside the mapping.
    fn word<T>(&self, offset: usize) -> Option<*mut T> {
        let end = offset.checked_add(size_of::<T>())?;
        if !offset.is_multiple_of(align_of::<T>()) || end > self.memory.len() {
            return None;
        }
        // SAFETY: inside the mapping, checked above.
        Some(unsafe { self.memory.as_mut_ptr().add(offset) }.cast())
    }

    fn short(&self, offset: usize) -> Option<&AtomicU32> {
        let word = self.word(offset)?;
        // SAFETY: aligned (a mapping begins at a page) and inside the mapping, which lives as long as `self`;
        // programs and other threads only access it atomically.
        Some(unsafe { AtomicU32::from_ptr(word) })
    }

    fn long(&self, offset: usize) -> Option<&AtomicU64> {
        let word = self.word(offset)?;
        // SAFETY: as in `short`.
        Some(unsafe { AtomicU64::from_ptr(word) })
    }

    /// Reads the eight-byte word at a byte offset; None if the offset is invalid.
    pub fn load(&self, offset: usize) -> Option<u64> {
        Some(self.long(offset)?.load(Ordering::Acquire))
    }

    /// Reads the four-byte word at a byte offset; None if the offset is invalid.
    pub fn load_word(&self, offset: usize) -> Option<u32> {
        Some(self.short(offset)?.load(Ordering::Acquire))
    }

    /// Writes the four-byte word at a byte offset; None if the offset is invalid.
    pub fn store(&self, offset: usize, value: u32) -> Option<()> {
        self.short(offset)?.store(value, Ordering::Release);
        Some(())
    }

    /// Writes the eight-byte word at a byte offset; None if the offset is invalid.
    pub fn store_long(&self, offset: usize, value: u64) -> Option<()> {
        self.long(offset)?.store(value, Ordering::Release);
        Some(())
    }

    /// Writes the four-byte word at a byte offset and returns the previous value; None if the offset is invalid.
    pub fn swap(&self, offset: usize, value: u32) -> Option<u32> {
        Some(self.short(offset)?.swap(value, Ordering::AcqRel))
    }

    /// Sets or clears bits of the four-byte word at a byte offset atomically; None if the offset is invalid.
    pub fn change(&self, offset: usize, bits: u32, set: bool) -> Option<()> {
        let word = self.short(offset)?;
        if set {
            word.fetch_or(bits, Ordering::AcqRel);
        } else {
            word.fetch_and(!bits, Ordering::AcqRel);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: MapSpec<'_> = MapSpec {
        kind: MapKind::Array,
        key_size: 4,
        value_size: 8,
        max_entries: 2,
        flags: 0,
        inner: None,
        name: "test",
    };

    /// Creates a map. Logs and returns None if this process may not create maps.
    fn map(spec: &MapSpec<'_>) -> Option<Map> {
        match Map::create(spec) {
            Err(Errno::PERM | Errno::ACCESS) => {
                eprintln!("skipped: cap_bpf: bpf(2) wants CAP_BPF");
                None
            }
            made => Some(made.unwrap()),
        }
    }

    #[test]
    fn sizes_that_are_not_the_maps_are_refused() {
        let Some(array) = map(&ARRAY) else { return };
        assert_eq!(array.update(&[0; 4], &[7; 8]), Ok(()));
        assert_eq!(array.lookup(&[0; 4]), Ok(Some(vec![7; 8])));
        assert_eq!(array.lookup(&[2, 0, 0, 0]), Ok(None));
        for key in [&[][..], &[0; 3], &[0; 5]] {
            assert_eq!(array.update(key, &[0; 8]), Err(Errno::INVAL));
            assert_eq!(array.lookup(key), Err(Errno::INVAL));
            assert_eq!(array.delete(key), Err(Errno::INVAL));
        }
        for value in [&[][..], &[0; 7], &[0; 9]] {
            assert_eq!(array.update(&[0; 4], value), Err(Errno::INVAL));
        }
        assert_eq!(array.lookup_per_cpu(&[0; 4]), Err(Errno::INVAL));
        assert_eq!(array.set_fds(&[] as &[Map; 0]), Err(Errno::INVAL), "its values are no descriptors");
    }

    #[test]
    fn a_value_for_each_cpu_is_looked_up_as_a_whole() {
        for kind in [MapKind::PerCpuArray, MapKind::PerCpuHash] {
            let Some(map) = map(&MapSpec { kind, value_size: 12, ..ARRAY }) else { return };
            assert_eq!(map.lookup(&[0; 4]), Err(Errno::INVAL), "{kind:?}: one value has no place for all");
            assert_eq!(map.update(&[0; 4], &[0; 12]), Err(Errno::INVAL), "{kind:?}");
            assert_eq!(map.lookup_per_cpu(&[0; 3]), Err(Errno::INVAL), "{kind:?}");
            let values = map.lookup_per_cpu(&[0; 4]).unwrap();
            assert_eq!(values.is_some(), kind == MapKind::PerCpuArray);
            let sizes: Vec<usize> = values.iter().flatten().map(Vec::len).collect();
            let cpus = Cpus::possible().unwrap().count();
            assert!(sizes.is_empty() || sizes == vec![12; cpus], "{sizes:?}");
            assert!(map.mapped().is_err());
        }
    }

    #[test]
    fn words_outside_an_array_do_not_exist() {
        let Some(map) = map(&MapSpec { flags: flag::MMAPABLE, ..ARRAY }) else { return };
        let array = map.mapped().unwrap();
        assert_eq!((array.store_long(8, 5), array.load(8), array.load_word(8)), (Some(()), Some(5), Some(5)));
        assert_eq!(array.swap(12, 1), Some(0));
        for offset in [1, 4, 16, usize::MAX - 7, usize::MAX] {
            assert_eq!((array.load(offset), array.store_long(offset, 1)), (None, None), "{offset}");
        }
        for offset in [2, 16, usize::MAX - 3] {
            assert_eq!((array.load_word(offset), array.store(offset, 1)), (None, None), "{offset}");
            assert_eq!((array.swap(offset, 1), array.change(offset, 1, true)), (None, None), "{offset}");
        }
    }
}
