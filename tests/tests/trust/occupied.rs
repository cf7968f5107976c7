//! A client that occupies a file or a directory for as long as it likes. The victims use the same.

use std::fs::{self, File};
use std::io::Write;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Advice, fadvise, minor};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tracer_tests::blocked_fs::BlockedFs;
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, set, text};
use tracer_tests::stopped_thread::StoppedThread;
use tracer_tests::user_events::{Data, Page, Word, in_step};

use crate::stuck_owner::threads;
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
        word.becomes(1, || set(dir, "events/user_events/mine/enable", "1"))?;
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_descriptor_of_a_file_that_was_not_writable_leads_to_no_inode_of_roots() {
    host::as_root(|| {
        let mirror = Mounted::start("inode-reopened")?;
        let dir = mirror.dir();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        // A descriptor of `O_PATH` needs no permission.
        for (name, mode) in [("trace_marker", 0o444), ("set_event", 0o640), ("tracing_on", 0o600)] {
            let file = dir.join(name);
            fs::set_permissions(&file, fs::Permissions::from_mode(mode))?;
            ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == mode);
            // A service of root's has the file open since before.
            let mut own = File::options().write(true).open(&file)?;
            let held = BlockedFs::mount("inode-reopened")?;
            let (path, page) = (file.to_str().context("a path")?, held.file());
            // It opens the file, waits for a line, and opens its descriptor for writing.
            let words = ["reopen", path, page.to_str().context("a path")?];
            let mut attacker = Client::start(ATTACKER, &words)?;
            ensure!(attacker.line()? == "opened");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
            attacker.go_on()?;
            if mode & 0o004 == 0 {
                ensure!(
                    attacker.line().is_err() && !attacker.child.wait()?.success(),
                    "root's inode is open"
                );
                attacker = Client::start(ATTACKER, &["write", path, words[2], "at once"])?;
            }
            ensure!(attacker.line()? == "writing");
            await_true("the kernel waits for the data", || Ok(held.reads() > 0))?;
            serves_others(&file, "1")?;
            // The inode stays the attacker's when only root may open the file again.
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
            let again = file.clone();
            promptly("root's writes after a chmod", move || {
                let _ = own.write(b"1");
                let _ = File::options().write(true).open(&again)?.write(b"1");
                Ok(())
            })?;
            held.release();
            drop(attacker);
        }
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn who_may_not_change_a_file_locks_it_for_no_job_of_the_mirror() {
    host::as_root(|| {
        let mirror = Mounted::start("inode-touched")?;
        let dir = mirror.dir();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        let file = dir.join("tracing_on");
        let mut attacker = Client::start(ATTACKER, &["touch", file.to_str().context("a path")?])?;
        ensure!(attacker.line()? == "opened");
        let owner = StoppedThread::named(mirror.pid(), "owner")?;
        attacker.go_on()?;
        // The kernel asks for the file's attributes while it holds the lock.
        let answer = promptly("utimensat(2)", move || attacker.line());
        drop(owner);
        let answer = answer?;
        ensure!(answer == format!("touched Err({})", libc::EACCES), "{answer}");
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
            let output = run_as(uid, &["sh", "-c", &script]).output().context("setpriv of util-linux")?;
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

/// Runs a program as another user.
fn run_as(uid: u32, words: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new("setpriv");
    command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()]);
    command.args(words).env("LC_ALL", "C");
    command
}

#[test]
fn a_directory_that_a_user_keeps_locked_delays_no_use_of_roots_files() {
    host::as_root(|| {
        let mirror = Mounted::start("dir-lock")?;
        let dir = mirror.dir().to_owned();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        ensure!(text(&dir, "tracing_on")? == "1\n");
        let held = BlockedFs::mount("dir-lock")?;
        let (path, page) = (dir.to_str().context("a path")?, held.file());
        let mut attacker = Client::start(ATTACKER, &["list", path, page.to_str().context("a path")?])?;
        ensure!(attacker.line()? == "listing");
        await_true("the kernel waits for the page", || Ok(held.reads() > 0))?;
        // All who want to read the directory now wait behind one who wants to change it.
        let absent = dir.join("absent");
        let mut maker = run_as(ATTACKER, &["mkdir", absent.to_str().context("a path")?]).spawn()?;
        let locked = await_true("mkdir waits for the lock", || Ok(threads(maker.id())? == ['D']));
        let file = dir.join("tracing_on");
        let victim = promptly("root's write", move || {
            for times in 0..20 {
                let seen =
                    run_as(ATTACKER, &["stat", "-c", "%a", file.to_str().context("a path")?]).output()?;
                ensure!(seen.stdout == b"640\n", "{times}: {seen:?}");
                // On old kernels, open(2) with `O_CREAT` locks the directory in each file system.
                File::options().write(true).open(&file)?.write_all(b"1")?;
                ensure!(fs::read_to_string(&file)? == "1\n");
            }
            Ok(())
        });
        held.release();
        maker.wait()?;
        locked?;
        victim?;
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_mount_on_a_file_of_roots_stays_when_users_look_at_it() {
    host::as_root(|| {
        let mirror = Mounted::start("masked")?;
        let dir = mirror.dir();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        let file = dir.join("trace_marker");
        mount_bind("/dev/null", &file)?;
        let path = file.to_str().context("a path")?;
        let seen = run_as(ATTACKER, &["stat", "-c", "%F", path]).output();
        let is_masked = fs::metadata(&file).map(|found| found.file_type().is_char_device());
        unmount(&file, UnmountFlags::DETACH)?;
        ensure!(is_masked? && seen?.stdout == b"character special file\n", "the mount is gone");
        mirror.stop()?.success().map(drop)
    });
}

/// Number of the kernel's background requests that fuser allows if it is not told otherwise.
const USUAL_BACKGROUND: usize = 16;

#[test]
fn pages_that_wait_for_records_delay_no_close() {
    host::as_root(|| {
        let mirror = Mounted::start("background")?;
        let (dir, connections) = (mirror.dir().to_owned(), Connections::mount("background")?);
        let mut streams = Vec::new();
        for number in 0..=USUAL_BACKGROUND {
            let instance = dir.join(format!("instances/wait-{number}"));
            fs::create_dir(&instance)?;
            streams.push(File::open(instance.join("per_cpu/cpu0/trace_pipe_raw"))?);
        }
        // The caller does not wait for these reads. Kernels before 6.5 know no size of the files, and read nothing.
        for stream in &streams {
            let same = stream.try_clone()?;
            promptly("a request for a page", move || {
                Ok(fadvise(&same, 0, NonZeroU64::new(4096), Advice::WillNeed)?)
            })?;
        }
        let waiting = connections.waiting(&dir)?;
        eprintln!("{waiting} reads wait");
        for times in 0..3 {
            let (path, what) = (dir.join("trace_pipe"), format!("open {times} of trace_pipe"));
            promptly(&what, move || {
                // A close is reported asynchronously.
                await_true("a second reader is refused until the first one is closed", || {
                    Ok(File::open(&path).is_ok())
                })
            })?;
        }
        drop(streams);
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_page_that_others_store_is_read_whatever_its_reader_has_requested() {
    host::as_root(|| {
        let mirror = Mounted::start("status-page")?;
        let (dir, connections) = (mirror.dir().to_owned(), Connections::mount("status-page")?);
        let (status, stream) = (
            File::open(dir.join("user_events_status"))?,
            File::open(dir.join("per_cpu/cpu0/trace_pipe_raw"))?,
        );
        let page = Page::of(&status).map_err(std::io::Error::from_raw_os_error)?;
        // The kernel has the directory's attributes.
        connections.waiting(&dir)?;
        // All requests wait that need the thread that owns the tree.
        let owner = StoppedThread::named(mirror.pid(), "owner")?;
        let (path, before) = (dir.join("absent"), connections.waiting(&dir)?);
        let waits = std::thread::spawn(move || fs::metadata(path).is_err());
        let sent = await_true("a lookup waits", || Ok(connections.waiting(&dir)? > before));
        let seen = promptly("a page of the status", move || Ok(page.bit(0)));
        // The page that tells the kernel the size of the stream.
        let same = stream.try_clone()?;
        let last = promptly("the last page of a stream", move || {
            Ok(fadvise(&same, (1 << 62) - 4096, NonZeroU64::new(4096), Advice::WillNeed)?)
        });
        let answered = await_true("only the lookup waits", || Ok(connections.waiting(&dir)? <= before + 1));
        drop(owner);
        ensure!(waits.join().is_ok_and(|absent| absent), "the lookup");
        sent?;
        ensure!(!seen?, "an event is on");
        last?;
        answered?;
        drop((status, stream));
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
        let stopped = Self(pid);
        // One thread receives the signal and stops the others.
        let id = pid.as_raw_nonzero().get().unsigned_abs();
        await_true("all threads stop", || Ok(threads(id)?.iter().all(|state| *state == 'T')))?;
        Ok(stopped)
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
    fn mount(purpose: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tracer-fusectl-{purpose}-{}", std::process::id()));
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
        let (dir, connections) = (mirror.dir().to_owned(), Connections::mount("dirops")?);
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
