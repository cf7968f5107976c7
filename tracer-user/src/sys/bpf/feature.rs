//! Calls that only test the kernel's features: trial loads of any program type, and links that cannot succeed.
//!
//! Nothing persists: the caller drops the returned descriptors. The error number is the answer, so this module does
//! not interpret it.

use std::os::fd::{BorrowedFd, OwnedFd};

use aya_obj::generated::{bpf_attach_type, bpf_cmd};

use super::{
    call_fd,
    link::{self, link_arguments},
    prog::LoadRequest,
};
use crate::sys::Errno;

/// A program loaded for trial.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// `enum bpf_prog_type`.
    pub kind: u32,
    /// `enum bpf_attach_type`.
    pub attach_type: u32,
    /// BTF id of the function, for tracing programs.
    pub attach_btf_id: u32,
    /// `BPF_F_*` of the load.
    pub flags: u32,
    /// Eight-byte instructions.
    pub insns: &'a [u8],
}

/// `BPF_TRACE_KPROBE_MULTI`.
pub const ATTACH_KPROBE_MULTI: u32 = bpf_attach_type::BPF_TRACE_KPROBE_MULTI as u32;
/// `BPF_TRACE_UPROBE_MULTI`.
pub const ATTACH_UPROBE_MULTI: u32 = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;

/// Loads a trial program.
///
/// # Errors
/// The kernel's error.
pub fn load(trial: &Trial<'_>) -> Result<OwnedFd, Errno> {
    let request = LoadRequest {
        kind: trial.kind,
        attach_type: trial.attach_type,
        attach_btf_id: trial.attach_btf_id,
        attach_btf: None,
        flags: trial.flags,
        insns: trial.insns,
        title: "trial",
        functions: &[],
        types: None,
    };
    request.load(&mut [])
}

/// Attaches a tracing program (fentry, fexit) to the function that it was loaded for.
///
/// # Errors
/// The kernel's error.
pub fn attach_tracing(prog: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    link::attach_tracing(prog)
}

/// Requests a kprobe.multi link without functions.
///
/// # Errors
/// Always fails: `EINVAL` if the kernel supports such links, `EOPNOTSUPP` if it does not.
pub fn link_kprobe_multi_to_nothing(prog: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut arguments = link_arguments(prog, bpf_attach_type::BPF_TRACE_KPROBE_MULTI);
    // SAFETY: the command returns a descriptor, and there are no addresses.
    unsafe { call_fd(bpf_cmd::BPF_LINK_CREATE, &mut arguments) }
}

/// Requests a uprobe.multi link to a directory.
///
/// # Errors
/// Always fails: `EBADF` if the kernel supports such links, `EINVAL` or `EOPNOTSUPP` if it does not.
pub fn link_uprobe_multi_to_root(prog: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = c"/";
    let offset = 0_u64;
    let mut arguments = link_arguments(prog, bpf_attach_type::BPF_TRACE_UPROBE_MULTI);
    arguments.link_create.__bindgen_anon_3.uprobe_multi.path = path.as_ptr() as u64;
    arguments.link_create.__bindgen_anon_3.uprobe_multi.offsets = &raw const offset as u64;
    arguments.link_create.__bindgen_anon_3.uprobe_multi.cnt = 1;
    // SAFETY: the command returns a descriptor; path and offset outlive the call.
    unsafe { call_fd(bpf_cmd::BPF_LINK_CREATE, &mut arguments) }
}
