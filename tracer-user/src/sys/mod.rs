//! The only module of this crate with `unsafe`: typed calls for BPF, perf events, mapped memory, memory of other
//! processes, mounts and privileges.
//!
//! A call takes and returns owned descriptors and plain values. It fails with an [`Errno`], and with the verifier's
//! log where there is one. This layer contains no policy.

pub mod bpf;
pub mod call;
pub mod counter;
pub mod cpus;
pub mod memory;
pub mod mount;
pub mod perf;
pub mod process;

/// The error number of a failed system call.
pub type Errno = rustix::io::Errno;

/// The number of an error that a library reports; `EIO` for one without a number.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Turns a raw system call's result, an `int` or a `long`, into a value or the error number.
fn check<T: Default + PartialOrd>(result: T) -> Result<T, Errno> {
    if result < T::default() { Err(errno_of(&std::io::Error::last_os_error())) } else { Ok(result) }
}
