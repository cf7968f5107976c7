//! The kernel's BTF objects by name, for programs attached to functions of modules.

use std::os::fd::{AsFd, OwnedFd};

use aya_obj::generated::{bpf_btf_info, bpf_cmd};

use super::{arguments, call, call_fd, info};
use crate::sys::Errno;

/// Maximum length of a module's name with its NUL: `MODULE_NAME_LEN` (`64 - sizeof(unsigned long)`).
const NAME_MAX: usize = 56;

/// The BTF of a module, by the module's name (5.11 and later). None if the kernel has no BTF of that name.
///
/// # Errors
/// The kernel's error: `EPERM` without `CAP_SYS_ADMIN`.
pub fn module(name: &str) -> Result<Option<OwnedFd>, Errno> {
    let mut last = 0;
    loop {
        last = match next_id(last) {
            Ok(next) => next,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let fd = match by_id(last) {
            Ok(fd) => fd,
            // The module was unloaded meanwhile.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        };
        let mut own = [0_u8; NAME_MAX];
        let wanted = bpf_btf_info {
            btf: 0,
            btf_size: 0,
            id: 0,
            name: own.as_mut_ptr() as u64,
            name_len: NAME_MAX as u32,
            kernel_btf: 0,
        };
        // SAFETY: the name's buffer has the stated length, and no other is requested.
        let found = unsafe { info::fill(fd.as_fd(), wanted) }?;
        if found.kernel_btf != 0 && own.split(|byte| *byte == 0).next() == Some(name.as_bytes()) {
            return Ok(Some(fd));
        }
    }
}

/// The id of the next BTF object after this one.
fn next_id(last: u32) -> Result<u32, Errno> {
    let mut arguments = arguments();
    arguments.__bindgen_anon_6.__bindgen_anon_1.start_id = last;
    // SAFETY: there are no addresses.
    unsafe { call(bpf_cmd::BPF_BTF_GET_NEXT_ID, &mut arguments) }?;
    // SAFETY: an integer, which the kernel has set.
    Ok(unsafe { arguments.__bindgen_anon_6.next_id })
}

/// The BTF object of an id.
fn by_id(id: u32) -> Result<OwnedFd, Errno> {
    let mut arguments = arguments();
    arguments.__bindgen_anon_6.__bindgen_anon_1.btf_id = id;
    // SAFETY: the command returns a descriptor, and there are no addresses.
    unsafe { call_fd(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &mut arguments) }
}
