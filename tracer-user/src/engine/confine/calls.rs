//! The system calls of each role.
//!
//! [`RUNTIME`] has the calls that a Rust program with threads makes through libc; the other lists are by purpose. Only
//! two roles can open files for writing: the process that writes state files, and the one that writes clients' memory.
//! The following are in no list and therefore refused: starting programs and processes (execve, clone without
//! `CLONE_THREAD`), access to other processes (ptrace, process_vm_readv, pidfd_getfd), changes of users and
//! capabilities (setuid, capset), mount calls except umount2, namespaces, modules, kexec, keys, userfaultfd, io_uring,
//! and sockets to other machines. The numbers are libc's, so each architecture has its own. The calls that only x86-64
//! has are older variants of others, which libc still uses there.

use aya_obj::generated::bpf_cmd;
use libc::c_long;

use super::Role;
use crate::sys::{
    memory::procmap::PROCMAP_QUERY,
    process::seccomp::{Argument, Rule, Test},
};

/// Calls that fail as on a kernel without them. The arguments of clone3 are in memory, which a filter cannot read;
/// libc then uses clone.
pub(super) const ABSENT: &[c_long] = &[libc::SYS_clone3];

/// Calls for threads, memory, time, signals and descriptors.
const RUNTIME: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    // abort(3) sends a signal to its own thread.
    libc::SYS_tgkill,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_select,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

/// A thread of low priority reads facts of the kernel in advance.
const PRIORITY: &[Rule] = &[rule(libc::SYS_setpriority, &[argument(0, Test::Is(libc::PRIO_PROCESS))])];

/// Calls to read files and their metadata.
const READING: &[c_long] = &[
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_flock,
    libc::SYS_fstatfs,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    // The BTF of kernels before 6.15 cannot be mapped and is copied into a memfd.
    libc::SYS_memfd_create,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_readlinkat,
    libc::SYS_statfs,
    libc::SYS_statx,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_getdents,
];

/// Calls to wait for descriptors.
const WAITING: &[c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_waitid,
    libc::SYS_wait4,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_create,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_eventfd,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_pipe,
];

/// Calls for messages on open sockets.
const MESSAGES: &[c_long] = &[
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// Calls to write to files that are open for writing.
const WRITING: &[c_long] = &[
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_msync,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
];

const RENAMING: &[c_long] = &[
    libc::SYS_renameat,
    libc::SYS_renameat2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
];

/// Calls to remove names: state files, pinned maps.
const REMOVING: &[c_long] = &[
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Calls for tracing and serving.
const TRACING: &[c_long] = &[
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_open,
    libc::SYS_bind,
    libc::SYS_connect,
    // Unmounts the mirror at its end.
    libc::SYS_umount2,
];

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
const THREAD: u32 = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u32;

const fn argument(index: u8, test: Test) -> Argument {
    Argument { index, test }
}

const fn rule(call: c_long, arguments: &'static [Argument]) -> Rule {
    Rule { call, arguments }
}

/// Calls of every role with restricted arguments.
const LIMITED: &[Rule] = &[
    // Only threads, no processes.
    rule(libc::SYS_clone, &[argument(0, Test::Masked(THREAD | NEW_NAMESPACES, THREAD))]),
    // No executable memory.
    rule(libc::SYS_mmap, &[argument(2, Test::Masked(libc::PROT_EXEC as u32, 0))]),
    rule(libc::SYS_mprotect, &[argument(2, Test::Masked(libc::PROT_EXEC as u32, 0))]),
    // Names of threads and of memory.
    rule(libc::SYS_prctl, &[argument(0, Test::Is(libc::PR_SET_NAME as u32))]),
    rule(libc::SYS_prctl, &[argument(0, Test::Is(libc::PR_GET_NAME as u32))]),
    rule(libc::SYS_prctl, &[argument(0, Test::Is(libc::PR_SET_VMA as u32))]),
    // PR_GET_AUXV (6.4): rustix reads the page size from the auxiliary vector.
    rule(libc::SYS_prctl, &[argument(0, Test::Is(0x4155_5856))]),
    // Reading limits of this process.
    rule(libc::SYS_prlimit64, &[argument(0, Test::Is(0)), argument(2, Test::LongMasked(u64::MAX, 0))]),
    // The CPUs of this thread.
    rule(libc::SYS_sched_setaffinity, &[argument(0, Test::Is(0))]),
];

const OPENING: &[Rule] = &[
    Rule::any(libc::SYS_openat),
    #[cfg(target_arch = "x86_64")]
    Rule::any(libc::SYS_open),
];

/// Calls to open files for reading.
const OPENING_TO_READ: &[Rule] = &[
    rule(libc::SYS_openat, &[argument(2, Test::Masked(WRITES, 0))]),
    #[cfg(target_arch = "x86_64")]
    rule(libc::SYS_open, &[argument(1, Test::Masked(WRITES, 0))]),
];
const WRITES: u32 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u32;

/// Requests except those that write to a terminal's input (TIOCSTI, TIOCLINUX).
const IOCTL: Rule = rule(
    libc::SYS_ioctl,
    &[argument(1, Test::IsNot(libc::TIOCSTI as u32)), argument(1, Test::IsNot(libc::TIOCLINUX as u32))],
);

/// Access to maps, and information about programs, through open descriptors. Nothing is loaded or created.
const MAPS: &[Rule] = &[
    rule(libc::SYS_bpf, &[argument(0, Test::Is(bpf_cmd::BPF_MAP_LOOKUP_ELEM as u32))]),
    rule(libc::SYS_bpf, &[argument(0, Test::Is(bpf_cmd::BPF_MAP_UPDATE_ELEM as u32))]),
    rule(libc::SYS_bpf, &[argument(0, Test::Is(bpf_cmd::BPF_MAP_DELETE_ELEM as u32))]),
    rule(libc::SYS_bpf, &[argument(0, Test::Is(bpf_cmd::BPF_MAP_GET_NEXT_KEY as u32))]),
    rule(libc::SYS_bpf, &[argument(0, Test::Is(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD as u32))]),
    rule(libc::SYS_bpf, &[argument(0, Test::Is(bpf_cmd::BPF_MAP_LOOKUP_BATCH as u32))]),
    rule(libc::SYS_bpf, &[argument(0, Test::Is(bpf_cmd::BPF_MAP_LOOKUP_AND_DELETE_BATCH as u32))]),
    rule(libc::SYS_bpf, &[argument(0, Test::Is(bpf_cmd::BPF_MAP_DELETE_BATCH as u32))]),
    rule(libc::SYS_bpf, &[argument(0, Test::Is(bpf_cmd::BPF_LINK_DETACH as u32))]),
];

/// Sockets within this machine.
const SOCKETS: &[Rule] = &[
    rule(libc::SYS_socket, &[argument(0, Test::Is(libc::AF_UNIX as u32))]),
    rule(libc::SYS_socket, &[argument(0, Test::Is(libc::AF_NETLINK as u32))]),
    rule(libc::SYS_socketpair, &[argument(0, Test::Is(libc::AF_UNIX as u32))]),
];

/// Calls with which std copies a file.
const COPYING: &[c_long] = &[libc::SYS_copy_file_range, libc::SYS_sendfile, libc::SYS_splice];

/// The mapping at an address.
const MAPPING: Rule = rule(libc::SYS_ioctl, &[argument(1, Test::Is(PROCMAP_QUERY))]);

/// The system calls of a role. Only a daemon that pins maps can remove names.
pub(super) fn of(role: Role, pins: bool) -> Vec<Rule> {
    match role {
        // Serving, enabling, reading, ending. It opens no file for writing: its user is root, so it could write any
        // file of root.
        Role::Daemon => {
            let removing = if pins { REMOVING } else { &[] };
            let lists = [READING, WAITING, MESSAGES, WRITING, TRACING, removing];
            with_common(&lists, &[SOCKETS, OPENING_TO_READ, PRIORITY, &[IOCTL]])
        }
        // It opens one file, to give way to tracers that open many events.
        Role::Closer => with_common(&[MESSAGES, &[libc::SYS_flock]], &[OPENING_TO_READ]),
        // It sends files with their content.
        Role::Opener => with_common(&[READING, MESSAGES], &[OPENING_TO_READ]),
        // It accesses memory through descriptors of /proc/PID/mem, not process_vm_readv, which would use the process
        // id.
        Role::ClientMemory => {
            let writing: &[c_long] = &[libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_pidfd_open];
            with_common(&[READING, WAITING, MESSAGES, writing], &[OPENING, &[MAPPING]])
        }
        Role::StateWriter => {
            with_common(&[READING, MESSAGES, WRITING, RENAMING, REMOVING, COPYING], &[OPENING])
        }
        // They read rings, tables and files, and write to open files.
        Role::Recorder | Role::Histogram | Role::Reader => {
            with_common(&[READING, WAITING, MESSAGES], &[OPENING_TO_READ, MAPS, &[IOCTL]])
        }
    }
}

/// These calls and rules, and those of every role.
fn with_common(lists: &[&[c_long]], rules: &[&[Rule]]) -> Vec<Rule> {
    let calls = RUNTIME.iter().chain(lists.iter().copied().flatten()).copied().map(Rule::any);
    calls.chain(LIMITED.iter().chain(rules.iter().copied().flatten()).copied()).collect()
}
