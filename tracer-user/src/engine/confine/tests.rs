//! Tests of each role's confinement in threads: without `Scope::Process`, filters and capabilities apply to one
//! thread.

use std::{fs::File, io::ErrorKind, os::unix::net::UnixStream, process::Command};

use rustix::{
    fs::{Gid, Uid},
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, unmount},
    net::{AddressFamily, SocketType, socket},
    thread::set_thread_uid,
};

use super::*;

/// Runs a function in a thread that is confined as the role.
fn confined<T: Send>(role: Role, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            drop_capabilities(role);
            seccomp::allow(calls::of(role, false), calls::ABSENT, Scope::Thread).unwrap();
            run()
        });
        thread.join().unwrap()
    })
}

#[test]
fn no_role_can_reach_beyond_its_task() {
    for (role, name) in Role::ALL {
        confined(role, || {
            let started = Command::new("/bin/true").spawn().map(|mut child| child.wait());
            assert_eq!(started.unwrap_err().kind(), ErrorKind::PermissionDenied, "{name} starts a program");
            let mounted = mount("none", "/mnt", "tmpfs", MountFlags::empty(), None);
            assert_eq!(mounted, Err(Errno::PERM), "{name} mounts");
            assert_eq!(set_thread_uid(Uid::from_raw(1)), Err(Errno::PERM), "{name} becomes another user");
            assert_eq!(rustix::thread::set_thread_gid(Gid::from_raw(1)), Err(Errno::PERM), "{name}");
            let inet = socket(AddressFamily::INET, SocketType::STREAM, None);
            assert_eq!(inet.unwrap_err(), Errno::PERM, "{name} reaches the network");
            let limit = rustix::process::Rlimit { current: Some(1), maximum: Some(1) };
            let set = rustix::process::setrlimit(rustix::process::Resource::Core, limit);
            assert_eq!(set, Err(Errno::PERM), "{name} changes limits");
            for (call, answer) in seccomp::dangerous() {
                assert_eq!(answer, Err(Errno::PERM), "{name}: {call}");
            }
        });
    }
}

#[test]
fn every_role_can_use_threads_and_messages() {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    for (role, name) in Role::ALL {
        if role == Role::Closer {
            continue;
        }
        confined(role, || {
            let sum = std::thread::spawn(|| (0..1000).sum::<u32>()).join().unwrap();
            assert_eq!(sum, 499_500, "{name}");
            std::io::Write::write_all(&mut ours, b"x").unwrap();
            std::io::Read::read_exact(&mut theirs, &mut [0]).unwrap();
            assert!(std::fs::read_to_string("/proc/thread-self/status").unwrap().contains("NoNewPrivs:\t1"));
            assert!(std::fs::read_dir("/proc/self/task").unwrap().count() > 1);
        });
    }
}

#[test]
fn a_reading_role_opens_nothing_for_writing() {
    let path = std::env::temp_dir().join(format!("tracer-confine-{}", std::process::id()));
    for role in [Role::Daemon, Role::Opener, Role::Recorder, Role::Histogram, Role::Reader, Role::Closer] {
        let opened = confined(role, || File::create(&path).map(drop));
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::PermissionDenied, "{role:?}");
    }
    assert!(!path.exists());
    confined(Role::StateWriter, || File::create(&path)).unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_daemon_changes_no_file_of_root() {
    use std::os::unix::fs::PermissionsExt;
    let dir = std::env::temp_dir().join(format!("tracer-confine-daemon-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let (file, other) = (dir.join("file"), dir.join("other"));
    std::fs::write(&file, "kept").unwrap();
    let open = File::options().read(true).write(true).open(&file).unwrap();
    let denied = |what: &str, result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied, "{what}");
    };
    confined(Role::Daemon, || {
        for (read, write, append) in [(false, true, false), (true, true, false), (false, false, true)] {
            let opened = File::options().read(read).write(write).append(append).open(&file);
            denied("opens", opened.map(drop));
        }
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
        denied("opens again", File::options().write(true).open(again).map(drop));
        denied("creates", File::create_new(&other).map(drop));
        denied("renames", std::fs::rename(&file, &other));
        denied("removes", std::fs::remove_file(&file));
        denied("links", std::fs::hard_link(&file, &other));
        denied("makes a directory", std::fs::create_dir(&other));
        denied("changes a mode", open.set_permissions(std::fs::Permissions::from_mode(0o666)));
        denied("changes a mode", std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)));
        denied("changes an owner", std::os::unix::fs::chown(&file, Some(1), None));
        denied(
            "truncates",
            rustix::fs::openat(rustix::fs::CWD, &file, rustix::fs::OFlags::TRUNC, rustix::fs::Mode::empty())
                .map(drop)
                .map_err(Into::into),
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn only_the_daemon_unmounts() {
    for (role, name) in Role::ALL {
        let at = "/proc/self/no-such-place";
        let answer = confined(role, || unmount(at, UnmountFlags::DETACH));
        let wanted = if role == Role::Daemon { Errno::NOENT } else { Errno::PERM };
        assert_eq!(answer, Err(wanted), "{name}");
    }
}

#[test]
fn capabilities_have_reasons_and_are_few() {
    for (role, name) in Role::ALL {
        assert!(role.capabilities().len() <= 5, "{name}");
        for kept in role.capabilities() {
            assert_eq!(kept.set.bits().count_ones(), 1);
            assert!(kept.name.starts_with("CAP_") && !kept.reason.is_empty());
        }
        assert_eq!(role.set().bits().count_ones() as usize, role.capabilities().len(), "{name}: one twice");
    }
}

#[test]
fn namespaces_cannot_be_changed() {
    confined(Role::Daemon, || {
        assert_eq!(crate::sys::mount::private_namespace().unwrap_err().kind(), ErrorKind::PermissionDenied);
    });
}
