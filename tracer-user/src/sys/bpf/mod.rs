//! bpf(2) itself: the command numbers used here, the call, and the descriptors that it returns.
//!
//! Each command's argument block is a `repr(C)` struct, for example in [`map`] and [`prog`]. It spells
//! out the part of `union bpf_attr` (include/uapi/linux/bpf.h) that the command needs. The kernel treats the missing
//! rest of a shorter block as zero.

use std::os::fd::{FromRawFd, OwnedFd};

use crate::sys::{Errno, check};

pub mod btf;
pub mod feature;
mod func_info;
pub mod map;
pub mod pin;
pub mod prog;
pub mod ring;

/// Commands of bpf(2), `enum bpf_cmd`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgLoad = 5,
    ObjPin = 6,
    ObjGet = 7,
    ProgTestRun = 10,
    ObjGetInfo = 15,
    RawTracepointOpen = 17,
    BtfLoad = 18,
    BtfGetFdById = 19,
    MapFreeze = 22,
    BtfGetNextId = 23,
    MapUpdateBatch = 26,
    LinkCreate = 28,
}

/// An argument block: `repr(C)`, without padding, valid for any bit pattern.
///
/// # Safety
/// The implementor guarantees that layout, and that every pointer in the block is valid for the command's use.
pub(super) unsafe trait Block: Sized {}

/// Calls bpf(2).
pub(super) fn call<B: Block>(command: Command, block: &mut B) -> Result<libc::c_long, Errno> {
    // SAFETY: `Block` guarantees layout and pointers; the kernel reads and writes within the given size.
    check(unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_long, std::ptr::from_mut(block), size_of::<B>())
    })
}

/// Calls bpf(2) for a command that returns a descriptor.
pub(super) fn call_fd<B: Block>(command: Command, block: &mut B) -> Result<OwnedFd, Errno> {
    let fd = call(command, block)?;
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A name for the kernel's listings: at most 15 bytes. Characters other than letters, digits, `_` and `.` are
/// replaced by `_`.
pub(super) fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    for (to, from) in name.iter_mut().zip(text.bytes().take(15)) {
        *to = if from.is_ascii_alphanumeric() || from == b'_' || from == b'.' { from } else { b'_' };
    }
    name
}
