//! Descriptors that were inherited.

use super::{Errno, check};

/// The first descriptor behind standard input, output and error.
const FIRST: libc::c_uint = 3;

/// Has all descriptors behind the standard ones closed in programs that this process starts. Kernels before 5.11, which cannot, leave
/// them as they are.
///
/// # Errors
/// What the kernel says.
pub fn close_on_exec() -> Result<(), Errno> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: it closes nothing; a flag of each descriptor is set, of which no owner makes assumptions.
    let done = check(unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flags) });
    match done {
        Ok(_) | Err(Errno::NOSYS | Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}
