//! The memory of other processes: `process_vm_readv` and `process_vm_writev`.

use super::{Errno, check};

fn vector(base: *mut u8, length: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: length }
}

/// Reads memory of a thread's process; how much of it could be read from the start on.
///
/// # Errors
/// `EFAULT` when not a byte can be read, `EPERM` when we may not.
pub fn read(thread: u32, address: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let own = vector(into.as_mut_ptr(), into.len());
    let other = vector(std::ptr::with_exposed_provenance_mut(address as usize), into.len());
    // SAFETY: one vector each; ours is a buffer that lives through the call, the other one is the kernel's to check.
    check(unsafe { libc::process_vm_readv(thread.cast_signed(), &raw const own, 1, &raw const other, 1, 0) }
        as libc::c_long)
    .map(|done| done as usize)
}

/// Writes memory of a thread's process; how much of it could be written from the start on.
///
/// # Errors
/// As [`read`].
pub fn write(thread: u32, address: u64, bytes: &[u8]) -> Result<usize, Errno> {
    let own = vector(bytes.as_ptr().cast_mut(), bytes.len());
    let other = vector(std::ptr::with_exposed_provenance_mut(address as usize), bytes.len());
    // SAFETY: as for reading; the kernel only reads our vector.
    check(unsafe { libc::process_vm_writev(thread.cast_signed(), &raw const own, 1, &raw const other, 1, 0) }
        as libc::c_long)
    .map(|done| done as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_and_written_where_there_is_any() {
        let mut place = Box::new([1_u8, 2, 3]);
        let (own, at) = (std::process::id(), place.as_mut_ptr().expose_provenance() as u64);
        let mut got = [0; 2];
        assert_eq!(read(own, at + 1, &mut got), Ok(2));
        assert_eq!(got, [2, 3]);
        assert_eq!(write(own, at, &[9]), Ok(1));
        assert_eq!(read(own, at, &mut got), Ok(2));
        assert_eq!(got, [9, 2]);
        assert_eq!(read(own, 8, &mut got), Err(Errno::FAULT));
        assert_eq!(write(own, 8, &[1]), Err(Errno::FAULT));
        assert_eq!(std::hint::black_box(*place), [9, 2, 3]);
    }
}
