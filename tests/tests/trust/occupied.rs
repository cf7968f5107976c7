//! A client that occupies a file or a directory for as long as it likes. The victims use the same.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use anyhow::{Context, Result, ensure};
use rustix::fs::minor;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tracer_tests::blocked_fs::BlockedFs;
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, set, text};
use tracer_tests::user_events::{Data, Word, in_step};

use crate::timed::{await_true, soon, within};
use crate::user::{Client, open_to_all};

/// The user and group id of the attacker.
const ATTACKER: u32 = 65_534;
/// The user and group id of another client.
const OTHER: u32 = 65_533;

/// Calls a function in another thread. It is an error if the function does not return soon.
fn promptly<T: Send + 'static>(what: &str, act: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    within(soon(), act).with_context(|| format!("{what} does not return"))?.with_context(|| what.to_owned())
}

/// All that root and another user do with a file must not wait for the attacker's write to it.
fn serves_others(file: &Path, data: &str) -> Result<()> {
    let (path, bytes) = (file.to_owned(), data.to_owned());
    promptly("root's open and write", move || {
        // The text may be refused. It is not waited for.
        let _ = File::options().write(true).open(&path)?.write(bytes.as_bytes());
        Ok(())
    })?;
    let path = file.to_owned();
    promptly("root's chmod", move || Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?))?;
    let path = file.to_owned();
    promptly("root's stat", move || Ok(fs::metadata(&path)?))?;
    let mut other =
        Client::start(OTHER, &["write", file.to_str().context("a path")?, "/proc/self/exe", "at once"])?;
    promptly("another user's write", move || {
        ensure!(other.line()? == "writing");
        let line = other.line()?;
        ensure!(line.starts_with("written "), "{line}");
        Ok(())
    })
}

#[test]
fn a_write_whose_data_never_arrives_delays_no_other_user() {
    host::as_root(|| {
        let mirror = Mounted::start("inode-lock")?;
        let dir = mirror.dir();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        // Root has opened the files before, so the kernel knows inodes of them.
        for (name, data) in
            [("user_events_data", "12345678"), ("trace_marker", "a mark"), ("set_event", "-1")]
        {
            let file = dir.join(name);
            drop(File::options().write(true).open(&file)?);
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
            let path = file.to_str().context("a path")?;
            for how in ["at once", "append"] {
                let held = BlockedFs::mount("inode-lock")?;
                let page = held.file();
                let mut attacker =
                    Client::start(ATTACKER, &["write", path, page.to_str().context("a path")?, how])?;
                ensure!(attacker.line()? == "writing");
                await_true("the kernel waits for the data", || Ok(held.reads() > 0))?;
                serves_others(&file, data).with_context(|| format!("{name}, {how}"))?;
                ensure!(attacker.child.try_wait()?.is_none(), "{name}: the write ended");
                // The attacker itself ends by SIGKILL as soon as its own file system lets it.
                kill_process(Pid::from_child(&attacker.child), Signal::KILL)?;
                held.release();
                attacker.child.wait()?;
            }
        }
        // The mirror is still whole.
        let (data, word) = (Data::open(dir)?, Word::default());
        in_step("register", data.register("mine u32 a", &word, 0, 0))?;
        set(dir, "events/user_events/mine/enable", "1")?;
        ensure!(word.get() == 1, "{:#x}", word.get());
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_descriptor_of_a_file_that_was_not_writable_leads_to_no_inode_of_roots() {
    host::as_root(|| {
        let mirror = Mounted::start("inode-reopened")?;
        let dir = mirror.dir();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        let file = dir.join("trace_marker");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o444))?;
        ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o444);
        let held = BlockedFs::mount("inode-reopened")?;
        let (path, page) = (file.to_str().context("a path")?, held.file());
        // It opens the file for reading, waits for a line, and opens its descriptor for writing.
        let words = ["reopen", path, page.to_str().context("a path")?];
        let mut attacker = Client::start(ATTACKER, &words)?;
        ensure!(attacker.line()? == "opened");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
        attacker.child.stdin.as_mut().context("its input")?.write_all(b"\n")?;
        ensure!(attacker.line()? == "writing");
        await_true("the kernel waits for the data", || Ok(held.reads() > 0))?;
        serves_others(&file, "a mark")?;
        held.release();
        drop(attacker);
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn what_another_user_does_with_a_file_is_seen_by_all() {
    host::as_root(|| {
        let mirror = Mounted::start("inode-same")?;
        let dir = mirror.dir();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        let file = dir.join("trace_marker");
        let look = |uid: u32, word: &str| -> Result<String> {
            let script = format!("stat -c {word} {0} && ls -l {0} | cut -c1-10", file.display());
            let mut command = std::process::Command::new("setpriv");
            command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()]);
            let output = command.args(["sh", "-c", &script]).output().context("setpriv of util-linux")?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        // Each user's view of the attributes follows a change at once.
        for mode in [0o666, 0o644, 0o622] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
            let seen = [0, ATTACKER, OTHER].map(|uid| look(uid, "%a"));
            for seen in seen {
                let seen = seen?;
                ensure!(seen.starts_with(&format!("{mode:o}\n-rw-")), "{mode:o}: {seen}");
            }
        }
        std::os::unix::fs::chown(&file, Some(ATTACKER), None)?;
        ensure!(look(ATTACKER, "%u")?.starts_with(&format!("{ATTACKER}\n")));
        // Its owner changes it by an inode of its own, and root sees the change.
        let output = std::process::Command::new("setpriv")
            .args([
                &format!("--reuid={ATTACKER}"),
                "--clear-groups",
                "sh",
                "-c",
                "chmod 600 \"$1\" && echo mine > \"$1\"",
                "sh",
            ])
            .arg(&file)
            .output()?;
        ensure!(output.status.success(), "{output:?}");
        ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600);
        ensure!(look(OTHER, "%a")?.starts_with("600\n"));
        ensure!(text(dir, "trace")?.contains(": mine"), "no mark");
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_shared_mapping_writes_nothing() {
    host::as_root(|| {
        let mirror = Mounted::start("write-back")?;
        let dir = mirror.dir();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        for (name, first, second) in
            [("synthetic_events", "mine u32 a\n", "more u32 a\n"), ("trace_marker", "mine 1\n", "more 1\n")]
        {
            let file = dir.join(name);
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
            let path = file.to_str().context("a path")?;
            let mut attacker = Client::start(ATTACKER, &["map", path, first, second])?;
            // Kernels before 6.6 do not map files with direct I/O. Others may know that the file is empty.
            let expected = [format!("synced Err({})", libc::EIO), format!("not mapped {}", libc::ENODEV)];
            match attacker.line() {
                Ok(line) => ensure!(expected.contains(&line), "{name}: {line}"),
                Err(_) => ensure!(attacker.child.wait()?.signal() == Some(libc::SIGBUS), "{name}"),
            }
        }
        ensure!(
            text(dir, "synthetic_events")?.trim_end() == "mine\tu32 a",
            "{}",
            text(dir, "synthetic_events")?
        );
        let trace = text(dir, "trace")?;
        ensure!(trace.contains(": mine 1") && !trace.contains("more"), "{trace}");
        mirror.stop()?.success().map(drop)
    });
}

/// A process that is stopped until drop.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: u32) -> Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process")?;
        kill_process(pid, Signal::STOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// The kernel's file system about FUSE connections, unmounted on drop.
struct Connections(PathBuf);

impl Connections {
    fn mount() -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tracer-fusectl-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        mount("fusectl", &dir, "fusectl", MountFlags::empty(), None)?;
        Ok(Self(dir))
    }

    /// Number of requests that a file system has not answered.
    fn waiting(&self, mounted: &Path) -> Result<u32> {
        let device = minor(fs::metadata(mounted)?.dev());
        Ok(fs::read_to_string(self.0.join(device.to_string()).join("waiting"))?.trim().parse()?)
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.0);
    }
}

/// Number of lookups at once.
const LOOKUPS: u32 = 20;

#[test]
fn lookups_in_a_directory_do_not_wait_for_one_another() {
    host::as_root(|| {
        let mirror = Mounted::start("dirops")?;
        let (dir, connections) = (mirror.dir().to_owned(), Connections::mount()?);
        // The kernel has the directory's attributes.
        fs::metadata(&dir)?;
        let (done, is_done) = channel();
        let stopped = Stopped::new(mirror.pid())?;
        for number in 0..LOOKUPS {
            let (name, done) = (dir.join(format!("absent-{number}")), done.clone());
            std::thread::spawn(move || done.send(fs::metadata(name).is_err()));
        }
        // A lookup that locked its directory would keep all others from being sent.
        let sent = await_true("all lookups are sent", || Ok(connections.waiting(&dir)? >= LOOKUPS));
        drop(stopped);
        sent?;
        for _ in 0..LOOKUPS {
            ensure!(is_done.recv_timeout(soon()).context("a lookup does not return")?, "the name exists");
        }
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_program_with_the_id_of_an_ended_client_does_not_get_its_queue() {
    host::as_root(|| {
        let mirror = Mounted::start("lanes")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        let held = BlockedFs::mount("lanes")?;
        let (page, path) = (held.file(), dir.to_str().context("a path")?);
        let mut attacker = Client::start(ATTACKER, &["outlived", path, page.to_str().context("a path")?])?;
        let sharer = Pid::from_raw(attacker.line()?.parse()?).context("a process")?;
        let id = attacker.pid().to_string();
        // The write of the bit waits for the page.
        set(dir, "events/user_events/outlived/enable", "1")?;
        let waits = await_true("the mirror waits for the page", || Ok(held.reads() > 0));
        // The memory outlives the client, because another process shares it.
        attacker.child.kill()?;
        attacker.child.wait()?;
        let path = path.to_owned();
        let answer =
            promptly("a registration", move || Client::start(0, &["as", &id, &path, "mine u32 a"])?.line());
        kill_process(sharer, Signal::KILL)?;
        held.release();
        waits?;
        let answer = answer?;
        eprintln!("{answer}");
        ensure!(answer.starts_with("Ok("), "{answer}");
        mirror.stop()?.success().map(drop)
    });
}
