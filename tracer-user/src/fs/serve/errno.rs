//! Error numbers in answers to FUSE requests.

use fuser::Errno;

/// The first error number that the kernel uses only internally. Some system calls of the daemon return such numbers.
const INTERNAL: i32 = 512;
/// `ENOTSUPP` (include/linux/errno.h): a driver or architecture does not support the operation.
const ENOTSUPP: i32 = 524;

/// Converts an error to one that FUSE accepts. The kernel refuses an answer with an internal number, and the caller
/// would then wait for ever.
pub(crate) fn errno(errno: rustix::io::Errno) -> Errno {
    match errno.raw_os_error() {
        ENOTSUPP => Errno::EOPNOTSUPP,
        number @ 1..INTERNAL => Errno::from_i32(number),
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_limited_to_those_that_the_kernel_accepts() {
        let answered = |number| errno(rustix::io::Errno::from_raw_os_error(number)).code();
        assert_eq!(answered(524), libc::EOPNOTSUPP);
        assert_eq!((answered(512), answered(530), answered(4095)), (libc::EIO, libc::EIO, libc::EIO));
        for number in 1..INTERNAL {
            assert_eq!(answered(number), number);
        }
    }
}
