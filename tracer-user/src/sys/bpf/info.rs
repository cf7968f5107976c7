//! Information about a map, program, link or BTF object: `BPF_OBJ_GET_INFO_BY_FD`.

use std::os::fd::{AsRawFd, BorrowedFd};

use aya_obj::generated::{bpf_btf_info, bpf_cmd, bpf_link_info, bpf_map_info, bpf_prog_info};

use super::{arguments, call};
use crate::sys::Errno;

/// A structure that the kernel fills in.
///
/// # Safety
/// The implementer is one of the kernel's `bpf_*_info`: valid for any bit pattern, without references.
pub(super) unsafe trait Info: Sized {}

// SAFETY: plain integers, from aya's bindings.
unsafe impl Info for bpf_map_info {}
// SAFETY: as above.
unsafe impl Info for bpf_prog_info {}
// SAFETY: as above.
unsafe impl Info for bpf_link_info {}
// SAFETY: as above.
unsafe impl Info for bpf_btf_info {}

/// The information about an object. Fields that this kernel lacks are zero.
///
/// # Errors
/// The kernel's error: `EINVAL` for an object of another kind.
pub(super) fn of<T: Info>(object: BorrowedFd<'_>) -> Result<T, Errno> {
    // SAFETY: zero is a valid value, and without addresses the kernel writes nothing but the structure.
    unsafe { fill(object, std::mem::zeroed()) }
}

/// As [`of`], for a structure in which the caller has put the addresses of buffers.
///
/// # Safety
/// Each address in the structure is that of a buffer of the length that the structure states.
pub(super) unsafe fn fill<T: Info>(object: BorrowedFd<'_>, mut info: T) -> Result<T, Errno> {
    let mut arguments = arguments();
    arguments.info.bpf_fd = object.as_raw_fd().cast_unsigned();
    arguments.info.info_len = size_of::<T>() as u32;
    arguments.info.info = std::ptr::from_mut(&mut info) as u64;
    // SAFETY: the structure has the stated size, and the caller vouches for the buffers.
    unsafe { call(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut arguments) }?;
    Ok(info)
}
