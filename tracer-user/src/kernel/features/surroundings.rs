//! What a distribution or container sets up around this process: control groups, security modules and their policy,
//! filters of system calls, the mount of sysfs.

use std::path::Path;

use super::feature::{Feature, Group, feature};
use crate::kernel::Answer;
use crate::kernel::proc::cgroups::{Cgroups, Layout};
use crate::kernel::proc::mounts::Mount;

/// The surroundings of this process.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    pub(super) cgroups: Cgroups,
    /// None if SELinux is not active.
    pub(super) selinux: Option<SeLinux>,
    /// None if AppArmor is not active.
    pub(super) apparmor: Option<AppArmor>,
    /// Whether a filter of system calls was there when this process began.
    pub(super) is_filtered: bool,
    pub(super) present: Present,
}

/// What is there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Present {
    /// sysfs at /sys.
    pub(super) sysfs: bool,
    /// tracefs at /sys/kernel/tracing.
    pub(super) tracefs: bool,
    /// Control groups in the kernel.
    pub(super) cgroups: bool,
}

/// The state of SELinux.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SeLinux {
    /// Whether it enforces its policy; None if its files are hidden, as in containers.
    pub(super) enforces: Option<bool>,
    /// The context of this process.
    context: String,
}

/// The state of AppArmor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AppArmor {
    /// The profile of this process.
    profile: String,
    /// Whether the profile refuses anything. Others only log.
    enforces: bool,
}

impl Surroundings {
    /// Reads them from the files below `root`, which is `/` except in tests.
    pub(super) fn read(root: &Path) -> Self {
        let text = |file: &str| {
            let bytes = std::fs::read(root.join(file)).ok()?;
            let text = String::from_utf8_lossy(&bytes);
            Some(text.trim_matches(['\n', '\0', ' ']).to_owned())
        };
        let mounts = std::fs::read(root.join("proc/self/mountinfo")).unwrap_or_default();
        let mounts: Vec<_> = Mount::parse_all(&mounts).collect();
        let groups = text("proc/self/cgroup");
        let context = text("proc/self/attr/current").filter(|text| is_context(text));
        let status = text("proc/self/status").unwrap_or_default();
        let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        Self {
            cgroups: Cgroups::of(&mounts, groups.as_deref().unwrap_or_default()),
            selinux: context.map(|context| SeLinux {
                enforces: text("sys/fs/selinux/enforce").map(|enforce| enforce == "1"),
                context,
            }),
            apparmor: text("sys/module/apparmor/parameters/enabled")
                .filter(|enabled| enabled == "Y")
                .and_then(|_| {
                    // The second file belongs to the first module that is active (until 5.8 to the only one).
                    let own = text("proc/self/attr/apparmor/current");
                    AppArmor::parse(&own.or_else(|| text("proc/self/attr/current"))?)
                }),
            is_filtered: mode.is_some_and(|mode| mode.trim() == "2"),
            present: Present {
                sysfs: root.join("sys/kernel").exists(),
                tracefs: mounts
                    .iter()
                    .any(|mount| mount.fs_type == "tracefs" && mount.at == Path::new("/sys/kernel/tracing")),
                cgroups: groups.is_some(),
            },
        }
    }

    /// The features that they decide.
    pub(super) fn features(&self) -> Vec<Feature> {
        let mut features = Vec::new();
        let mut push = |name, purpose, since, answer, detail| {
            features.push(feature(Group::Surroundings, name, purpose, since, answer, detail));
        };
        let (answer, layout) = match (self.cgroups.layout(), self.cgroups.unified()) {
            (Layout::None, _) if self.present.cgroups => (Answer::no("no control groups are mounted"), None),
            (Layout::None, _) => {
                (Answer::no("the kernel has no control groups, or no /proc is mounted"), None)
            }
            (Layout::V1, _) => (Answer::Yes, Some("version 1".to_owned())),
            (Layout::Hybrid, Some(at)) => {
                (Answer::Yes, Some(format!("version 1, and version 2 at {}", at.display())))
            }
            (_, at) => (Answer::Yes, at.map(|at| format!("version 2 at {}", at.display()))),
        };
        push("cgroups", "the limit of memory that buffers respect", "2.6.24; version 2: 4.5", answer, layout);
        let selinux = self.selinux.as_ref().map_or("not active".to_owned(), |state| {
            let mode = match state.enforces {
                Some(true) => "enforcing",
                Some(false) => "permissive",
                None => "active, its mode is hidden",
            };
            format!("{mode}; this process is {}", state.context)
        });
        let purpose = "programs and maps, unless they are refused below";
        push("selinux", purpose, "2.6.0 (CONFIG_SECURITY_SELINUX)", Answer::Yes, Some(selinux));
        let purpose = "mounts, and reads of the memory of other processes, unless a profile forbids them";
        let (answer, detail) = match &self.apparmor {
            None => (Answer::Yes, "not active".to_owned()),
            Some(AppArmor { profile, enforces: true }) => {
                (Answer::no(format!("this process has the profile {profile}")), "enforce".to_owned())
            }
            Some(AppArmor { profile, enforces: false }) => (Answer::Yes, profile.clone()),
        };
        push("apparmor", purpose, "no profile, or one in complain mode", answer, Some(detail));
        features
    }
}

/// Whether a text is a context of SELinux: user, role, type and level.
fn is_context(text: &str) -> bool {
    text.matches(':').count() >= 2 && AppArmor::parse(text).is_none()
}

impl AppArmor {
    /// Reads the profile of a process, `NAME (MODE)` or `unconfined`. None if another module owns the file.
    fn parse(text: &str) -> Option<Self> {
        if text == "unconfined" {
            return Some(Self { profile: text.to_owned(), enforces: false });
        }
        let (profile, mode) = text.strip_suffix(')')?.rsplit_once(" (")?;
        Some(Self { profile: profile.to_owned(), enforces: !matches!(mode, "complain" | "unconfined") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a machine.
    fn machine(name: &str, files: &[(&str, &str)]) -> Surroundings {
        let root = std::env::temp_dir().join(format!("tracer-surroundings-{name}-{}", std::process::id()));
        for (file, text) in files {
            let file = root.join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let surroundings = Surroundings::read(&root);
        std::fs::remove_dir_all(&root).unwrap();
        surroundings
    }

    fn said(surroundings: &Surroundings) -> Vec<(Answer, String)> {
        let features = surroundings.features().into_iter();
        features.map(|feature| (feature.answer, feature.detail.unwrap_or_default())).collect()
    }

    fn yes(detail: &str) -> (Answer, String) {
        (Answer::Yes, detail.to_owned())
    }

    const V2: &str = "25 24 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_host_without_security_modules() {
        let debian = machine(
            "debian",
            &[
                (
                    "proc/self/mountinfo",
                    &format!("{V2}42 23 0:13 / /sys/kernel/tracing rw - tracefs tracefs rw\n"),
                ),
                ("proc/self/status", "Name:\ttracer\nSeccomp:\t0\nSeccomp_filters:\t0\n"),
                ("proc/self/attr/current", "unconfined\n"),
                ("sys/module/apparmor/parameters/enabled", "Y\n"),
                ("sys/kernel/notes", ""),
            ],
        );
        let expected = [yes("version 2 at /sys/fs/cgroup"), yes("not active"), yes("unconfined")];
        assert_eq!(said(&debian), expected);
        assert!(debian.present.sysfs && debian.present.tracefs && !debian.is_filtered);
        let none = machine("none", &[("proc/self/mountinfo", ""), ("proc/self/cgroup", "0::/\n")]);
        let no_groups = (Answer::no("no control groups are mounted"), String::new());
        assert_eq!(said(&none), [no_groups, yes("not active"), yes("not active")]);
        assert!(!none.present.sysfs && !none.present.tracefs);
    }

    #[test]
    fn a_container_below_apparmor_and_a_filter() {
        let docker = machine(
            "docker",
            &[
                (
                    "proc/self/mountinfo",
                    "700 699 0:32 /docker/f00 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
                ),
                ("proc/self/status", "Seccomp:\t2\nSeccomp_filters:\t1\n"),
                ("proc/self/attr/apparmor/current", "docker-default (enforce)\n"),
                ("sys/module/apparmor/parameters/enabled", "Y\n"),
            ],
        );
        let confined = (Answer::no("this process has the profile docker-default"), "enforce".to_owned());
        assert_eq!(said(&docker), [yes("version 1"), yes("not active"), confined]);
        assert!(docker.is_filtered);
        let complain = AppArmor { profile: "a (b)".to_owned(), enforces: false };
        assert_eq!(AppArmor::parse("a (b) (complain)"), Some(complain));
        assert_eq!(AppArmor::parse("system_u:system_r:init_t:s0"), None);
        assert!(AppArmor::parse("a//&b (mixed)").unwrap().enforces);
    }

    #[test]
    fn a_host_that_enforces_selinux() {
        let hybrid = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let context = "system_u:system_r:initrc_t:s0";
        let files = [
            ("proc/self/mountinfo", hybrid),
            ("proc/self/attr/current", "system_u:system_r:initrc_t:s0\0"),
            ("sys/fs/selinux/enforce", "1"),
        ];
        let fedora = machine("fedora", &files);
        let said_of = [
            yes("version 1, and version 2 at /sys/fs/cgroup/unified"),
            yes(&format!("enforcing; this process is {context}")),
            yes("not active"),
        ];
        assert_eq!(said(&fedora), said_of);
        let container = machine("container", &files[1..2]);
        assert_eq!(
            said(&container)[1],
            yes(&format!("active, its mode is hidden; this process is {context}"))
        );
        let permissive = machine("permissive", &[files[1], ("sys/fs/selinux/enforce", "0")]);
        assert_eq!(said(&permissive)[1], yes(&format!("permissive; this process is {context}")));
    }
}
