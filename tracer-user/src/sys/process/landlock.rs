//! Limits on the files that a process can open (Landlock, landlock(7), 5.13).
//!
//! A limit applies to the calling thread and the threads that it starts, so a process sets it while it has one thread. It
//! cannot be removed. Descriptors that are open already keep working. A thread with a limit also cannot change mounts
//! (`EPERM`), and cannot reach the memory and many files of `/proc` of processes outside (`EPERM` or `EACCES`), whatever
//! its capabilities. Processes that need one of these have no limit.

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::sys::{Errno, check};

/// The newest interface whose limits are requested.
const NEWEST: ABI = ABI::V6;

/// What a process may do with a directory and all files below it, or with one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// Read files and directories.
    Read,
    /// Create, write, rename and remove regular files.
    Replace,
}

impl FileAccess {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => AccessFs::ReadFile | AccessFs::ReadDir,
            Self::Replace => {
                AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg | AccessFs::RemoveFile
            }
        }
    }
}

/// Allows the calling thread, and the threads that it will start, to open only these files. Also prevents signals to
/// other processes and connections to abstract sockets (6.12). Sets `no_new_privs`.
///
/// Returns false if the kernel has no Landlock, or it is not active. Older kernels apply the part of the limit that they
/// have.
///
/// # Errors
/// If the kernel refuses the limit.
pub fn limit(allowed: &[(BorrowedFd<'_>, FileAccess)]) -> Result<bool, RulesetError> {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let ruleset = ruleset.handle_access(AccessFs::from_all(NEWEST))?.scope(Scope::from_all(NEWEST))?;
    let mut ruleset = ruleset.create()?;
    for (place, access) in allowed {
        ruleset = ruleset.add_rule(PathBeneath::new(place, access.rights()))?;
    }
    Ok(ruleset.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// The version of the kernel's interface.
///
/// # Errors
/// `ENOSYS` if the kernel lacks Landlock, `EOPNOTSUPP` if it was disabled at boot.
pub fn probe() -> Result<u32, Errno> {
    // SAFETY: with this flag, the call takes no structure and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    Ok(check(version)? as u32)
}

/// `LANDLOCK_CREATE_RULESET_VERSION`, linux/landlock.h.
const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::ErrorKind,
        os::fd::{AsFd, OwnedFd},
        path::Path,
    };

    use rustix::{
        fs::{Mode, OFlags, open},
        mount::{UnmountFlags, unmount},
    };

    use super::*;

    fn place(path: &Path) -> OwnedFd {
        open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    /// Runs a function in a thread with a limit; `None` where the kernel has none.
    fn limited<T: Send>(allowed: &[(&Path, FileAccess)], run: impl FnOnce() -> T + Send) -> Option<T> {
        if let Err(errno) = probe() {
            eprintln!("skipped: landlock: {errno}");
            return None;
        }
        let places: Vec<_> = allowed.iter().map(|(path, access)| (place(path), *access)).collect();
        let act = move || {
            // A mount that a test removes by mistake stays outside.
            let _ = crate::sys::mount::private_namespace();
            let allowed: Vec<_> = places.iter().map(|(place, access)| (place.as_fd(), *access)).collect();
            assert!(limit(&allowed).unwrap());
            run()
        };
        Some(std::thread::scope(|scope| scope.spawn(act).join().unwrap()))
    }

    #[test]
    fn only_the_allowed_files_can_be_opened() {
        let dir = std::env::temp_dir().join(format!("tracer-landlock-{}", std::process::id()));
        let (own, other) = (dir.join("own"), dir.join("other"));
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("file"), "kept").unwrap();
        let denied = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
        };
        let replaced = limited(&[(&own, FileAccess::Replace)], || {
            fs::write(own.join("new"), "text").unwrap();
            fs::rename(own.join("new"), own.join("file")).unwrap();
            denied(fs::write(other.join("new"), "text"));
            denied(File::options().write(true).open(other.join("file")).map(drop));
            denied(fs::rename(own.join("file"), other.join("file")).map_err(|error| {
                // The kernel reports a move to another directory in this way (`LANDLOCK_ACCESS_FS_REFER`).
                if error.kind() == ErrorKind::CrossesDevices {
                    ErrorKind::PermissionDenied.into()
                } else {
                    error
                }
            }));
            denied(fs::remove_file(other.join("file")));
            denied(fs::create_dir(own.join("directory")));
            denied(File::open("/etc/passwd").map(drop));
            fs::remove_file(own.join("file")).unwrap();
        });
        let read = limited(&[(&other, FileAccess::Read)], || {
            assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "kept");
            denied(File::options().write(true).open(other.join("file")).map(drop));
            denied(File::open("/etc/passwd").map(drop));
        });
        assert_eq!(replaced.is_some(), read.is_some());
        fs::remove_dir_all(&dir).unwrap();
    }

    /// Why the daemon and the process that accesses clients' memory have no limit.
    #[test]
    fn a_limited_thread_can_neither_unmount_nor_reach_other_processes() {
        use std::os::unix::process::CommandExt;
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: cap_sys_admin: not root");
        }
        let mut other = std::process::Command::new("sleep");
        let mut other = other.arg("60").uid(65_534).spawn().unwrap();
        let file = |name: &str| format!("/proc/{}/{name}", other.id());
        let open = || File::options().read(true).write(true).open(file("mem")).map(drop);
        let read = |name: &str| fs::read(file(name)).map(drop);
        let root = Path::new("/");
        // Without a limit all of these work.
        open().unwrap();
        for name in ["stack", "syscall"] {
            read(name).unwrap();
        }
        limited(&[(root, FileAccess::Read), (root, FileAccess::Replace)], || {
            // `maps` and `auxv` can be read with CAP_PERFMON from 6.15 on (`may_access_mm()`, kernel/fork.c).
            assert_eq!(open().unwrap_err().kind(), ErrorKind::PermissionDenied, "mem");
            for name in ["stack", "syscall"] {
                assert_eq!(read(name).unwrap_err().kind(), ErrorKind::PermissionDenied, "{name}");
            }
            // These need no access to the process.
            for name in ["comm", "stat", "status"] {
                read(name).unwrap();
            }
            assert_eq!(unmount("/proc", UnmountFlags::DETACH), Err(Errno::PERM));
        });
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
