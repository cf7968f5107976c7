//! A file's bytes in this process's memory, read-only.
//!
//! A mapping is only as constant as its file. A file that another process could write or truncate is copied instead.

use std::{fs::File, os::fd::AsRawFd};

use memmap2::{Mmap, MmapOptions};
use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};

use crate::sys::{Errno, errno_of};

/// `SYSFS_MAGIC`, include/uapi/linux/magic.h.
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// The whole content of a file.
#[derive(Debug)]
pub enum MappedFile {
    /// A sysfs file or a sealed memfd: mapped.
    Constant(Mmap),
    /// Any other file: copied.
    Copy(Vec<u8>),
}

/// Whether neither the bytes nor the size of a file can change any more.
fn is_constant(file: &File) -> bool {
    let sealed = SealFlags::WRITE | SealFlags::SHRINK;
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(sealed))
        || fstatfs(file).is_ok_and(|found| found.f_type as u64 == SYSFS_MAGIC)
}

/// The content of a file, from its beginning.
fn copy(file: &File) -> Result<MappedFile, Errno> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read(own).map(MappedFile::Copy).map_err(|error| errno_of(&error))
}

impl MappedFile {
    /// Reads or maps a whole file.
    ///
    /// # Errors
    /// `ENODEV` for a sysfs file that cannot be mapped, `EINVAL` for an empty file that would be mapped; otherwise
    /// the error of reading the file.
    pub fn map(file: &File) -> Result<Self, Errno> {
        if !is_constant(file) {
            return copy(file);
        }
        let length = usize::try_from(rustix::fs::fstat(file)?.st_size).map_err(|_| Errno::OVERFLOW)?;
        if length == 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the file cannot change (`is_constant`).
        let mapping = unsafe { MmapOptions::new().len(length).map_copy_read_only(file) };
        mapping.map(Self::Constant).map_err(|error| errno_of(&error))
    }

    /// Maps a whole file, or copies it if the kernel maps no such file. Sysfs maps no module's types, and the
    /// kernel's own types only since 6.16.
    ///
    /// # Errors
    /// As for [`Self::map`], without `ENODEV`.
    pub fn map_or_copy(file: &File) -> Result<Self, Errno> {
        match Self::map(file) {
            Err(Errno::NODEV) => copy(file),
            other => other,
        }
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Constant(mapping) => mapping,
            Self::Copy(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn what_sysfs_does_not_map_is_copied() {
        // Attributes, which have the size of a page.
        let file = File::open("/sys/kernel/mm/transparent_hugepage/enabled").ok();
        let Some(file) = file.or_else(|| File::open("/sys/kernel/uevent_seqnum").ok()) else { return };
        assert_eq!(MappedFile::map(&file).unwrap_err(), Errno::NODEV);
        assert!(!MappedFile::map_or_copy(&file).unwrap().bytes().is_empty());
    }

    #[test]
    fn changeable_files_are_copied() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("test", flags).unwrap());
        file.write_all(b"hello").unwrap();
        let copy = MappedFile::map(&file).unwrap();
        // A mapping would cause SIGBUS here.
        ftruncate(&file, 0).unwrap();
        assert!(matches!(copy, MappedFile::Copy(_)) && copy.bytes() == b"hello");
        let mut file = File::from(memfd_create("test", flags).unwrap());
        file.write_all(b"hello").unwrap();
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
        let mapped = MappedFile::map(&file).unwrap();
        assert!(matches!(mapped, MappedFile::Constant(_)) && mapped.bytes() == b"hello");
    }
}
