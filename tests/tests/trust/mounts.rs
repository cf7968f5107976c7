//! Mount safety. The end of a daemon removes only its own mounts, independent of mounts over them and of their names.
//! The start of a daemon recognises only real mirrors and runs no helper program.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, CWD, RenameFlags, StatxFlags, renameat_with, statx};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tracer_tests::host::{self, Tracefs};
use tracer_tests::mirror::{self, text, unmount_unused};
use tracer_tests::tracer::Tracer;

/// A directory that is removed on drop, with all mounts in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(purpose: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tracer-mounts-{purpose}-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

    fn dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.0.join(name);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// The mounts in the directory, as mount point and file system.
    fn mounts(&self) -> Result<Vec<(String, String)>> {
        let all = fs::read_to_string("/proc/self/mounts")?;
        let here = self.0.to_str().context("a plain name")?;
        let lines = all.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        });
        Ok(lines.filter(|(at, _)| at.starts_with(here)).collect())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (at, _) in self.mounts().unwrap_or_default().into_iter().rev() {
            let _ = unmount(at.replace("\\040", " "), UnmountFlags::DETACH);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tmpfs(at: &Path) -> Result<()> {
    Ok(mount("tracer-test", at, "tmpfs", MountFlags::empty(), None)?)
}

/// The error message of a refused start.
fn refusal(at: &Path) -> Result<String> {
    match Tracer::new([Path::new("mount"), at])?.start() {
        Err(error) => Ok(format!("{error:#}")),
        Ok(running) => {
            running.stop()?;
            bail!("a mirror came up at {}", at.display())
        }
    }
}

#[test]
fn mounts_over_a_mirror_survive_its_end() {
    host::as_root(|| {
        let scratch = Scratch::new("above")?;
        let place = scratch.dir("place")?;
        let mounted = Tracer::new([Path::new("mount"), &place])?.start()?;
        tmpfs(&place)?;
        fs::write(place.join("file"), "kept")?;
        let outcome = mounted.stop()?;
        let left = scratch.mounts()?;
        ensure!(left.iter().any(|(_, kind)| kind == "tmpfs"), "the tmpfs is gone: {left:?}");
        ensure!(fs::read_to_string(place.join("file"))? == "kept");
        ensure!(outcome.status.success(), "{}", outcome.stderr);
        ensure!(outcome.stderr.contains("something else is mounted above"), "{}", outcome.stderr);
        Ok(())
    });
}

#[test]
fn a_second_mirror_survives_the_end_of_the_first() {
    host::as_root(|| {
        let scratch = Scratch::new("second")?;
        let place = scratch.dir("place")?;
        let first = Tracer::new([Path::new("mount"), &place])?.start()?;
        let second = Tracer::new([Path::new("mount"), &place])?.args(["--over"]).start()?;
        mirror::set(&place, "tracing_on", "0")?;
        first.stop()?.success()?;
        ensure!(text(&place, "tracing_on")? == "0\n", "the second one serves on");
        second.stop()?.success()?;
        ensure!(
            scratch.mounts()?.is_empty(),
            "the last one takes the dead one below along: {:?}",
            scratch.mounts()?
        );
        Ok(())
    });
}

/// Exchanges two names until it is dropped, as fast as it can.
struct Exchanging {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<u64>>>,
}

impl Exchanging {
    fn start(one: PathBuf, other: PathBuf) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&over);
        let exchange = move || {
            let mut count = 0;
            // An even number leaves the names as they were.
            while !its.load(Ordering::Acquire) || count % 2 == 1 {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE)?;
                count += 1;
            }
            Ok(count)
        };
        Self { over, thread: Some(std::thread::spawn(exchange)) }
    }

    /// Ends it. Returns how often the names were exchanged.
    fn end(mut self) -> Result<u64> {
        self.over.store(true, Ordering::Release);
        self.thread.take().context("it runs")?.join().map_err(|_| anyhow::anyhow!("it panicked"))?
    }
}

impl Drop for Exchanging {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

#[test]
fn a_directory_that_is_exchanged_for_a_symlink_misleads_no_unmount() {
    // A path that is looked up for the check and again for the unmount leaves the mirror in two of three ends, and
    // unmounts the tmpfs in one of thirty.
    const ENDS: u32 = 16;
    host::as_root(|| {
        let scratch = Scratch::new("exchanged")?;
        let (place, other) = (scratch.dir("own/place")?, scratch.dir("victim/place")?);
        // Who owns the directory above `own` may rename it.
        let (own, link) = (scratch.0.join("own"), scratch.0.join("link"));
        symlink(scratch.0.join("victim"), &link)?;
        tmpfs(&other)?;
        fs::write(other.join("file"), "kept")?;
        for end in 0..ENDS {
            let mounted = Tracer::new([Path::new("mount"), &place])?.start()?;
            let exchanging = Exchanging::start(own.clone(), link.clone());
            let outcome = mounted.stop()?;
            let exchanges = exchanging.end()?;
            let left = scratch.mounts()?;
            ensure!(
                left.len() == 1 && left[0].0.ends_with("/victim/place") && left[0].1 == "tmpfs",
                "end {end}, after {exchanges} exchanges: {left:?} {}",
                outcome.stderr
            );
            outcome.success()?;
        }
        ensure!(fs::read_to_string(other.join("file"))? == "kept");
        Ok(())
    });
}

#[test]
fn a_mirror_whose_directory_is_renamed_is_unmounted_at_the_end() {
    host::as_root(|| {
        let scratch = Scratch::new("renamed")?;
        let place = scratch.dir("own/place")?;
        let mounted = Tracer::new([Path::new("mount"), &place])?.start()?;
        fs::rename(scratch.0.join("own"), scratch.0.join("renamed"))?;
        ensure!(text(&scratch.0.join("renamed/place"), "tracing_on")? == "1\n");
        let outcome = mounted.stop()?;
        ensure!(scratch.mounts()?.is_empty(), "{:?}", scratch.mounts()?);
        outcome.success()?;
        Ok(())
    });
}

#[test]
fn a_live_mirror_is_recognised_under_every_name() {
    host::as_root(|| {
        let scratch = Scratch::new("names")?;
        let place = scratch.dir("with a\tblank\\040")?;
        let link = scratch.0.join("link");
        symlink(&place, &link)?;
        let mounted = Tracer::new([Path::new("mount"), &link])?.start()?;
        let bound = scratch.dir("bound")?;
        mount_bind(&place, &bound)?;
        for name in [&place, &link, &bound, &scratch.0.join("./link/../link")] {
            let said = refusal(name)?;
            ensure!(said.contains("there is a mirror at"), "{}: {said}", name.display());
        }
        // A directory inside a mirror is not a mirror, and neither is a directory next to it.
        for name in [bound.join("events"), scratch.dir("beside")?] {
            let outcome =
                Tracer::new(["exec".as_ref(), "--mirror".as_ref(), name.as_os_str(), "true".as_ref()])?
                    .run()?;
            ensure!(outcome.stderr.contains("there is no mirror"), "{}: {}", name.display(), outcome.stderr);
        }
        ensure!(text(&link, "tracing_on")? == "1\n");
        mounted.stop()?.success()?;
        let left = scratch.mounts()?;
        // The daemon did not create the bind mount, so it stays.
        ensure!(left.len() == 1 && left[0].0.ends_with("/bound"), "{left:?}");
        // The mount of a dead daemon is removed, also through a symlink.
        let again = scratch.0.join("again");
        symlink(&bound, &again)?;
        let mounted = Tracer::new([Path::new("mount"), &again])?.start()?;
        ensure!(scratch.mounts()?.len() == 1 && text(&bound, "tracing_on")? == "1\n");
        mounted.stop()?.success()?;
        ensure!(scratch.mounts()?.is_empty());
        Ok(())
    });
}

#[test]
fn a_mirror_can_be_unmounted_by_others() {
    host::as_root(|| {
        let scratch = Scratch::new("others")?;
        let place = scratch.dir("place")?;
        let mounted = Tracer::new([Path::new("mount"), &place])?.start()?;
        // No process of the daemon keeps the mount busy: the unmount needs no MNT_DETACH.
        unmount_unused(&place)?;
        mounted.wait()?.success()?;
        ensure!(scratch.mounts()?.is_empty());
        Ok(())
    });
}

/// The id of a mount and its device number, by its root.
fn identity(at: &Path) -> Result<(u64, u32, u32)> {
    let found = statx(CWD, at, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID)?;
    Ok((found.stx_mnt_id, found.stx_dev_major, found.stx_dev_minor))
}

/// Mounts file systems in a directory until a mount has this identity. `None` if another mount got a part of it.
fn mount_as((id, major, minor): (u64, u32, u32), scratch: &Scratch) -> Result<Option<PathBuf>> {
    const MOST: usize = 256;
    let mut made = Vec::new();
    let mut same_device = None;
    for number in 0..MOST {
        let at = scratch.dir(&format!("tmpfs{number}"))?;
        tmpfs(&at)?;
        made.push(at.clone());
        let (_, its_major, its_minor) = identity(&at)?;
        if (its_major, its_minor) == (major, minor) {
            same_device = Some(at);
            break;
        }
    }
    let Some(device) = same_device else { return Ok(None) };
    if identity(&device)?.0 == id {
        return Ok(Some(device));
    }
    // The others may have the id.
    for at in made.iter().filter(|at| **at != device) {
        unmount(at, UnmountFlags::empty())?;
    }
    for number in 0..MOST {
        let at = scratch.dir(&format!("bind{number}"))?;
        mount_bind(&device, &at)?;
        if identity(&at)?.0 == id {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

#[test]
fn a_mount_that_has_the_numbers_of_an_unmounted_mirror_survives_its_daemon() {
    const TRIES: usize = 20;
    host::as_root(|| {
        for number in 0..TRIES {
            let scratch = Scratch::new(&format!("numbers{number}"))?;
            let place = scratch.dir("place")?;
            let mounted = Tracer::new([Path::new("mount"), &place])?.start()?;
            let known = identity(&place)?;
            // The daemon learns that the mirror is gone only when it continues.
            mounted.signal(Signal::STOP)?;
            unmount_unused(&place)?;
            let same = mount_as(known, &scratch)?;
            let before = scratch.mounts()?.len();
            mounted.signal(Signal::CONT)?;
            mounted.wait()?.success()?;
            if let Some(same) = same {
                ensure!(identity(&same)? == known, "the daemon has unmounted {}", same.display());
                ensure!(scratch.mounts()?.len() == before, "the daemon has unmounted another mount");
                return Ok(());
            }
        }
        bail!("other mounts always took the numbers")
    });
}

/// Time limit for a daemon to start and to end on a real machine.
const LIMIT: Duration = Duration::from_secs(10);

/// Waits until a condition holds; kills the child and fails when it does not hold in time.
fn await_or_kill(child: &mut Child, mut holds: impl FnMut(&mut Child) -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !holds(child)? {
        if start.elapsed() > host::patience(LIMIT) {
            child.kill()?;
            bail!("it neither serves nor ends: {:?}", child.wait());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Waits for a child's end and returns its output.
fn ended(mut child: Child) -> Result<Output> {
    await_or_kill(&mut child, |child| Ok(child.try_wait()?.is_some()))?;
    Ok(child.wait_with_output()?)
}

#[test]
fn no_program_is_run_to_mount() {
    host::as_root(|| {
        // The daemon mounts tracefs where it is missing, and without CAP_SYS_ADMIN that mount would fail first.
        let _tracefs = Tracefs::find_or_mount()?;
        let scratch = Scratch::new("path")?;
        let (place, bin) = (scratch.dir("place")?, scratch.dir("bin")?);
        let ran = scratch.0.join("ran");
        for name in ["fusermount3", "fusermount", "mount_fusefs", "mount", "umount"] {
            let program = bin.join(name);
            fs::write(&program, format!("#!/bin/sh\necho {name} \"$@\" >> {}\nexit 1\n", ran.display()))?;
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        }
        let binary = host::binary("tracer", "TRACER_BIN")?;
        let start = |bounding: &str| -> Result<Child> {
            let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
            let mut command = Command::new("setpriv");
            command.arg(format!("--bounding-set={bounding}sys_admin")).arg(&binary).arg("mount").arg(&place);
            command.env("PATH", path).env("FUSERMOUNT_PATH", bin.join("fusermount3"));
            let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            child.context("setpriv of util-linux")
        };
        let none_ran = || -> Result<()> {
            ensure!(!ran.exists(), "it ran {}", fs::read_to_string(&ran)?);
            Ok(())
        };
        // Without CAP_SYS_ADMIN mount(2) fails with EPERM; the daemon must not run a helper program then.
        let output = ended(start("-")?)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = format!(
            "error: cannot serve a mirror at {}: Operation not permitted (os error 1)\n",
            place.display()
        );
        ensure!(said == expected && output.status.code() == Some(1), "{}: {said}", output.status);
        ensure!(scratch.mounts()?.is_empty(), "{:?}", scratch.mounts()?);
        none_ran()?;
        // With CAP_SYS_ADMIN the mirror starts, serves and ends.
        let mut child = start("+")?;
        let pid = Pid::from_child(&child);
        await_or_kill(&mut child, |child| {
            ensure!(child.try_wait()?.is_none(), "it ended instead");
            Ok(!scratch.mounts()?.is_empty() && text(&place, "tracing_on").is_ok_and(|on| on == "1\n"))
        })?;
        kill_process(pid, Signal::INT)?;
        let output = ended(child)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
        ensure!(scratch.mounts()?.is_empty(), "{:?}", scratch.mounts()?);
        none_ran()
    });
}
