//! Control groups (cgroups(7)): the hierarchies that this process sees, and its group in each.
//!
//! A machine has one of four layouts: version 2 alone, version 1 alone, both (hybrid: systemd mounts version 2 beside
//! the controllers of version 1), or none. A container sees its own group as the root of a mount.

use std::path::{Component, Path, PathBuf};

use super::mounts::Mount;

/// From this limit on, version 1 has none: it shows `LONG_MAX`, rounded down to the size of a page.
const NO_LIMIT: u64 = 1 << 62;
/// Where the hierarchies are whose limits count. Reading them elsewhere could wait for another file system.
const USUAL: &str = "/sys/fs/cgroup";

/// The hierarchies that are mounted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cgroups(Vec<Hierarchy>);

#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Where it is mounted.
    at: PathBuf,
    /// The directory of this process's group; None if the group is not below the mount.
    own: Option<PathBuf>,
    /// Controllers and options of a hierarchy of version 1 (`name=systemd` included); None for version 2.
    controllers: Option<Vec<String>>,
}

/// Which versions are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// None.
    None,
    /// Version 1 alone.
    V1,
    /// Version 2 beside controllers of version 1.
    Hybrid,
    /// Version 2 alone.
    V2,
}

impl Cgroups {
    /// The hierarchies below `/sys/fs/cgroup`. Empty if /proc cannot be read.
    pub fn usual() -> Self {
        // Users choose names of groups.
        let groups = std::fs::read("/proc/self/cgroup").unwrap_or_default();
        let mut mounts = Mount::all().unwrap_or_default();
        mounts.retain(|mount| mount.at.starts_with(USUAL));
        Self::of(&mounts, &String::from_utf8_lossy(&groups))
    }

    /// The hierarchies among these mounts. `groups` is the text of `/proc/PID/cgroup`.
    pub fn of(mounts: &[Mount], groups: &str) -> Self {
        let hierarchies = mounts.iter().filter_map(|mount| {
            let controllers = match mount.fs_type.as_str() {
                "cgroup2" => None,
                "cgroup" => Some(mount.super_options.split(',').map(str::to_owned).collect::<Vec<_>>()),
                _ => return None,
            };
            let group = groups.lines().find_map(|line| group_in(line, controllers.as_deref()));
            let below = group.and_then(|group| Path::new(group).strip_prefix(&mount.root).ok());
            // The kernel writes groups outside of the cgroup namespace with `..`.
            let below = below.filter(|below| !below.components().any(|part| part == Component::ParentDir));
            let own = below.map(|below| mount.at.join(below));
            Some(Hierarchy { at: mount.at.clone(), own, controllers })
        });
        Self(hierarchies.collect())
    }

    /// Which versions are mounted.
    pub fn layout(&self) -> Layout {
        let has = |unified: bool| self.0.iter().any(|hierarchy| hierarchy.controllers.is_none() == unified);
        match (has(true), has(false)) {
            (false, false) => Layout::None,
            (false, true) => Layout::V1,
            (true, true) => Layout::Hybrid,
            (true, false) => Layout::V2,
        }
    }

    /// Where version 2 is mounted.
    pub fn unified(&self) -> Option<&Path> {
        let unified = self.0.iter().find(|hierarchy| hierarchy.controllers.is_none())?;
        Some(&unified.at)
    }

    /// The memory in bytes that the limits of this process's groups leave; None without a limit. Pages of files count
    /// as left, because the kernel drops them first.
    pub fn memory_left(&self) -> Option<u64> {
        let left = self.0.iter().flat_map(|hierarchy| {
            let files = match &hierarchy.controllers {
                None => &UNIFIED,
                Some(controllers) if controllers.iter().any(|name| name == "memory") => &MEMORY,
                Some(_) => return Vec::new(),
            };
            let Some(own) = &hierarchy.own else { return Vec::new() };
            let groups = own.ancestors().take_while(|group| group.starts_with(&hierarchy.at));
            groups.filter_map(|group| files.left(group)).collect()
        });
        left.min()
    }
}

/// The names of a group's files that tell its memory.
struct MemoryFiles {
    limit: &'static str,
    usage: &'static str,
    /// Words of `memory.stat` with the bytes of files, of the group and those below it.
    files: [&'static str; 2],
}

/// Version 2.
const UNIFIED: MemoryFiles =
    MemoryFiles { limit: "memory.max", usage: "memory.current", files: ["active_file", "inactive_file"] };
/// Version 1.
const MEMORY: MemoryFiles = MemoryFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_active_file", "total_inactive_file"],
};

impl MemoryFiles {
    /// The bytes that a group's limit leaves; None without a limit.
    fn left(&self, group: &Path) -> Option<u64> {
        let text = |file: &str| std::fs::read_to_string(group.join(file)).ok();
        let number = |file: &str| text(file)?.trim().parse::<u64>().ok();
        let limit = number(self.limit).filter(|limit| *limit < NO_LIMIT)?;
        let stat = text("memory.stat").unwrap_or_default();
        let dropped = |name: &str| {
            let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
        };
        let files = self.files.iter().map(|name| dropped(name)).fold(0, u64::saturating_add);
        Some(limit.saturating_sub(number(self.usage)?.saturating_sub(files)))
    }
}

/// The group in a line of `/proc/PID/cgroup`, `NUMBER:CONTROLLERS:GROUP`, if the line is that of the hierarchy.
fn group_in<'a>(line: &'a str, controllers: Option<&[String]>) -> Option<&'a str> {
    let (number, rest) = line.split_once(':')?;
    let (names, group) = rest.split_once(':')?;
    let same = match controllers {
        None => number == "0" && names.is_empty(),
        Some(controllers) => names.split(',').any(|name| controllers.iter().any(|other| other == name)),
    };
    same.then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mounts of /proc/self/mountinfo and groups of /proc/self/cgroup, as machines have them.
    fn cgroups(mounts: &str, groups: &str) -> Cgroups {
        Cgroups::of(&Mount::parse_all(mounts.as_bytes()).collect::<Vec<_>>(), groups)
    }

    const DEBIAN_12: &str =
        "25 24 0:22 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "\
        31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const DOCKER_V1: &str = "\
        700 699 0:32 /docker/f00 /sys/fs/cgroup/memory ro,nosuid master:14 - cgroup cgroup rw,memory\n\
        701 699 0:29 /docker/f00 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";

    #[test]
    fn layouts_are_told_apart() {
        let debian = cgroups(DEBIAN_12, "0::/system.slice/tracer.service\n");
        assert_eq!(debian.layout(), Layout::V2);
        let own = |cgroups: &Cgroups, at: usize| {
            cgroups.0[at].own.as_ref().map(|own| own.to_str().unwrap().to_owned())
        };
        assert_eq!(own(&debian, 0).unwrap(), "/sys/fs/cgroup/system.slice/tracer.service");
        let groups = "4:memory:/a/b\n3:cpu,cpuacct:/c\n1:name=systemd:/init.scope\n0::/d\n";
        let hybrid = cgroups(HYBRID, groups);
        assert_eq!(hybrid.layout(), Layout::Hybrid);
        assert_eq!(hybrid.unified(), Some(Path::new("/sys/fs/cgroup/unified")));
        for (at, group) in
            ["cpu,cpuacct/c", "memory/a/b", "systemd/init.scope", "unified/d"].iter().enumerate()
        {
            assert_eq!(own(&hybrid, at).unwrap(), format!("/sys/fs/cgroup/{group}"));
        }
        // The container's group is the root of the mount. With a namespace of its own, both are `/`.
        let docker = cgroups(DOCKER_V1, "4:memory:/docker/f00\n3:cpu,cpuacct:/docker/f00/x\n");
        assert_eq!((docker.layout(), docker.unified()), (Layout::V1, None));
        assert_eq!(own(&docker, 0).unwrap(), "/sys/fs/cgroup/memory/");
        assert_eq!(own(&docker, 1).unwrap(), "/sys/fs/cgroup/cpu,cpuacct/x");
        // A group outside of the mount or of the namespace has no directory here.
        assert_eq!(own(&cgroups(DOCKER_V1, "4:memory:/other\n"), 0), None);
        assert_eq!(own(&cgroups(DEBIAN_12, "0::/../other\n"), 0), None);
        assert_eq!(cgroups("", "").layout(), Layout::None);
        assert_eq!(own(&cgroups(DEBIAN_12, "x\n0\n:\n"), 0), None);
    }

    #[test]
    fn the_smallest_limit_of_own_groups_counts() {
        let dir = std::env::temp_dir().join(format!("tracer-cgroups-{}", std::process::id()));
        let group = dir.join("a/b");
        std::fs::create_dir_all(&group).unwrap();
        for (files, fs_type, options, groups) in
            [(&UNIFIED, "cgroup2", "", "0::/a/b\n"), (&MEMORY, "cgroup", ",memory", "7:memory:/a/b\n")]
        {
            let mount = format!("1 2 0:3 / {} rw - {fs_type} none rw{options}\n", dir.display());
            let cgroups = cgroups(&mount, groups);
            let set = |group: &Path, limit: &str, usage: &str| {
                std::fs::write(group.join(files.limit), limit).unwrap();
                std::fs::write(group.join(files.usage), usage).unwrap();
            };
            assert_eq!(cgroups.memory_left(), None);
            for (limit, left) in [
                ("max\n", None),
                ("9223372036854771712\n", None),
                ("9223372036854710272\n", None),
                ("400\n", Some(300)),
                ("10\n", Some(0)),
            ] {
                set(&group, limit, "100\n");
                assert_eq!(cgroups.memory_left(), left, "{limit}");
            }
            // A parent's limit counts, less the pages of files.
            set(&group, "400\n", "100\n");
            set(&dir.join("a"), "1000\n", "990\n");
            assert_eq!(cgroups.memory_left(), Some(10));
            let [active, inactive] = files.files;
            std::fs::write(dir.join("a/memory.stat"), format!("x{active} 500\n{active} 30\n{inactive} 60\n"))
                .unwrap();
            assert_eq!(cgroups.memory_left(), Some(100));
            for file in [files.limit, files.usage, "memory.stat"] {
                for group in [&group, &dir.join("a")] {
                    let _ = std::fs::remove_file(group.join(file));
                }
            }
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
