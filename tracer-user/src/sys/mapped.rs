//! A file's bytes in this process's memory, read only.

use std::{ffi::c_void, fs::File, ptr::NonNull};

use super::Errno;

/// A private mapping of a whole file.
#[derive(Debug)]
pub struct MappedFile {
    start: NonNull<c_void>,
    length: usize,
}

impl MappedFile {
    /// Maps a file whose bytes nobody changes while it is mapped: one of the kernel's constant ones, or a memfd
    /// of our own.
    ///
    /// # Errors
    /// `ENODEV` for a file that cannot be mapped, `EINVAL` for an empty one.
    pub fn map(file: &File) -> Result<Self, Errno> {
        let length = usize::try_from(rustix::fs::fstat(file)?.st_size).map_err(|_| Errno::OVERFLOW)?;
        // SAFETY: a fresh mapping at an address the kernel chooses.
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
        Ok(Self { start: NonNull::new(start).ok_or(Errno::NOMEM)?, length })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `length` bytes long, lives as long as `self`, and its file does not change.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.length) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: our own mapping, not used after this.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.length) };
    }
}
