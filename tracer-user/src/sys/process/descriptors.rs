//! Inherited descriptors.

use crate::sys::{Errno, check};

/// The first descriptor after standard input, output and error.
const FIRST: libc::c_uint = 3;

/// Marks all descriptors except the standard ones close-on-exec. Kernels before 5.11 cannot do this and leave them
/// unchanged.
pub(crate) fn close_on_exec() -> Result<(), Errno> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: it closes nothing; it sets a flag of each descriptor, on which no owner relies.
    let done = check(unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flags) });
    match done {
        Ok(_) | Err(Errno::NOSYS | Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}
