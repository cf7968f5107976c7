//! The kernel's BTF objects by name, for programs attached to functions of modules.

use std::os::fd::{AsRawFd, OwnedFd};

use super::{Block, Command, call, call_fd};
use crate::sys::Errno;

#[repr(C)]
#[derive(Default)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}
// SAFETY: plain integers without padding.
unsafe impl Block for ById {}

#[repr(C)]
struct GetInfo {
    fd: u32,
    length: u32,
    info: u64,
}
// SAFETY: no padding; `info` points to an [`Info`] of `length` bytes.
unsafe impl Block for GetInfo {}

/// `struct bpf_btf_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    btf: u64,
    btf_size: u32,
    id: u32,
    name: u64,
    name_len: u32,
    kernel_btf: u32,
}

/// Maximum length of a module's name with its NUL: `MODULE_NAME_LEN` (`64 - sizeof(unsigned long)`).
const NAME_MAX: usize = 56;

/// The BTF of a module, by the module's name (5.11 and later). None if the kernel has no BTF of that name.
///
/// # Errors
/// The kernel's error: `EPERM` without `CAP_SYS_ADMIN`.
pub fn module(name: &str) -> Result<Option<OwnedFd>, Errno> {
    let mut last = 0;
    loop {
        let mut block = ById { id: last, ..ById::default() };
        match call(Command::BtfGetNextId, &mut block) {
            Ok(_) => last = block.next,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let fd = match call_fd(Command::BtfGetFdById, &mut ById { id: last, ..ById::default() }) {
            Ok(fd) => fd,
            // The module was unloaded meanwhile.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        let mut own = [0_u8; NAME_MAX];
        let mut info = Info { name: own.as_mut_ptr() as u64, name_len: NAME_MAX as u32, ..Info::default() };
        let mut block = GetInfo {
            fd: fd.as_raw_fd() as u32,
            length: size_of::<Info>() as u32,
            info: std::ptr::from_mut(&mut info) as u64,
        };
        call(Command::ObjGetInfo, &mut block)?;
        if info.kernel_btf != 0 && own.split(|byte| *byte == 0).next() == Some(name.as_bytes()) {
            return Ok(Some(fd));
        }
    }
}
