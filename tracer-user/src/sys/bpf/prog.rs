//! BPF programs: loading with the verifier's log, raw tracepoints, links, test runs and statistics.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use super::{
    Block, Command, call, call_fd,
    func_info::{self, FuncInfo},
    name,
};
use crate::sys::Errno;

/// Program types, `enum bpf_prog_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ProgKind {
    /// Filters packets of a socket.
    SocketFilter = 1,
    /// Kprobes, uprobes and kprobe.multi.
    Kprobe = 2,
    /// Perf tracepoints.
    Tracepoint = 5,
    /// Perf events.
    PerfEvent = 7,
    /// Raw tracepoints.
    RawTracepoint = 17,
    /// fentry, fexit, tp_btf.
    Tracing = 26,
    /// Run by user space through `BPF_PROG_TEST_RUN`.
    Syscall = 31,
}

/// What a program is loaded for, where its type alone does not determine it.
#[derive(Clone, Copy, Debug, Default)]
pub enum Purpose<'a> {
    /// The type suffices.
    #[default]
    Any,
    /// An expected attach type (`enum bpf_attach_type`).
    Type(u32),
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
}

impl Purpose<'_> {
    fn attach_type(self) -> u32 {
        match self {
            Self::Any => 0,
            Self::Type(attach_type) => attach_type,
            Self::Function { exit: false, .. } => ATTACH_FENTRY,
            Self::Function { exit: true, .. } => ATTACH_FEXIT,
            Self::Multi => ATTACH_KPROBE_MULTI,
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
    expected_attach_type: u32,
    btf_fd: u32,
    func_info_size: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_size: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
    attach_btf_fd: u32,
    pad: u32,
}
// SAFETY: no padding; the pointers refer to slices that outlive the call.
unsafe impl Block for Load {}

#[repr(C)]
struct RawTracepoint {
    name: u64,
    prog: u32,
    pad: u32,
    cookie: u64,
}
// SAFETY: no padding; the name is a C string that outlives the call.
unsafe impl Block for RawTracepoint {}

#[repr(C)]
struct LinkCreate {
    prog: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
}
// SAFETY: plain integers without padding.
unsafe impl Block for LinkCreate {}

/// `link_create` with its `uprobe_multi`.
#[repr(C)]
struct FileCreate {
    prog: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    references: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    pad: u32,
}
// SAFETY: no padding; the pointers refer to memory that outlives the call.
unsafe impl Block for FileCreate {}

/// `link_create` with its `kprobe_multi`.
#[repr(C)]
struct MultiCreate {
    prog: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    multi_flags: u32,
    count: u32,
    symbols: u64,
    addresses: u64,
    cookies: u64,
}
// SAFETY: plain integers without padding; the pointers refer to slices that outlive the call.
unsafe impl Block for MultiCreate {}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}
// SAFETY: no padding; the context outlives the call.
unsafe impl Block for TestRun {}

#[repr(C)]
struct GetInfo {
    fd: u32,
    length: u32,
    info: u64,
}
// SAFETY: no padding; `info` points to a buffer of `length` bytes.
unsafe impl Block for GetInfo {}

/// `BPF_PERF_EVENT`, `enum bpf_attach_type`.
const ATTACH_PERF_EVENT: u32 = 41;
/// `BPF_TRACE_FENTRY`, `BPF_TRACE_FEXIT`, `BPF_TRACE_KPROBE_MULTI`.
const ATTACH_FENTRY: u32 = 24;
const ATTACH_FEXIT: u32 = 25;
const ATTACH_KPROBE_MULTI: u32 = 42;
/// `BPF_TRACE_UPROBE_MULTI`.
const ATTACH_UPROBE_MULTI: u32 = 48;
/// `BPF_F_KPROBE_MULTI_RETURN`, `BPF_F_UPROBE_MULTI_RETURN`.
const MULTI_RETURN: u32 = 1;
/// `enum bpf_link_type`, `enum bpf_perf_event_type`.
const LINK_PERF_EVENT: u32 = 7;
const LINK_KPROBE_MULTI: u32 = 8;
const PERF_EVENT_KPROBE: u32 = 3;
const PERF_EVENT_KRETPROBE: u32 = 4;
/// `BPF_F_SLEEPABLE`.
const FLAG_SLEEPABLE: u32 = 1 << 4;
/// Bytes of verifier log that are kept. A longer log keeps its end (6.4 and later) or is cut.
const LOG_SIZE: usize = 1 << 20;

/// A loaded program.
#[derive(Debug)]
pub struct Prog {
    fd: OwnedFd,
    kind: ProgKind,
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

    /// Like [`Prog::load`], with an expected attach type (`enum bpf_attach_type`).
    ///
    /// # Errors
    /// As [`Prog::load`].
    pub fn load_with(kind: ProgKind, attach_type: u32, insns: &[u8], title: &str) -> Result<Self, LoadError> {
        Self::load_for(kind, Purpose::Type(attach_type), insns, title)
    }

    /// Like [`Prog::load`], for a purpose.
    ///
    /// # Errors
    /// As [`Prog::load`].
    pub fn load_for(
        kind: ProgKind,
        purpose: Purpose<'_>,
        insns: &[u8],
        title: &str,
    ) -> Result<Self, LoadError> {
        // The kernel accepts this type only as sleepable: it runs in its caller's context and may sleep.
        let flags = if kind == ProgKind::Syscall { FLAG_SLEEPABLE } else { 0 };
        Self::load_flagged(kind, purpose, flags, insns, title)
    }

    /// Like [`Prog::load_for`], for a program that may sleep: one for uprobes (6.0 and later).
    ///
    /// # Errors
    /// As [`Prog::load`].
    pub fn load_sleepable(
        kind: ProgKind,
        purpose: Purpose<'_>,
        insns: &[u8],
        title: &str,
    ) -> Result<Self, LoadError> {
        Self::load_flagged(kind, purpose, FLAG_SLEEPABLE, insns, title)
    }

    fn load_flagged(
        kind: ProgKind,
        purpose: Purpose<'_>,
        flags: u32,
        insns: &[u8],
        title: &str,
    ) -> Result<Self, LoadError> {
        let (attach_btf_id, attach_btf_fd) = match purpose {
            Purpose::Function { id, module, .. } => (id, module.map_or(0, |fd| fd.as_raw_fd() as u32)),
            _ => (0, 0),
        };
        let attach_type = purpose.attach_type();
        let license = c"Dual MIT/GPL";
        let callbacks = func_info::of(insns);
        let btf_fd = match &callbacks {
            Some(_) => func_info::btf().map_err(|errno| LoadError { errno, log: String::new() })?,
            None => 0,
        };
        let block = |log: &mut [u8]| Load {
            kind: kind as u32,
            count: (insns.len() / 8) as u32,
            insns: insns.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            flags,
            name: name(title),
            expected_attach_type: purpose.attach_type(),
            attach_btf_id,
            attach_btf_fd,
            btf_fd: btf_fd.cast_unsigned(),
            func_info_size: if callbacks.is_some() { size_of::<FuncInfo>() as u32 } else { 0 },
            func_info: callbacks.as_ref().map_or(0, |list| list.as_ptr() as u64),
            func_info_count: callbacks.as_ref().map_or(0, |list| list.len() as u32),
            ..Load::default()
        };
        let mut errno = match call_fd(Command::ProgLoad, &mut block(&mut [])) {
            Ok(fd) => return Ok(Self { fd, kind, attach_type }),
            Err(errno) => errno,
        };
        let mut log = vec![0; LOG_SIZE];
        match call_fd(Command::ProgLoad, &mut block(&mut log)) {
            // The second attempt succeeded (the first failed with `EAGAIN` or by a signal).
            Ok(fd) => return Ok(Self { fd, kind, attach_type }),
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

    /// The type it was loaded as.
    pub fn kind(&self) -> ProgKind {
        self.kind
    }

    /// Attaches a raw tracepoint program to a tracepoint, until the descriptor is closed.
    ///
    /// # Errors
    /// `ENOENT` for an unknown tracepoint, `EINVAL` if the program reads more arguments than the tracepoint has.
    pub fn attach_raw_tracepoint(&self, tracepoint: &str) -> Result<OwnedFd, Errno> {
        // No tracepoint has a NUL in its name.
        let title = CString::new(tracepoint).map_err(|_| Errno::NOENT)?;
        let mut block = RawTracepoint {
            name: title.as_ptr() as u64,
            prog: self.fd.as_raw_fd() as u32,
            pad: 0,
            cookie: 0,
        };
        // The cookie exists since 6.10. Earlier kernels accept the longer block because its rest is zero.
        call_fd(Command::RawTracepointOpen, &mut block)
    }

    /// Links the program to a perf event (5.15 and later), with a cookie that the program can read.
    ///
    /// # Errors
    /// `EINVAL` before 5.15, `EACCES` if the program reads past the event's last field, `E2BIG` for more than 64
    /// programs on one event.
    pub fn link_perf_event(&self, event: BorrowedFd<'_>, cookie: u64) -> Result<OwnedFd, Errno> {
        let mut block = LinkCreate {
            prog: self.fd.as_raw_fd() as u32,
            target: event.as_raw_fd() as u32,
            attach_type: ATTACH_PERF_EVENT,
            flags: 0,
            cookie,
        };
        call_fd(Command::LinkCreate, &mut block)
    }

    /// Attaches a program of [`Purpose::Function`] to its function.
    ///
    /// # Errors
    /// `EBUSY` if the function's entry is already in use, `EINVAL` or `ENOTSUPP` if the function cannot be traced.
    pub fn attach_function(&self) -> Result<OwnedFd, Errno> {
        let mut block = RawTracepoint { name: 0, prog: self.fd.as_raw_fd() as u32, pad: 0, cookie: 0 };
        call_fd(Command::RawTracepointOpen, &mut block)
    }

    /// The same program with a descriptor of its own.
    ///
    /// # Errors
    /// If no further descriptor is available.
    pub fn duplicate(&self) -> Result<Self, Errno> {
        let fd = self.fd.try_clone().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        Ok(Self { fd, kind: self.kind, attach_type: self.attach_type })
    }

    /// Attaches a program of [`Purpose::Multi`] to the functions at these addresses (5.18 and later). `cookies` holds
    /// an attach cookie for each address, or is empty.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on a kernel built without fprobe, `ESRCH` for an address that is not a function's, `EINVAL` if
    /// the number of cookies differs from the number of addresses.
    pub fn link_functions(&self, addresses: &[u64], cookies: &[u64], exit: bool) -> Result<OwnedFd, Errno> {
        if !cookies.is_empty() && cookies.len() != addresses.len() {
            return Err(Errno::INVAL);
        }
        let mut block = MultiCreate {
            prog: self.fd.as_raw_fd() as u32,
            target: 0,
            attach_type: ATTACH_KPROBE_MULTI,
            flags: 0,
            multi_flags: if exit { MULTI_RETURN } else { 0 },
            count: addresses.len() as u32,
            symbols: 0,
            addresses: addresses.as_ptr() as u64,
            cookies: if cookies.is_empty() { 0 } else { cookies.as_ptr() as u64 },
        };
        call_fd(Command::LinkCreate, &mut block)
    }

    /// Attaches a program for `BPF_TRACE_UPROBE_MULTI` to an instruction of a file, or to the return of the function
    /// that begins there (6.6 and later). `reference` is the offset of a counter that the kernel raises meanwhile; 0
    /// for none. `cookie` is the value that the program can read.
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
        let mut block = FileCreate {
            prog: self.fd.as_raw_fd() as u32,
            target: 0,
            attach_type: ATTACH_UPROBE_MULTI,
            flags: 0,
            path: path.as_ptr() as u64,
            offsets: &raw const offset as u64,
            references: if reference == 0 { 0 } else { &raw const reference as u64 },
            cookies: &raw const cookie as u64,
            count: 1,
            multi_flags: if exit { MULTI_RETURN } else { 0 },
            pid: 0,
            pad: 0,
        };
        call_fd(Command::LinkCreate, &mut block)
    }

    /// Runs a [`ProgKind::Syscall`] program once in this thread and returns its return value.
    ///
    /// # Errors
    /// `EINVAL` if the context is shorter than the program reads, or for another program type.
    pub fn run(&self, context: &mut [u8]) -> Result<u32, Errno> {
        let mut block = TestRun {
            prog: self.fd.as_raw_fd() as u32,
            ctx_size_in: context.len() as u32,
            ctx_in: if context.is_empty() { 0 } else { context.as_mut_ptr() as u64 },
            ..TestRun::default()
        };
        call(Command::ProgTestRun, &mut block)?;
        Ok(block.retval)
    }

    /// Reads the kernel's statistics of the program.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn info(&self) -> Result<ProgInfo, Errno> {
        // `struct bpf_prog_info`: type, id at 4, tag, jited_prog_len at 16, xlated_prog_len at 20, ...,
        // recursion_misses at 208, verified_insns at 216.
        let mut info = [0_u8; 232];
        let mut block = GetInfo {
            fd: self.fd.as_raw_fd() as u32,
            length: info.len() as u32,
            info: info.as_mut_ptr() as u64,
        };
        call(Command::ObjGetInfo, &mut block)?;
        Ok(ProgInfo {
            id: word(&info, 4),
            jited: word(&info, 16),
            translated: word(&info, 20),
            misses: long(&info, 208),
            verified: word(&info, 216),
        })
    }
}

/// Hits that a link's hook missed (6.7 and later); None if the link does not count them.
pub fn link_missed(link: BorrowedFd<'_>) -> Option<u64> {
    // `struct bpf_link_info`: type, id, prog_id, and at 16 the part of the type. kprobe.multi: addresses, count and
    // flags, missed at 32. Perf events: their type at 16; kprobes have name at 24, its length and the offset,
    // address, missed at 48.
    let mut info = [0_u8; 64];
    let mut block =
        GetInfo { fd: link.as_raw_fd() as u32, length: info.len() as u32, info: info.as_mut_ptr() as u64 };
    call(Command::ObjGetInfo, &mut block).ok()?;
    match (word(&info, 0), word(&info, 16)) {
        (LINK_KPROBE_MULTI, _) => Some(long(&info, 32)),
        (LINK_PERF_EVENT, PERF_EVENT_KPROBE | PERF_EVENT_KRETPROBE) => Some(long(&info, 48)),
        _ => None,
    }
}

/// The `u32` at an offset of a kernel structure; 0 past its end.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word))
}

/// As [`word`], for a `u64`.
fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
}

impl AsFd for Prog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
