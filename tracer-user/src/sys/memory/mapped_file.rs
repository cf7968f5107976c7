//! A file's bytes in this process's memory, read-only.
//!
//! A mapping is only as constant as its file. A file that another process could write or truncate is copied instead.

use std::{ffi::c_void, fs::File, io::Read, ptr::NonNull};

use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};

use crate::sys::Errno;

/// `SYSFS_MAGIC`, include/uapi/linux/magic.h.
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// The whole content of a file.
#[derive(Debug)]
pub enum MappedFile {
    /// A sysfs file or a sealed memfd: mapped.
    Constant(Mapping),
    /// Any other file: copied.
    Copy(Vec<u8>),
}

/// A private mapping of a file that cannot change.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: the memory is only read, by any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Whether neither the bytes nor the size of a file can change any more.
fn is_constant(file: &File) -> bool {
    let sealed = SealFlags::WRITE | SealFlags::SHRINK;
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(sealed))
        || fstatfs(file).is_ok_and(|found| found.f_type as u64 == SYSFS_MAGIC)
}

impl MappedFile {
    /// Reads or maps a whole file.
    ///
    /// # Errors
    /// `ENODEV` for a sysfs file that cannot be mapped, `EINVAL` for an empty one; otherwise the error of reading the
    /// file.
    pub fn map(file: &File) -> Result<Self, Errno> {
        if !is_constant(file) {
            let mut bytes = Vec::new();
            let mut own = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            own.read_to_end(&mut bytes).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            return Ok(Self::Copy(bytes));
        }
        let length = usize::try_from(rustix::fs::fstat(file)?.st_size).map_err(|_| Errno::OVERFLOW)?;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::PRIVATE,
                file,
                0,
            )?
        };
        Ok(Self::Constant(Mapping { start: NonNull::new(start).ok_or(Errno::NOMEM)?, length }))
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: the mapping is `length` bytes long, lives as long as `self`, and its file cannot change (`is_constant`).
            Self::Constant(mapping) => unsafe {
                std::slice::from_raw_parts(mapping.start.as_ptr().cast(), mapping.length)
            },
            Self::Copy(bytes) => bytes,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, not used after this.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn what_can_still_change_is_copied() {
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
