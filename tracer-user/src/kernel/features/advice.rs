//! What to do about a feature that is absent, for features that something other than the kernel's version decides.

use super::feature::Feature;
use super::surroundings::Surroundings;
use crate::kernel::{Answer, tracefs::NOT_BUILT};

/// The cause of `EPERM` or `EACCES` for a program or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refuser {
    /// This process lacks these capabilities.
    Capabilities(Vec<&'static str>),
    UserNamespace,
    /// The mode confidentiality.
    Lockdown,
    /// A filter of system calls.
    Filter,
    SeLinux,
    /// One of these security modules, if their names are known.
    SecurityModule(Option<String>),
}

impl Refuser {
    /// The reason of a "no".
    pub(super) fn reason(&self) -> String {
        const ALL_HELD: &str = "refused, with all capabilities held";
        match self {
            Self::Capabilities(lacks) => format!("refused: this process lacks {}", lacks.join(" and ")),
            Self::UserNamespace => "refused: this is not the initial user namespace".to_owned(),
            Self::Lockdown => format!("{ALL_HELD}: the kernel is locked down (confidentiality)"),
            Self::Filter => format!("{ALL_HELD}: this process has a filter of system calls (seccomp)"),
            Self::SeLinux => format!("{ALL_HELD}: SELinux is active"),
            Self::SecurityModule(Some(modules)) => {
                format!("{ALL_HELD}: by a security module (active: {modules})")
            }
            Self::SecurityModule(None) => format!("{ALL_HELD}: by a security module of this machine"),
        }
    }

    fn advice(&self) -> &'static str {
        match self {
            Self::Capabilities(_) => CAPABILITIES,
            Self::UserNamespace => USER_NAMESPACE,
            Self::Lockdown => LOCKDOWN,
            Self::Filter => {
                "run tracer without that filter: --security-opt seccomp=unconfined for a container, a SystemCallFilter \
                 with bpf and perf_event_open for a service"
            }
            Self::SeLinux => {
                "see what is denied by ausearch -m AVC -ts recent; its domain needs the classes bpf (map_create, \
                 map_read, map_write, prog_load, prog_run) and perf_event (open, cpu, kernel, tracepoint, read), and \
                 capability2 (bpf, perfmon)"
            }
            Self::SecurityModule(_) => {
                "ask who configures the security module; tracer works without the refused features where possible"
            }
        }
    }
}

const CAPABILITIES: &str = "run tracer as root, or with these capabilities: setcap cap_bpf,cap_perfmon,cap_syslog+ep on \
    the program, --cap-add BPF --cap-add PERFMON --cap-add SYSLOG for a container";
const SYS_ADMIN: &str = "only `tracer mount`, `exec` and a tracefs that is not mounted need it: run tracer as root, or a \
    container with --cap-add SYS_ADMIN";
const USER_NAMESPACE: &str = "run tracer outside of the user namespace: as root of the host, or in a container that has none of its own";
const LOCKDOWN: &str =
    "boot without lockdown=confidentiality; integrity, the usual mode with Secure Boot, permits tracing";
const SYSFS: &str = "mount -t sysfs sysfs /sys";
const TRACEFS: &str = "as root: mount -t tracefs tracefs /sys/kernel/tracing; for a container, pass on the host's: -v \
    /sys/kernel/tracing:/sys/kernel/tracing";
const OPEN_TRACEFS: &str =
    "run tracer as root, or let a group in: mount -o remount,mode=750,gid=GROUP /sys/kernel/tracing";

/// What to do about a feature; None if nothing helps, or nothing needs help.
pub(super) fn advice(
    feature: &Feature,
    refuser: &Refuser,
    surroundings: &Surroundings,
) -> Option<&'static str> {
    let detail = feature.detail.as_deref().unwrap_or_default();
    // Settings that are there and switch something off.
    match (feature.name, detail) {
        ("bpf_jit_enable", "0") => return Some("sysctl net.core.bpf_jit_enable=1"),
        ("ftrace_enabled", "0") => return Some("sysctl kernel.ftrace_enabled=1"),
        ("kptr_restrict", "2") => return Some("sysctl kernel.kptr_restrict=1"),
        _ => {}
    }
    let Answer::No(why) = &feature.answer else { return None };
    if *why == refuser.reason() {
        return Some(refuser.advice());
    }
    match feature.name {
        "cap_bpf" | "cap_perfmon" | "cap_syslog" => Some(CAPABILITIES),
        "cap_sys_admin" => Some(SYS_ADMIN),
        "initial_userns" => Some(USER_NAMESPACE),
        "lockdown_open" => Some(LOCKDOWN),
        "perf_tracepoint" | "perf_kprobe" | "perf_uprobe" | "btf" if !surroundings.present.sysfs => {
            Some(SYSFS)
        }
        "btf" => Some(
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y, as distributions build it; without it, trace events with \
             their filters, triggers and histograms work, and raw arguments, typed probes and fentry do not",
        ),
        "tracefs" if why.ends_with(NOT_BUILT) => {
            Some("use a kernel with CONFIG_TRACING=y and CONFIG_EVENT_TRACING=y")
        }
        "tracefs" if surroundings.present.tracefs => Some(OPEN_TRACEFS),
        "tracefs" => Some(TRACEFS),
        "fuse" => Some("modprobe fuse; for a container: --device /dev/fuse"),
        "cgroups" if surroundings.present.cgroups => {
            Some("mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup")
        }
        "apparmor" => Some(
            "if mounts or probes of programs are refused: aa-complain the profile, or --security-opt \
             apparmor=unconfined for a container",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::feature::{Group, feature};
    use super::super::surroundings::Present;
    use super::*;
    use crate::kernel::Error;

    fn present(present: Present) -> Surroundings {
        Surroundings { present, ..Surroundings::default() }
    }

    fn within(name: &'static str, answer: Answer, surroundings: &Surroundings) -> Option<&'static str> {
        advice(&feature(Group::Facts, name, "x", "x", answer, None), &Refuser::SeLinux, surroundings)
    }

    fn of(name: &'static str, answer: Answer) -> Option<&'static str> {
        within(name, answer, &present(Present { sysfs: true, ..Present::default() }))
    }

    #[test]
    fn what_is_there_needs_no_advice_unless_it_is_off() {
        assert_eq!(of("btf", Answer::Yes), None);
        assert_eq!(of("sleepable_calls", Answer::no("this kernel lacks it")), None);
        for (value, helps) in [("0", true), ("1", false)] {
            let setting =
                feature(Group::Facts, "ftrace_enabled", "x", "x", Answer::Yes, Some(value.to_owned()));
            let said = advice(&setting, &Refuser::SeLinux, &Surroundings::default());
            assert_eq!(said.is_some_and(|said| said.starts_with("sysctl")), helps);
        }
    }

    #[test]
    fn missing_files_name_the_mount_or_the_setting() {
        let no = || Answer::no("absent");
        assert!(of("btf", no()).unwrap().contains("CONFIG_DEBUG_INFO_BTF=y"));
        assert_eq!(within("btf", no(), &Surroundings::default()), Some(SYSFS));
        let error = Error::Withheld { fact: "tracefs", why: NOT_BUILT.into() };
        assert!(of("tracefs", Answer::no(error.to_string())).unwrap().contains("CONFIG_EVENT_TRACING"));
        assert_eq!(of("tracefs", no()), Some(TRACEFS));
        let mounted = present(Present { tracefs: true, ..Present::default() });
        assert_eq!(within("tracefs", no(), &mounted), Some(OPEN_TRACEFS));
        assert!(of("fuse", no()).unwrap().starts_with("modprobe"));
        let groups = present(Present { cgroups: true, ..Present::default() });
        assert!(within("cgroups", no(), &groups).unwrap().contains("-t cgroup2"));
        assert_eq!(of("cgroups", no()), None, "a kernel without control groups");
        let unread = Answer::unknown("securityfs: EPERM");
        assert_eq!([of("lockdown_open", unread.clone()), of("btf", unread)], [None, None]);
    }

    #[test]
    fn each_refuser_has_advice_of_its_own() {
        let refusers = [
            Refuser::Capabilities(vec!["CAP_BPF"]),
            Refuser::UserNamespace,
            Refuser::Lockdown,
            Refuser::Filter,
            Refuser::SeLinux,
            Refuser::SecurityModule(Some("bpf".to_owned())),
        ];
        let mut all: Vec<_> = refusers.iter().map(Refuser::advice).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), refusers.len());
        let said = of("bpf", Answer::no(Refuser::SeLinux.reason()));
        assert_eq!(said, Some(Refuser::SeLinux.advice()));
    }
}
