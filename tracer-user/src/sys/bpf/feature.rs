//! Calls that only probe what the kernel supports: trial loads of any program type, and links that cannot succeed.
//!
//! Nothing persists: the caller drops what it gets. The error number is the answer, so this module does not interpret
//! it.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::{Block, Command, call_fd, name};
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

/// `union bpf_attr` of `BPF_PROG_LOAD` up to `attach_btf_id`, include/uapi/linux/bpf.h.
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
    btf_fd: u32,
    func_info_size: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_size: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
}
// SAFETY: no padding; the instructions and the licence outlive the call.
unsafe impl Block for Load {}

#[repr(C)]
struct Open {
    name: u64,
    prog: u32,
    pad: u32,
}
// SAFETY: no padding; the name is null.
unsafe impl Block for Open {}

/// The part of `BPF_LINK_CREATE` that kprobe.multi and uprobe.multi share, long enough for both.
#[repr(C)]
#[derive(Default)]
struct Multi {
    prog: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    words: [u64; 6],
}
// SAFETY: no padding; the pointers among the words outlive the call.
unsafe impl Block for Multi {}

/// `BPF_TRACE_KPROBE_MULTI`.
pub const ATTACH_KPROBE_MULTI: u32 = 42;
/// `BPF_TRACE_UPROBE_MULTI`.
pub const ATTACH_UPROBE_MULTI: u32 = 48;

/// Loads a trial program.
///
/// # Errors
/// The kernel's error.
pub fn load(trial: &Trial<'_>) -> Result<OwnedFd, Errno> {
    let license = c"Dual MIT/GPL";
    call_fd(
        Command::ProgLoad,
        &mut Load {
            kind: trial.kind,
            count: (trial.insns.len() / 8) as u32,
            insns: trial.insns.as_ptr() as u64,
            license: license.as_ptr() as u64,
            flags: trial.flags,
            name: name("trial"),
            attach_type: trial.attach_type,
            attach_btf_id: trial.attach_btf_id,
            ..Load::default()
        },
    )
}

/// Attaches a tracing program (fentry, fexit) to the function it was loaded for.
///
/// # Errors
/// The kernel's error.
pub fn attach_tracing(prog: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    call_fd(Command::RawTracepointOpen, &mut Open { name: 0, prog: prog.as_raw_fd() as u32, pad: 0 })
}

/// Requests a kprobe.multi link to no function at all.
///
/// # Errors
/// Always fails: `EINVAL` if the kernel supports such links, `EOPNOTSUPP` if it does not.
pub fn link_kprobe_multi_to_nothing(prog: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let attach_type = ATTACH_KPROBE_MULTI;
    call_fd(
        Command::LinkCreate,
        &mut Multi { prog: prog.as_raw_fd() as u32, attach_type, ..Multi::default() },
    )
}

/// Requests a uprobe.multi link to a directory.
///
/// # Errors
/// Always fails: `EBADF` if the kernel supports such links, `EINVAL` or `EOPNOTSUPP` if it does not.
pub fn link_uprobe_multi_to_root(prog: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = c"/";
    let offset = 0_u64;
    // In memory, `cnt` is the first half of its word and `flags` (0) the second.
    let count = if cfg!(target_endian = "little") { 1 } else { 1 << 32 };
    let mut block = Multi {
        prog: prog.as_raw_fd() as u32,
        attach_type: ATTACH_UPROBE_MULTI,
        // `path`, `offsets`, `ref_ctr_offsets`, `cookies`, `cnt` and `flags`, `pid`
        words: [path.as_ptr() as u64, &raw const offset as u64, 0, 0, count, 0],
        ..Multi::default()
    };
    call_fd(Command::LinkCreate, &mut block)
}
