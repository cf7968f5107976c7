//! System calls made only to be traced, with arguments that no library would pass.

use super::Errno;

/// Calls getppid(2) with these values in the six argument registers, which it ignores.
pub(crate) fn getppid_with(args: [u64; 6]) -> Result<u32, Errno> {
    // SAFETY: getppid takes no arguments and touches no memory.
    let parent = super::check(unsafe {
        libc::syscall(libc::SYS_getppid, args[0], args[1], args[2], args[3], args[4], args[5])
    })?;
    Ok(parent as u32)
}
