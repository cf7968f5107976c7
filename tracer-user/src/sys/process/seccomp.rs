//! System call filters (seccomp(2)): an allow list; all other calls fail with `EPERM` and are logged.
//!
//! The kernel checks a filter before it executes the call, and a filter cannot be removed. A call missing from the
//! list fails as if the process lacked the privilege, and the kernel's audit log names it (`type=1326`): an
//! incomplete list breaks a function, not the process. `seccompiler` generates the filter. The filter kills a process
//! that enters through another architecture's system call entry, where numbers denote other calls.

use std::collections::BTreeMap;

use rustix::thread::set_no_new_privs;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::sys::{Errno, check};

/// An allowed system call with conditions on its arguments, all of which must hold. Several rules for one call are
/// alternatives.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The call's number (`libc::SYS_*`).
    pub call: libc::c_long,
    /// Conditions on its arguments.
    pub arguments: &'static [Argument],
}

/// A condition on one argument.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Index of the argument, from 0.
    pub index: u8,
    /// The condition.
    pub test: Test,
}

/// Tests of an argument. An `int` is compared in its 32 bits, as the kernel reads no more of it.
#[derive(Clone, Copy, Debug)]
pub enum Test {
    /// An `int` equal to this value.
    Is(u32),
    /// An `int` different from this value.
    IsNot(u32),
    /// An `int` whose bits under the mask (first) equal the value (second).
    Masked(u32, u32),
    /// A `long` whose bits under the mask (first) equal the value (second).
    LongMasked(u64, u64),
}

/// The threads that a filter applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All current and future threads of the process.
    Process,
    /// The calling thread and the threads that it starts.
    #[cfg(any(test, feature = "internals"))]
    Thread,
}

/// Why no filter was installed.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The architecture is not supported, or the list is too long.
    #[error("no filter can be made: {0}")]
    Backend(#[from] BackendError),
    /// The kernel lacks filters (`CONFIG_SECCOMP_FILTER`) or refuses this one.
    #[error("the kernel takes no filter: {0}")]
    Refused(#[from] Errno),
    /// A thread has filters that the calling thread lacks.
    #[error("thread {0} has a filter of its own")]
    ForeignThread(libc::c_long),
}

impl Rule {
    /// Allows a call with any arguments.
    pub const fn any(call: libc::c_long) -> Self {
        Self { call, arguments: &[] }
    }

    fn compiled(&self) -> Result<Option<SeccompRule>, BackendError> {
        if self.arguments.is_empty() {
            return Ok(None);
        }
        let conditions = self.arguments.iter().map(|argument| {
            let (length, operator, value) = match argument.test {
                Test::Is(value) => (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(value)),
                Test::IsNot(value) => (SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, u64::from(value)),
                Test::Masked(mask, value) => {
                    (SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask.into()), u64::from(value))
                }
                Test::LongMasked(mask, value) => {
                    (SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)
                }
            };
            SeccompCondition::new(argument.index, length, operator, value)
        });
        SeccompRule::new(conditions.collect::<Result<_, _>>()?).map(Some)
    }
}

/// Compiles rules into a filter with one action for matching calls and another for all others.
fn compile(
    rules: impl IntoIterator<Item = Rule>,
    matching: SeccompAction,
    other: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let mut calls: BTreeMap<i64, Option<Vec<SeccompRule>>> = BTreeMap::new();
    for rule in rules {
        #[allow(clippy::useless_conversion)] // c_long is i64 on the architectures that are served.
        let call = calls.entry(i64::from(rule.call)).or_insert_with(|| Some(Vec::new()));
        // A rule without conditions allows the call regardless of other rules.
        match (rule.compiled()?, call.as_mut()) {
            (Some(rule), Some(rules)) => rules.push(rule),
            (None, _) => *call = None,
            (Some(_), None) => {}
        }
    }
    let calls = calls.into_iter().map(|(call, rules)| (call, rules.unwrap_or_default())).collect();
    SeccompFilter::new(calls, other, matching, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// Allows only these calls from now on.
///
/// Calls in `absent` fail with `ENOSYS`, as on a kernel that lacks them, so that libraries fall back to another call.
/// Sets `no_new_privs`; without it the kernel requires `CAP_SYS_ADMIN`.
///
/// # Errors
/// If the filter could not be compiled or installed; see [`SeccompError`].
pub fn allow(
    rules: impl IntoIterator<Item = Rule>,
    absent: &[libc::c_long],
    scope: Scope,
) -> Result<(), SeccompError> {
    set_no_new_privs(true)?;
    let (eperm, enosys) = (
        SeccompAction::Errno(libc::EPERM.cast_unsigned()),
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
    );
    let absent: Vec<Rule> = absent.iter().copied().map(Rule::any).collect();
    // If several filters apply, the kernel prefers an error to an allowance. Both filters therefore include the
    // absent calls.
    let allowed = compile(rules.into_iter().chain(absent.iter().copied()), SeccompAction::Allow, eperm)?;
    if !absent.is_empty() {
        install(&compile(absent, enosys, SeccompAction::Allow)?, scope, 0)?;
    }
    install(&allowed, scope, libc::SECCOMP_FILTER_FLAG_LOG)
}

/// Whether the kernel has filters that can return an error (`CONFIG_SECCOMP_FILTER`; the query itself exists since
/// 4.14).
///
/// # Errors
/// `ENOSYS` or `EINVAL` before 4.14 or without filters; `EOPNOTSUPP` if the kernel lacks only this action.
pub fn probe() -> Result<(), Errno> {
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads one number that outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    check(result).map(drop)
}

/// Installs a filter in front of the existing ones. `seccompiler` could install it too, but without logging of
/// refused calls.
fn install(program: &BpfProgram, scope: Scope, flags: libc::c_ulong) -> Result<(), SeccompError> {
    let flags = match scope {
        Scope::Process => flags | libc::SECCOMP_FILTER_FLAG_TSYNC,
        #[cfg(any(test, feature = "internals"))]
        Scope::Thread => flags,
    };
    let length = program.len().try_into().map_err(|_| Errno::TOOBIG)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: `program` points to `length` instructions. Their layout in seccompiler (`repr(C)`) is that of the
    // kernel's `sock_filter`, as in libc. The kernel copies them during the call and modifies nothing.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    match check(result)? {
        0 => Ok(()),
        // With TSYNC, the result is the id of a thread that could not be synchronised.
        thread => Err(SeccompError::ForeignThread(thread)),
    }
}

/// For tests: makes calls that no confined process may make, with arguments that the kernel would refuse in any case.
#[cfg(test)]
pub(crate) fn dangerous() -> impl Iterator<Item = (&'static str, Result<libc::c_long, Errno>)> {
    const CALLS: &[(&str, libc::c_long)] = &[
        ("add_key", libc::SYS_add_key),
        ("capset", libc::SYS_capset),
        ("chroot", libc::SYS_chroot),
        ("delete_module", libc::SYS_delete_module),
        ("execve", libc::SYS_execve),
        ("execveat", libc::SYS_execveat),
        ("finit_module", libc::SYS_finit_module),
        ("fsmount", libc::SYS_fsmount),
        ("fsopen", libc::SYS_fsopen),
        ("init_module", libc::SYS_init_module),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("kexec_load", libc::SYS_kexec_load),
        ("keyctl", libc::SYS_keyctl),
        ("mount", libc::SYS_mount),
        ("move_mount", libc::SYS_move_mount),
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
        ("open_tree", libc::SYS_open_tree),
        ("personality", libc::SYS_personality),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
        ("pivot_root", libc::SYS_pivot_root),
        ("ptrace", libc::SYS_ptrace),
        ("reboot", libc::SYS_reboot),
        ("request_key", libc::SYS_request_key),
        ("sethostname", libc::SYS_sethostname),
        ("setns", libc::SYS_setns),
        ("setresgid", libc::SYS_setresgid),
        ("setresuid", libc::SYS_setresuid),
        ("settimeofday", libc::SYS_settimeofday),
        ("setuid", libc::SYS_setuid),
        ("swapon", libc::SYS_swapon),
        ("unshare", libc::SYS_unshare),
        ("userfaultfd", libc::SYS_userfaultfd),
    ];
    CALLS.iter().map(|(name, call)| {
        let bad = libc::c_long::MAX;
        // SAFETY: no such descriptor, flag or address exists, so none of these calls has an effect, whether refused
        // or not.
        (*name, check(unsafe { libc::syscall(*call, bad, bad, bad, bad, bad) }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &[Argument] = &[Argument { index: 0, test: Test::Is(libc::AF_UNIX as u32) }];

    /// The calls that a thread needs to exit and to report its result.
    const THREAD: &[libc::c_long] = &[
        libc::SYS_futex,
        libc::SYS_munmap,
        libc::SYS_madvise,
        libc::SYS_exit,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigprocmask,
        libc::SYS_mmap,
        libc::SYS_brk,
        libc::SYS_mprotect,
        libc::SYS_write,
        libc::SYS_close,
    ];

    fn confined<T: Send>(more: &[Rule], absent: &[libc::c_long], run: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let rules = THREAD.iter().copied().map(Rule::any).chain(more.iter().copied());
                allow(rules, absent, Scope::Thread).unwrap();
                run()
            });
            thread.join().unwrap()
        })
    }

    fn raw(call: libc::c_long, arguments: [libc::c_long; 3]) -> Result<libc::c_long, Errno> {
        let [a, b, c] = arguments;
        // SAFETY: the calls in these tests take no pointers, or null.
        check(unsafe { libc::syscall(call, a, b, c) })
    }

    #[test]
    fn calls_that_are_not_listed_are_refused() {
        let rules = [Rule::any(libc::SYS_getpid), Rule { call: libc::SYS_socket, arguments: DOMAIN }];
        confined(&rules, &[libc::SYS_uname], || {
            assert_eq!(raw(libc::SYS_getpid, [0; 3]), Ok(std::process::id().into()));
            assert_eq!(raw(libc::SYS_getppid, [0; 3]), Err(Errno::PERM));
            assert_eq!(raw(libc::SYS_execve, [0; 3]), Err(Errno::PERM));
            assert_eq!(raw(libc::SYS_uname, [0; 3]), Err(Errno::NOSYS));
            let (unix, inet) = (libc::AF_UNIX.into(), libc::AF_INET.into());
            let socket = raw(libc::SYS_socket, [unix, libc::SOCK_DGRAM.into(), 0]).unwrap();
            assert_eq!(raw(libc::SYS_close, [socket, 0, 0]), Ok(0));
            assert_eq!(raw(libc::SYS_socket, [inet, libc::SOCK_DGRAM.into(), 0]), Err(Errno::PERM));
            // The filter ignores the upper half of an `int`, as the kernel does.
            assert_eq!(
                raw(libc::SYS_socket, [(1 << 32) | inet, libc::SOCK_DGRAM.into(), 0]),
                Err(Errno::PERM)
            );
        });
        assert!(raw(libc::SYS_getppid, [0; 3]).is_ok(), "other threads are free");
    }

    #[test]
    fn a_rule_without_conditions_takes_precedence() {
        for rules in [
            [Rule::any(libc::SYS_socket), Rule { call: libc::SYS_socket, arguments: DOMAIN }],
            [Rule { call: libc::SYS_socket, arguments: DOMAIN }, Rule::any(libc::SYS_socket)],
        ] {
            let netlink = [libc::AF_NETLINK.into(), libc::SOCK_RAW.into(), 0];
            confined(&rules, &[], || {
                let socket = raw(libc::SYS_socket, netlink).unwrap();
                raw(libc::SYS_close, [socket, 0, 0]).unwrap();
            });
        }
    }

    #[test]
    fn bits_of_an_argument_are_compared() {
        const NO_EXEC: &[Argument] =
            &[Argument { index: 2, test: Test::LongMasked(libc::PROT_EXEC as u64, 0) }];
        let rules = [Rule { call: libc::SYS_mincore, arguments: NO_EXEC }];
        confined(&rules, &[], || {
            let exec = (libc::PROT_READ | libc::PROT_EXEC).into();
            assert_eq!(raw(libc::SYS_mincore, [1, 0, exec]), Err(Errno::PERM));
            assert_eq!(raw(libc::SYS_mincore, [1, 0, libc::PROT_READ.into()]), Err(Errno::INVAL));
        });
    }
}
