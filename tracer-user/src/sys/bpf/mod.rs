//! bpf(2) itself: the call, its arguments, and the descriptors that it returns.
//!
//! Commands, flags and argument layouts are those of `aya_obj::generated`, which aya generates from
//! include/uapi/linux/bpf.h. The kernel accepts a block longer than its own structure if the rest is zero, so each
//! call passes the whole `union bpf_attr`.

use std::{
    ffi::c_char,
    os::fd::{FromRawFd, OwnedFd},
};

use aya_obj::generated::{bpf_attr, bpf_cmd};

use crate::sys::{Errno, check};

pub mod btf;
pub mod cpu_ring;
mod func_info;
mod info;
pub mod link;
pub mod map;
pub mod pin;
pub mod prog;
pub mod quiesce;
pub mod ring;

/// Arguments that are all zero, for the caller to fill in field by field.
fn arguments() -> bpf_attr {
    // SAFETY: all variants of the union are plain integers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}

/// Calls bpf(2).
///
/// # Safety
/// The arguments were made by [`arguments`]. Every address in them is valid for what the command reads or writes there.
unsafe fn call(command: bpf_cmd, arguments: &mut bpf_attr) -> Result<libc::c_long, Errno> {
    // SAFETY: the kernel accesses the block within the given size, and the caller vouches for the addresses.
    check(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(arguments),
            size_of::<bpf_attr>(),
        )
    })
}

/// Calls bpf(2) for a command that returns a descriptor.
///
/// # Safety
/// As [`call`]; the command is one that returns a descriptor.
unsafe fn call_fd(command: bpf_cmd, arguments: &mut bpf_attr) -> Result<OwnedFd, Errno> {
    // SAFETY: as the caller vouches.
    let fd = unsafe { call(command, arguments) }?;
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A name for the kernel's listings: at most 15 bytes. Characters other than letters, digits, `_` and `.` are
/// replaced by `_`.
fn name(text: &str) -> [c_char; 16] {
    let mut name = [0; 16];
    for (to, from) in name.iter_mut().zip(text.bytes().take(15)) {
        let allowed = from.is_ascii_alphanumeric() || from == b'_' || from == b'.';
        *to = c_char::from_ne_bytes([if allowed { from } else { b'_' }]);
    }
    name
}
