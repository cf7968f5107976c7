//! The output of the program and its limits: permissions of its files, sizes that users request, full disks, and
//! logs.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted, set, text, unmount_unused};
use tracer_tests::tracer::Tracer;

/// A directory that is removed on drop, with the mounts at its `bpf` and `mirror`.
struct Scratch(PathBuf);

impl Scratch {
    fn new(purpose: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tracer-output-{purpose}-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for mounted in ["bpf", "mirror"] {
            let _ = unmount(self.0.join(mounted), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> Result<u32> {
    let found = fs::metadata(path).with_context(|| path.display().to_string())?;
    Ok(found.permissions().mode() & 0o7777)
}

/// Runs a shell command with the program and a umask of 0.
fn unmasked(arguments: &str) -> Result<std::process::Output> {
    let binary = host::binary("tracer", "TRACER_BIN")?;
    let script = format!("umask 0; exec \"$0\" {arguments}");
    Ok(Command::new("sh").args(["-c", &script]).arg(binary).stdin(Stdio::null()).output()?)
}

#[test]
fn records_in_a_file_are_their_owners() {
    host::as_root(|| {
        let scratch = Scratch::new("file")?;
        let (new, there) = (scratch.0.join("new"), scratch.0.join("there"));
        fs::write(&there, "something longer than nothing")?;
        fs::set_permissions(&there, Permissions::from_mode(0o640))?;
        for (path, expected) in [(&new, 0o600), (&there, 0o640)] {
            let output = unmasked(&format!("record -e sched:sched_switch -o {} -- true", path.display()))?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            ensure!(mode(path)? == expected, "{}: {:o}", path.display(), mode(path)?);
            ensure!(fs::read_to_string(path)?.starts_with("# tracer"));
        }
        Ok(())
    });
}

#[test]
fn totals_are_printed_when_no_line_can_be_written() {
    host::as_root(|| {
        let full =
            Tracer::record()?.args(["-e", "sched:sched_switch", "-o", "/dev/full", "--", "true"]).run()?;
        ensure!(!full.status.success(), "{}", full.status);
        ensure!(full.counts().contains_key("total"), "{}", full.stderr);
        ensure!(full.stderr.contains("No space left"), "{}", full.stderr);
        // The reader of the output closes it.
        let binary = host::binary("tracer", "TRACER_BIN")?;
        let mut child = Command::new(binary)
            .args(["record", "-e", "sched:sched_switch", "--for", "20s"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        drop(child.stdout.take());
        let gone = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&gone.stderr);
        ensure!(gone.status.code() == Some(1), "{}: {said}", gone.status);
        ensure!(said.contains("total: hits=") && !said.contains("error"), "{said}");
        Ok(())
    });
}

#[test]
fn pins_are_made_on_a_bpf_file_system_alone() {
    host::as_root(|| {
        let scratch = Scratch::new("pins")?;
        let (bpf, place) = (scratch.0.join("bpf"), scratch.0.join("mirror"));
        for dir in [scratch.0.join("plain"), scratch.0.join("plain/deeper")] {
            let arguments = format!("mount {} --pin {}", place.display(), dir.display());
            let output = unmasked(&format!("{arguments} --background"))?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(!output.status.success() && said.contains("not on a BPF file system"), "{said}");
            ensure!(!dir.exists(), "{} was made", dir.display());
        }
        fs::create_dir_all(&bpf)?;
        mount("bpf", &bpf, "bpf", MountFlags::empty(), None).context("a BPF file system")?;
        let output = unmasked(&format!(
            "mount {} --pin {} --background --until {}",
            place.display(),
            bpf.join("above/pins").display(),
            std::process::id()
        ))?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let modes = (mode(&bpf.join("above"))?, mode(&bpf.join("above/pins"))?);
        ensure!(modes == (0o700, 0o700), "{modes:?}");
        set(&place, "synthetic_events", "pinned u64 value")?;
        ensure!(fs::read_dir(bpf.join("above/pins"))?.count() > 0, "nothing is pinned");
        unmount_unused(&place)?;
        Ok(())
    });
}

#[test]
fn buffers_are_no_larger_than_memory() {
    host::as_root(|| {
        let mounted = Mounted::start("sizes")?;
        let below = mounted.instance("below")?;
        for dir in [mounted.dir(), &below] {
            for file in ["buffer_size_kb", "per_cpu/cpu0/buffer_size_kb"] {
                let before = text(dir, file)?;
                for huge in ["107374182400", "18014398509481983", "36028797018963967"] {
                    let done = mirror::write(dir, file, huge.as_bytes(), false);
                    ensure!(done == Err(libc::ENOMEM), "{huge} to {file}: {done:?}");
                }
                ensure!(text(dir, file)? == before, "{file} was {before}");
                set(dir, file, "2000")?;
            }
        }
        // The sizes of all instances add up: nine tenths of the memory fit once.
        let available = fs::read_to_string("/proc/meminfo")?;
        let available = available.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let available: u64 = available.context("MemAvailable")?.trim().trim_end_matches(" kB").parse()?;
        let most = (available / 10 * 9).to_string();
        set(mounted.dir(), "per_cpu/cpu0/buffer_size_kb", &most)?;
        let done = mirror::write(&below, "per_cpu/cpu0/buffer_size_kb", most.as_bytes(), false);
        ensure!(done == Err(libc::ENOMEM), "{done:?}");
        set(mounted.dir(), "per_cpu/cpu0/buffer_size_kb", "100")?;
        set(&below, "per_cpu/cpu0/buffer_size_kb", &most)?;
        Ok(())
    });
}

#[test]
fn a_daemon_in_the_background_keeps_a_log() {
    host::as_root(|| {
        let scratch = Scratch::new("log")?;
        let (place, log) = (scratch.0.join("mirror"), scratch.0.join("log"));
        let output = unmasked(&format!(
            "mount {} --background --log {} --trace-event no_such:event --until {}",
            place.display(),
            log.display(),
            std::process::id()
        ))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}");
        // Until the daemon serves, its caller receives the messages.
        ensure!(said.contains("no_such:event"), "{said}");
        ensure!(mode(&log)? == 0o600 && fs::read_to_string(&log)?.is_empty());
        let none = mirror::write(&place, "program_events", b"/etc/passwd", false);
        ensure!(none == Err(libc::EINVAL), "{none:?}");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !fs::read_to_string(&log)?.contains("program_events: /etc/passwd") {
            ensure!(Instant::now() < deadline, "the log: {:?}", fs::read_to_string(&log)?);
            std::thread::sleep(Duration::from_millis(10));
        }
        unmount_unused(&place)?;
        Ok(())
    });
}

/// fuser warns of each such request. Any client could fill the log with these warnings, so the log must not show them.
#[test]
fn requests_that_a_mirror_does_not_have_are_refused_without_a_message() {
    host::as_root(|| {
        let mounted = Mounted::start("refused")?;
        let (file, other) = (mounted.dir().join("tracing_on"), mounted.dir().join("other"));
        let opened = File::options().write(true).open(&file)?;
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(-1);
        for _ in 0..3 {
            let answers = [
                fs::rename(&file, &other).map_err(errno),
                fs::hard_link(&file, &other).map_err(errno),
                std::os::unix::fs::symlink(&file, &other).map_err(errno),
                fs::remove_file(&file).map_err(errno),
            ];
            ensure!(answers == [Err(libc::EPERM); 4], "{answers:?}");
            let none = rustix::fs::getxattr(&file, "user.none", &mut [0_u8; 8]).map(drop);
            ensure!(none == Err(rustix::io::Errno::OPNOTSUPP), "{none:?}");
            let none = rustix::fs::fallocate(&opened, rustix::fs::FallocateFlags::empty(), 0, 1);
            ensure!(none == Err(rustix::io::Errno::OPNOTSUPP), "{none:?}");
        }
        let outcome = mounted.stop()?;
        ensure!(outcome.status.success() && outcome.stderr.is_empty(), "{outcome:?}");
        Ok(())
    });
}

#[test]
fn cleared_histograms_do_not_come_back() {
    host::as_root(|| {
        let scratch = Scratch::new("cleared")?;
        let place = scratch.0.join("mirror");
        let trigger = "events/sched/sched_switch/trigger";
        let mut first = Mounted::at(place.clone())?;
        set(&place, trigger, "hist:keys=next_pid if next_pid == 1")?;
        ensure!(text(&place, trigger)?.starts_with("hist:"));
        // Only opening the file changes the state.
        drop(File::options().write(true).truncate(true).open(place.join(trigger))?);
        ensure!(!text(&place, trigger)?.contains("hist:keys"));
        first.kill();
        let second = Mounted::with(place.clone(), &["--restore"])?;
        let left = text(&place, trigger)?;
        ensure!(!left.contains("hist:keys"), "it came back: {left}");
        second.stop()?;
        Ok(())
    });
}
