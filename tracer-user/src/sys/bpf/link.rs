//! Attaching BPF programs: links and raw tracepoints. A program stays attached until the descriptor is closed.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use aya_obj::generated::{
    BPF_F_KPROBE_MULTI_RETURN, BPF_F_UPROBE_MULTI_RETURN, bpf_attach_type, bpf_attr, bpf_cmd, bpf_link_info,
    bpf_link_type, bpf_perf_event_type,
};

#[cfg(doc)]
use super::prog::Purpose;
use super::{
    arguments, call_fd, info,
    prog::{FEXIT_MULTI, Prog},
};
use crate::sys::Errno;

impl Prog {
    /// Attaches a raw tracepoint program to a tracepoint, until the descriptor is closed.
    ///
    /// # Errors
    /// `ENOENT` for an unknown tracepoint, `EINVAL` if the program reads more arguments than the tracepoint has.
    pub fn attach_raw_tracepoint(&self, tracepoint: &str) -> Result<OwnedFd, Errno> {
        // No tracepoint has a NUL in its name.
        let title = CString::new(tracepoint).map_err(|_| Errno::NOENT)?;
        // SAFETY: the name is a string that outlives the call.
        unsafe { open_raw_tracepoint(self.as_fd(), title.as_ptr() as u64) }
    }

    /// Links the program to a perf event (5.15 and later), with a cookie that the program can read.
    ///
    /// # Errors
    /// `EINVAL` before 5.15, `EACCES` if the program reads past the event's last field, `E2BIG` for more than 64
    /// programs on one event.
    pub fn link_perf_event(&self, event: BorrowedFd<'_>, cookie: u64) -> Result<OwnedFd, Errno> {
        let mut arguments = link_arguments(self.as_fd(), bpf_attach_type::BPF_PERF_EVENT);
        arguments.link_create.__bindgen_anon_2.target_fd = event.as_raw_fd().cast_unsigned();
        arguments.link_create.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
        // SAFETY: the command returns a descriptor, and there are no addresses.
        unsafe { call_fd(bpf_cmd::BPF_LINK_CREATE, &mut arguments) }
    }

    /// Attaches a program of [`Purpose::Function`] to its function.
    ///
    /// # Errors
    /// `EBUSY` if the function's entry is already in use, `EINVAL` or `ENOTSUPP` if the function cannot be traced.
    pub fn attach_function(&self) -> Result<OwnedFd, Errno> {
        // SAFETY: there is no name.
        unsafe { open_raw_tracepoint(self.as_fd(), 0) }
    }

    /// Attaches a program of [`Purpose::Multi`] to the functions at these addresses (5.18 and later). `cookies` holds
    /// an attach cookie for each address, or is empty.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on a kernel built without fprobe, `ESRCH` for an address that is not a function's, `EINVAL`
    /// without addresses or if the number of cookies differs from theirs.
    pub fn link_functions(&self, addresses: &[u64], cookies: &[u64], exit: bool) -> Result<OwnedFd, Errno> {
        if !cookies.is_empty() && cookies.len() != addresses.len() {
            return Err(Errno::INVAL);
        }
        let mut arguments = link_arguments(self.as_fd(), bpf_attach_type::BPF_TRACE_KPROBE_MULTI);
        let flags = if exit { BPF_F_KPROBE_MULTI_RETURN } else { 0 };
        arguments.link_create.__bindgen_anon_3.kprobe_multi.flags = flags;
        arguments.link_create.__bindgen_anon_3.kprobe_multi.cnt = addresses.len() as u32;
        arguments.link_create.__bindgen_anon_3.kprobe_multi.addrs = addresses.as_ptr() as u64;
        if !cookies.is_empty() {
            arguments.link_create.__bindgen_anon_3.kprobe_multi.cookies = cookies.as_ptr() as u64;
        }
        // SAFETY: the command returns a descriptor; addresses and cookies have the stated number and outlive the call.
        unsafe { call_fd(bpf_cmd::BPF_LINK_CREATE, &mut arguments) }
    }

    /// Attaches a program of [`Purpose::Exits`] to the functions with these ids in the kernel's BTF (7.2 and later).
    /// `cookies` holds an attach cookie for each.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on a kernel without such links, `ENOENT` for a function without a place for a call, `EINVAL` for an
    /// id that is not a function's or is there twice, without ids, or if the number of cookies differs from theirs.
    pub fn link_exits(&self, ids: &[u32], cookies: &[u64]) -> Result<OwnedFd, Errno> {
        if cookies.len() != ids.len() {
            return Err(Errno::INVAL);
        }
        let mut arguments = arguments();
        arguments.link_create.__bindgen_anon_1.prog_fd = self.as_fd().as_raw_fd().cast_unsigned();
        arguments.link_create.attach_type = FEXIT_MULTI;
        // The member `tracing_multi` has two addresses and a number. In that of uprobe.multi, these are three addresses.
        let count = u32::try_from(ids.len()).map_err(|_| Errno::TOOBIG)?;
        arguments.link_create.__bindgen_anon_3.uprobe_multi.path = ids.as_ptr() as u64;
        arguments.link_create.__bindgen_anon_3.uprobe_multi.offsets = cookies.as_ptr() as u64;
        arguments.link_create.__bindgen_anon_3.uprobe_multi.ref_ctr_offsets = u64::from(count);
        // SAFETY: the command returns a descriptor; ids and cookies have the stated number and outlive the call.
        unsafe { call_fd(bpf_cmd::BPF_LINK_CREATE, &mut arguments) }
    }

    /// Attaches a program for `BPF_TRACE_UPROBE_MULTI` to an instruction of a file, or to the return of the function
    /// that begins there (6.6 and later). `reference` is the offset of a counter that the kernel increments while the
    /// link exists; 0 for none. `cookie` is the value that the program can read.
    ///
    /// # Errors
    /// `EBADF` if the path is not a regular file, `EINVAL` for an offset that cannot be probed, `ENOENT` if the file
    /// does not exist.
    pub fn link_file(
        &self,
        path: &CStr,
        offset: u64,
        reference: u64,
        exit: bool,
        cookie: u64,
    ) -> Result<OwnedFd, Errno> {
        let mut arguments = link_arguments(self.as_fd(), bpf_attach_type::BPF_TRACE_UPROBE_MULTI);
        let flags = if exit { BPF_F_UPROBE_MULTI_RETURN } else { 0 };
        arguments.link_create.__bindgen_anon_3.uprobe_multi.path = path.as_ptr() as u64;
        arguments.link_create.__bindgen_anon_3.uprobe_multi.offsets = &raw const offset as u64;
        if reference != 0 {
            arguments.link_create.__bindgen_anon_3.uprobe_multi.ref_ctr_offsets = &raw const reference as u64;
        }
        arguments.link_create.__bindgen_anon_3.uprobe_multi.cookies = &raw const cookie as u64;
        arguments.link_create.__bindgen_anon_3.uprobe_multi.cnt = 1;
        arguments.link_create.__bindgen_anon_3.uprobe_multi.flags = flags;
        // SAFETY: the command returns a descriptor; path and numbers, one of each, outlive the call.
        unsafe { call_fd(bpf_cmd::BPF_LINK_CREATE, &mut arguments) }
    }
}

/// The arguments of `BPF_LINK_CREATE` that all kinds of links share.
fn link_arguments(program: BorrowedFd<'_>, attach_type: bpf_attach_type) -> bpf_attr {
    let mut arguments = arguments();
    arguments.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    arguments.link_create.attach_type = attach_type as u32;
    arguments
}

/// # Safety
/// `name` is 0 or the address of a string.
unsafe fn open_raw_tracepoint(program: BorrowedFd<'_>, name: u64) -> Result<OwnedFd, Errno> {
    let mut arguments = arguments();
    arguments.raw_tracepoint.name = name;
    arguments.raw_tracepoint.prog_fd = program.as_raw_fd().cast_unsigned();
    // SAFETY: the command returns a descriptor, and the caller vouches for the name.
    unsafe { call_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut arguments) }
}

/// Hits that a link's hook missed (6.7 and later); None if the link does not count them.
pub fn link_missed(link: BorrowedFd<'_>) -> Option<u64> {
    const KPROBES: [u32; 2] = [
        bpf_perf_event_type::BPF_PERF_EVENT_KPROBE as u32,
        bpf_perf_event_type::BPF_PERF_EVENT_KRETPROBE as u32,
    ];
    let info: bpf_link_info = info::of(link).ok()?;
    let (multi, perf) = (bpf_link_type::BPF_LINK_TYPE_KPROBE_MULTI, bpf_link_type::BPF_LINK_TYPE_PERF_EVENT);
    // SAFETY: the fields are integers, and the rest of the structure is zero where the kernel has set nothing.
    unsafe {
        if info.type_ == multi as u32 {
            Some(info.__bindgen_anon_1.kprobe_multi.missed)
        } else if info.type_ == perf as u32 && KPROBES.contains(&info.__bindgen_anon_1.perf_event.type_) {
            Some(info.__bindgen_anon_1.perf_event.__bindgen_anon_1.kprobe.missed)
        } else {
            None
        }
    }
}
