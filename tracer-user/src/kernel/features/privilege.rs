//! Privileges of this process: capabilities, lockdown, security modules and the sysctls that restrict tracing.

use std::fs::read_to_string;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use rustix::thread::{CapabilitySet, capabilities};

use super::advice::Refuser;
use super::feature::{Feature, Group, feature};
use super::surroundings::Surroundings;
use crate::kernel::Answer;
use crate::sys::{
    Errno, mount,
    process::{landlock, seccomp},
};

/// The facts that explain the kernel's refusals, read once.
pub(super) struct Privileges {
    effective: Option<CapabilitySet>,
    /// Whether this is the initial user namespace, as far as its uid map shows.
    initial_namespace: bool,
    /// Active security modules; None if securityfs does not list them.
    modules: Option<String>,
    lockdown: Lockdown,
    /// Whether this process began with a filter of system calls.
    is_filtered: bool,
    /// Whether SELinux is active and not known to be permissive.
    selinux_enforces: bool,
}

enum Lockdown {
    /// The mode in force.
    Mode(String),
    Unknown(String),
}

/// Reads a file of securityfs: from the visible mount, else from a detached one, because distributions mount it at
/// boot and containers do not. None if securityfs is available and the file is not.
fn security(name: &str) -> std::io::Result<Option<String>> {
    let found = match read_to_string(format!("/sys/kernel/security/{name}")) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let root = mount::detached("securityfs")?;
            read_to_string(format!("/proc/self/fd/{}/{name}", root.as_raw_fd()))
        }
        found => found,
    };
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

impl Privileges {
    pub(super) fn read(surroundings: &Surroundings) -> Self {
        let uid_map = read_to_string("/proc/self/uid_map").unwrap_or_default();
        let words: Vec<_> = uid_map.split_whitespace().collect();
        Self {
            effective: capabilities(None).ok().map(|sets| sets.effective),
            initial_namespace: words == ["0", "0", "4294967295"],
            modules: security("lsm").ok().flatten().map(|text| text.trim().to_owned()),
            lockdown: Lockdown::of(security("lockdown")),
            is_filtered: surroundings.is_filtered,
            selinux_enforces: surroundings
                .selinux
                .as_ref()
                .is_some_and(|selinux| selinux.enforces != Some(false)),
        }
    }

    pub(super) fn has(&self, wanted: CapabilitySet) -> bool {
        self.effective.is_some_and(|set| set.contains(wanted) || set.contains(CapabilitySet::SYS_ADMIN))
    }

    /// The cause of `EPERM` or `EACCES` for a program or map.
    pub(super) fn refuser(&self) -> Refuser {
        let needed = [(CapabilitySet::BPF, "CAP_BPF"), (CapabilitySet::PERFMON, "CAP_PERFMON")];
        let lacks: Vec<_> =
            needed.into_iter().filter(|(set, _)| !self.has(*set)).map(|(_, name)| name).collect();
        if !lacks.is_empty() {
            return Refuser::Capabilities(lacks);
        }
        if !self.initial_namespace {
            return Refuser::UserNamespace;
        }
        match &self.lockdown {
            Lockdown::Mode(mode) if mode == "confidentiality" => Refuser::Lockdown,
            _ if self.is_filtered => Refuser::Filter,
            _ if self.selinux_enforces => Refuser::SeLinux,
            _ => Refuser::SecurityModule(self.modules.clone()),
        }
    }
}

impl Lockdown {
    /// Reads the file of securityfs, which has the mode in force in brackets.
    fn of(file: std::io::Result<Option<String>>) -> Self {
        match file {
            Ok(Some(text)) => match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
                Some((mode, _)) => Self::Mode(mode.to_owned()),
                None => Self::Unknown(format!("securityfs says {:?}", text.trim())),
            },
            Ok(None) => Self::Mode("not built or not active".to_owned()),
            Err(error) => Self::Unknown(format!("securityfs: {error}")),
        }
    }
}

pub(super) fn features(privileges: &Privileges) -> Vec<Feature> {
    let mut features = Vec::new();
    let mut push = |name, purpose, since, answer, detail| {
        features.push(feature(Group::Privileges, name, purpose, since, answer, detail));
    };
    for (name, set, purpose, since) in CAPABILITIES {
        let answer = match privileges.effective {
            None => Answer::unknown("capget(2) failed"),
            Some(held) if held.contains(set) => Answer::Yes,
            Some(held) if held.contains(CapabilitySet::SYS_ADMIN) && covered(set) => Answer::Yes,
            Some(_) => Answer::no("not in the effective set"),
        };
        push(name, purpose, since, answer, None);
    }
    push(
        "initial_userns",
        "most kinds of BPF programs and the tracefs mount",
        "user namespaces, 3.8; BPF tokens excepted, 6.9",
        if privileges.initial_namespace {
            Answer::Yes
        } else {
            Answer::no("the uid map of this process is not the whole one")
        },
        None,
    );
    let (answer, mode) = match &privileges.lockdown {
        Lockdown::Mode(mode) if mode == "confidentiality" => {
            (Answer::no("programs may not read kernel memory"), Some(mode.clone()))
        }
        // Integrity mode prevents changes to the kernel, which no program here makes.
        Lockdown::Mode(mode) => (Answer::Yes, Some(mode.clone())),
        Lockdown::Unknown(why) => (Answer::unknown(why.clone()), None),
    };
    let purpose = "reading kernel memory from programs (yes: not locked down against it)";
    push("lockdown_open", purpose, "lockdown, 5.4 (9d1f8be5cf42)", answer, mode);
    push(
        "no_new_privs",
        "dropping privileges for good",
        "3.5 (259e5e6c75a9)",
        match rustix::thread::no_new_privs() {
            Ok(_) => Answer::Yes,
            Err(Errno::INVAL) => Answer::no("this kernel lacks it"),
            Err(errno) => Answer::unknown(format!("prctl(2): {errno}")),
        },
        None,
    );
    push(
        "seccomp_filter",
        "filters of system calls in the daemon, record, hist and list",
        "3.5 (CONFIG_SECCOMP_FILTER); the query needs 4.14",
        match seccomp::probe() {
            Ok(()) => Answer::Yes,
            Err(Errno::OPNOTSUPP) => Answer::no("the kernel has no filters that answer with an error"),
            // Kernels before 4.14 have filters but lack the query.
            Err(errno) => Answer::unknown(format!("seccomp(2): {errno}")),
        },
        None,
    );
    push(
        "landlock",
        "limits on the files that processes of the daemon can open",
        "5.13 (CONFIG_SECURITY_LANDLOCK, and landlock in lsm=)",
        match landlock::probe() {
            Ok(_) => Answer::Yes,
            Err(Errno::NOSYS) => Answer::no("this kernel lacks it"),
            Err(Errno::OPNOTSUPP) => Answer::no("it was not enabled at boot"),
            Err(errno) => Answer::unknown(format!("landlock_create_ruleset(2): {errno}")),
        },
        None,
    );
    for (name, path, purpose, since) in SYSCTLS {
        let found = read_to_string(path);
        let answer = match &found {
            Ok(_) => Answer::Yes,
            Err(error) if error.kind() == ErrorKind::NotFound => Answer::no("this kernel lacks it"),
            Err(error) => Answer::unknown(format!("{path}: {error}")),
        };
        push(name, purpose, since, answer, found.ok().map(|text| text.trim().to_owned()));
    }
    let answer = match &privileges.modules {
        Some(_) => Answer::Yes,
        None => Answer::unknown("securityfs is not mounted and may not be"),
    };
    let purpose = "naming the security module that refuses";
    push("security_modules", purpose, "securityfs, 4.11", answer, privileges.modules.clone());
    features
}

/// Whether `CAP_SYS_ADMIN` implies this capability (`bpf_capable()`, `perfmon_capable()`, 5.8).
fn covered(set: CapabilitySet) -> bool {
    set == CapabilitySet::BPF || set == CapabilitySet::PERFMON
}

const CAPABILITIES: [(&str, CapabilitySet, &str, &str); 5] = [
    ("cap_bpf", CapabilitySet::BPF, "loading programs, making maps", "5.8 (a17b53c4a4b5)"),
    (
        "cap_perfmon",
        CapabilitySet::PERFMON,
        "attaching to tracepoints, reading kernel memory",
        "5.8 (980737282232)",
    ),
    ("cap_sys_admin", CapabilitySet::SYS_ADMIN, "mounting tracefs, program ids", "2.2"),
    ("cap_syslog", CapabilitySet::SYSLOG, "kernel addresses in /proc/kallsyms", "2.6.38"),
    ("cap_sys_resource", CapabilitySet::SYS_RESOURCE, "raising RLIMIT_MEMLOCK on kernels before 5.11", "2.2"),
];

const SYSCTLS: [(&str, &str, &str, &str); 5] = [
    (
        "unprivileged_bpf_disabled",
        "/proc/sys/kernel/unprivileged_bpf_disabled",
        "0: everybody may load some programs; 1, 2: only CAP_BPF",
        "4.4; 2 since 5.13",
    ),
    (
        "perf_event_paranoid",
        "/proc/sys/kernel/perf_event_paranoid",
        "2 and more: tracepoints need CAP_PERFMON",
        "2.6.31 (CONFIG_PERF_EVENTS)",
    ),
    (
        "kptr_restrict",
        "/proc/sys/kernel/kptr_restrict",
        "2: kernel addresses hidden from everybody",
        "2.6.38",
    ),
    (
        "bpf_jit_enable",
        "/proc/sys/net/core/bpf_jit_enable",
        "0: programs are interpreted, several times slower",
        "3.0 (CONFIG_BPF_JIT)",
    ),
    (
        "ftrace_enabled",
        "/proc/sys/kernel/ftrace_enabled",
        "0: no fentry, no kprobe.multi",
        "2.6.27 (CONFIG_FUNCTION_TRACER)",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// All capabilities, in a kernel with this lockdown.
    fn privileges(lockdown: &str) -> Privileges {
        Privileges {
            effective: Some(CapabilitySet::all()),
            initial_namespace: true,
            modules: Some("lockdown,capability".to_owned()),
            lockdown: Lockdown::of(Ok(Some(lockdown.to_owned()))),
            is_filtered: false,
            selinux_enforces: false,
        }
    }

    #[test]
    fn the_mode_of_lockdown_decides() {
        for (text, answer, refuser) in [
            ("[none] integrity confidentiality\n", Answer::Yes, "by a security module"),
            ("none [integrity] confidentiality\n", Answer::Yes, "by a security module"),
            (
                "none integrity [confidentiality]\n",
                Answer::no("programs may not read kernel memory"),
                "locked down",
            ),
            ("x\n", Answer::unknown("securityfs says \"x\""), "by a security module"),
        ] {
            let privileges = privileges(text);
            let all = features(&privileges);
            let found = all.iter().find(|feature| feature.name == "lockdown_open").unwrap();
            assert_eq!(found.answer, answer, "{text}");
            assert!(privileges.refuser().reason().contains(refuser), "{text}");
        }
    }

    #[test]
    fn the_nearest_refuser_is_named() {
        let all = privileges("[none]");
        let selinux = Privileges { selinux_enforces: true, ..all };
        assert_eq!(selinux.refuser(), Refuser::SeLinux);
        let filtered = Privileges { is_filtered: true, ..selinux };
        assert_eq!(filtered.refuser(), Refuser::Filter);
        let inside = Privileges { initial_namespace: false, ..filtered };
        assert_eq!(inside.refuser(), Refuser::UserNamespace);
        let user = Privileges { effective: Some(CapabilitySet::PERFMON), ..inside };
        assert_eq!(user.refuser(), Refuser::Capabilities(vec!["CAP_BPF"]));
    }
}
