//! BPF programs: loading with the verifier's log, runs by user space, and statistics. [`super::link`] attaches them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya_obj::generated::{
    BPF_F_SLEEPABLE, bpf_attach_type, bpf_cmd, bpf_func_info, bpf_prog_info, bpf_prog_type,
};

use super::{arguments, call, call_fd, func_info, info, name};
use crate::sys::Errno;

/// Program types, `enum bpf_prog_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ProgKind {
    /// Filters packets of a socket.
    SocketFilter = bpf_prog_type::BPF_PROG_TYPE_SOCKET_FILTER as u32,
    /// Kprobes, uprobes and kprobe.multi.
    Kprobe = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32,
    /// Perf tracepoints.
    Tracepoint = bpf_prog_type::BPF_PROG_TYPE_TRACEPOINT as u32,
    /// Perf events.
    PerfEvent = bpf_prog_type::BPF_PROG_TYPE_PERF_EVENT as u32,
    /// Raw tracepoints.
    RawTracepoint = bpf_prog_type::BPF_PROG_TYPE_RAW_TRACEPOINT as u32,
    /// fentry, fexit, tp_btf.
    Tracing = bpf_prog_type::BPF_PROG_TYPE_TRACING as u32,
    /// Run by user space through `BPF_PROG_TEST_RUN`.
    Syscall = bpf_prog_type::BPF_PROG_TYPE_SYSCALL as u32,
}

/// The use of a program, where its type alone does not determine it.
#[derive(Clone, Copy, Debug, Default)]
pub enum Purpose<'a> {
    /// The type suffices.
    #[default]
    Any,
    /// A kernel function's entry or exit ([`ProgKind::Tracing`]).
    Function {
        /// The function's BTF id.
        id: u32,
        /// The module's BTF; None for the kernel's own.
        module: Option<BorrowedFd<'a>>,
        /// Whether the program runs at the exit.
        exit: bool,
    },
    /// kprobe.multi.
    Multi,
    /// The exits of many functions of the kernel, with their arguments ([`ProgKind::Tracing`], 7.2 and later).
    Exits,
    /// uprobe.multi.
    FileMulti,
}

/// `BPF_TRACE_FEXIT_MULTI`, include/uapi/linux/bpf.h of 7.2.
pub(super) const FEXIT_MULTI: u32 = 60;

impl Purpose<'_> {
    fn attach_type(self) -> u32 {
        match self {
            Self::Any => 0,
            Self::Function { exit: false, .. } => bpf_attach_type::BPF_TRACE_FENTRY as u32,
            Self::Function { exit: true, .. } => bpf_attach_type::BPF_TRACE_FEXIT as u32,
            Self::Multi => bpf_attach_type::BPF_TRACE_KPROBE_MULTI as u32,
            Self::Exits => FEXIT_MULTI,
            Self::FileMulti => bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32,
        }
    }
}

/// Why the kernel refused a program.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{errno}")]
pub struct LoadError {
    /// The error number: `EACCES` and `EINVAL` come from the verifier, `EPERM` from a missing privilege or a security
    /// module.
    pub errno: Errno,
    /// The verifier's log; empty if the verifier wrote none.
    pub log: String,
}

/// Bytes of verifier log that are kept. A longer log keeps its end (6.4 and later) or is cut.
const LOG_SIZE: usize = 1 << 20;

/// A loaded program.
#[derive(Debug)]
pub struct Prog {
    fd: OwnedFd,
    attach_type: u32,
}

/// The kernel's statistics of a loaded program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgInfo {
    /// The kernel's id of the program.
    pub id: u32,
    /// Bytes of machine code.
    pub jited: u32,
    /// Bytes of instructions after the verifier's rewriting.
    pub translated: u32,
    /// Hits that the kernel skipped because the program (or, for perf tracepoints, another one) was running on that
    /// CPU.
    pub misses: u64,
    /// Instructions that the verifier processed (5.16 and later).
    pub verified: u32,
}

impl Prog {
    /// Loads a program of eight-byte instructions. Requests the verifier's log only if the kernel refuses the
    /// program.
    ///
    /// # Errors
    /// The error number and the verifier's log.
    pub fn load(kind: ProgKind, insns: &[u8], title: &str) -> Result<Self, LoadError> {
        Self::load_for(kind, Purpose::Any, insns, title)
    }

    /// Like [`Prog::load`], for a purpose.
    pub(crate) fn load_for(
        kind: ProgKind,
        purpose: Purpose<'_>,
        insns: &[u8],
        title: &str,
    ) -> Result<Self, LoadError> {
        // The kernel accepts this type only as sleepable: it runs in its caller's context and may sleep.
        let flags = if kind == ProgKind::Syscall { BPF_F_SLEEPABLE } else { 0 };
        Self::load_flagged(kind, purpose, flags, insns, title)
    }

    /// Like [`Prog::load_for`], for a sleepable program of uprobes (6.0 and later).
    pub(crate) fn load_sleepable(
        kind: ProgKind,
        purpose: Purpose<'_>,
        insns: &[u8],
        title: &str,
    ) -> Result<Self, LoadError> {
        Self::load_flagged(kind, purpose, BPF_F_SLEEPABLE, insns, title)
    }

    fn load_flagged(
        kind: ProgKind,
        purpose: Purpose<'_>,
        flags: u32,
        insns: &[u8],
        title: &str,
    ) -> Result<Self, LoadError> {
        let attach_type = purpose.attach_type();
        let license = c"Dual MIT/GPL";
        let mut arguments = arguments();
        arguments.__bindgen_anon_3.prog_type = kind as u32;
        arguments.__bindgen_anon_3.insn_cnt = (insns.len() / 8) as u32;
        arguments.__bindgen_anon_3.insns = insns.as_ptr() as u64;
        arguments.__bindgen_anon_3.license = license.as_ptr() as u64;
        arguments.__bindgen_anon_3.prog_flags = flags;
        arguments.__bindgen_anon_3.prog_name = name(title);
        arguments.__bindgen_anon_3.expected_attach_type = attach_type;
        if let Purpose::Function { id, module, .. } = purpose {
            let module = module.map_or(0, |module| module.as_raw_fd().cast_unsigned());
            arguments.__bindgen_anon_3.attach_btf_id = id;
            arguments.__bindgen_anon_3.__bindgen_anon_1.attach_btf_obj_fd = module;
        }
        let functions = func_info::of(insns);
        if let Some(functions) = &functions {
            let types = func_info::btf().map_err(|errno| LoadError { errno, log: String::new() })?;
            arguments.__bindgen_anon_3.prog_btf_fd = types.as_raw_fd().cast_unsigned();
            arguments.__bindgen_anon_3.func_info_rec_size = size_of::<bpf_func_info>() as u32;
            arguments.__bindgen_anon_3.func_info = functions.as_ptr() as u64;
            arguments.__bindgen_anon_3.func_info_cnt = functions.len() as u32;
        }
        // SAFETY: the command returns a descriptor, and all slices have the stated lengths and outlive the call.
        let mut errno = match unsafe { call_fd(bpf_cmd::BPF_PROG_LOAD, &mut arguments) } {
            Ok(fd) => return Ok(Self { fd, attach_type }),
            Err(errno) => errno,
        };
        let mut log = vec![0_u8; LOG_SIZE];
        arguments.__bindgen_anon_3.log_level = 1;
        arguments.__bindgen_anon_3.log_size = log.len() as u32;
        arguments.__bindgen_anon_3.log_buf = log.as_mut_ptr() as u64;
        // SAFETY: as above; the log has the stated length too.
        match unsafe { call_fd(bpf_cmd::BPF_PROG_LOAD, &mut arguments) } {
            // The second attempt succeeded (the first failed with `EAGAIN` or by a signal).
            Ok(fd) => return Ok(Self { fd, attach_type }),
            // The log was longer than the buffer: the first error is more informative.
            Err(Errno::NOSPC) => {}
            Err(again) => errno = again,
        }
        log.truncate(log.iter().position(|byte| *byte == 0).unwrap_or(log.len()));
        Err(LoadError { errno, log: String::from_utf8_lossy(&log).into_owned() })
    }

    /// Whether the program was loaded with the attach type of this purpose.
    pub fn is_for(&self, purpose: Purpose<'_>) -> bool {
        self.attach_type == purpose.attach_type()
    }

    /// The same program with a second descriptor.
    ///
    /// # Errors
    /// If no further descriptor is available.
    pub fn duplicate(&self) -> Result<Self, Errno> {
        let fd = self.fd.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        Ok(Self { fd, attach_type: self.attach_type })
    }

    /// Runs a [`ProgKind::Syscall`] program once in this thread and returns its return value.
    ///
    /// # Errors
    /// `EINVAL` if the context is shorter than the program reads, or for another program type.
    pub fn run(&self, context: &mut [u8]) -> Result<u32, Errno> {
        let mut arguments = arguments();
        arguments.test.prog_fd = self.fd.as_raw_fd().cast_unsigned();
        arguments.test.ctx_size_in = context.len() as u32;
        arguments.test.ctx_in = if context.is_empty() { 0 } else { context.as_mut_ptr() as u64 };
        // SAFETY: the context has the stated size and outlives the call.
        unsafe { call(bpf_cmd::BPF_PROG_TEST_RUN, &mut arguments) }?;
        // SAFETY: an integer, which the kernel has set.
        Ok(unsafe { arguments.test.retval })
    }

    /// Reads the kernel's statistics of the program.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn info(&self) -> Result<ProgInfo, Errno> {
        let info: bpf_prog_info = info::of(self.as_fd())?;
        Ok(ProgInfo {
            id: info.id,
            jited: info.jited_prog_len,
            translated: info.xlated_prog_len,
            misses: info.recursion_misses,
            verified: info.verified_insns,
        })
    }
}

impl AsFd for Prog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// An instruction (`struct bpf_insn`).
pub(crate) fn insn(op: u8, dst: u8, src: u8, off: i16, imm: i32) -> [u8; 8] {
    let registers = if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
    let ([low, high], [a, b, c, d]) = (off.to_ne_bytes(), imm.to_ne_bytes());
    [op, registers, low, high, a, b, c, d]
}
