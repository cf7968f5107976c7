//! Definitions name files of users. A path may refer to another file later, a file's content may change, and its file
//! system may never answer. A probe must stay at the named file, and no other client may wait for such a file.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::time::Timespec;
use tracer_tests::events;
use tracer_tests::host;
use tracer_tests::mirror::{self, Answer, Mounted, set, text};
use tracer_tests::tracer::Tracer;
use tracer_user::sys::mount;

use crate::{entry, hits, run};

/// A directory that is removed on drop, with the mounts at its `fuse` and `mirror`.
struct Scratch(PathBuf);

impl Scratch {
    fn new(purpose: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tracer-files-{purpose}-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

    /// A program that ends at once, in a separate file.
    fn program(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::copy("/bin/true", &path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// A program that calls one function, which returns, and then ends; and the function's offset in its file.
    fn returning(&self, name: &str) -> Result<(PathBuf, u64)> {
        let (code, function) = calls_once();
        let path = self.0.join(name);
        fs::write(&path, executable(&code))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok((path, CODE + function))
    }
}

/// Offset of the code of [`executable`]: after `Elf64_Ehdr` and one `Elf64_Phdr`.
const CODE: u64 = 64 + 56;

/// An ELF file with one segment, which contains the whole file; it starts at the code (`include/uapi/linux/elf.h`).
fn executable(code: &[u8]) -> Vec<u8> {
    const ADDRESS: u64 = 0x40_0000;
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // ET_EXEC, EV_CURRENT, e_entry, e_phoff, e_shoff, e_flags.
    file.extend([2_u16, machine].map(u16::to_le_bytes).as_flattened());
    file.extend(1_u32.to_le_bytes());
    file.extend([ADDRESS + CODE, 64, 0].map(u64::to_le_bytes).as_flattened());
    file.extend(0_u32.to_le_bytes());
    // e_ehsize, e_phentsize, e_phnum, and no sections.
    file.extend([64_u16, 56, 1, 64, 0, 0].map(u16::to_le_bytes).as_flattened());
    // PT_LOAD, PF_R | PF_X, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align.
    let size = CODE + code.len() as u64;
    file.extend([1_u32, 5].map(u32::to_le_bytes).as_flattened());
    file.extend([0, ADDRESS, ADDRESS, size, size, 0x1_0000].map(u64::to_le_bytes).as_flattened());
    file.extend(code);
    file
}

/// Code that calls a function and ends with exit(0), and the function's offset in it.
fn calls_once() -> (Vec<u8>, u64) {
    if cfg!(target_arch = "aarch64") {
        // bl +16; mov x0, #0; mov x8, #93; svc #0; nop; ret
        let code = [0x9400_0004_u32, 0xd280_0000, 0xd280_0ba8, 0xd400_0001, 0xd503_201f, 0xd65f_03c0];
        (code.map(u32::to_le_bytes).as_flattened().to_vec(), 16)
    } else {
        // call +9; mov $60, %eax; xor %edi, %edi; syscall; nop; ret
        (b"\xe8\x09\0\0\0\xb8\x3c\0\0\0\x31\xff\x0f\x05\x90\xc3".to_vec(), 14)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for mounted in ["fuse", "mirror"] {
            let _ = unmount(self.0.join(mounted), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn swap(link: &Path, to: &Path) -> Result<()> {
    let new = link.with_extension("new");
    symlink(to, &new)?;
    Ok(fs::rename(&new, link)?)
}

#[test]
fn a_probe_stays_at_the_file_that_was_named() {
    host::as_root(|| {
        let scratch = Scratch::new("swap")?;
        let ((old, offset), (new, _)) = (scratch.returning("old")?, scratch.returning("new")?);
        let link = scratch.0.join("link");
        symlink(&old, &link)?;
        let mounted = Mounted::start("swap")?;
        let dir = mounted.dir();
        for kind in ["p", "r"] {
            let event = format!("swap_{kind}");
            set(dir, "uprobe_events", &format!("{kind}:files/{event} {}:{offset:#x}", link.display()))?;
            swap(&link, &new)?;
            set(dir, &format!("events/files/{event}/enable"), "1")?;
            run(&new)?;
            run(&link)?;
            ensure!(hits(dir, &event)? == 0, "the probe is at the new file: {}", text(dir, "trace")?);
            run(&old)?;
            ensure!(hits(dir, &event)? == 1, "the probe is not at the old one: {}", text(dir, "trace")?);
            // The probe stays at that file when it is disabled and enabled again, even without a name for the file.
            set(dir, &format!("events/files/{event}/enable"), "0")?;
            let other = scratch.0.join("other");
            fs::rename(&old, &other)?;
            set(dir, &format!("events/files/{event}/enable"), "1")?;
            run(&other)?;
            run(&new)?;
            ensure!(hits(dir, &event)? == 2, "{event}: {}", text(dir, "trace")?);
            fs::rename(&other, &old)?;
            // The listing shows the path as it was written.
            let listed = text(dir, "uprobe_events")?;
            ensure!(listed.contains(&link.display().to_string()), "{listed}");
            set(dir, &format!("events/files/{event}/enable"), "0")?;
            set(dir, "uprobe_events", "")?;
            swap(&link, &old)?;
        }
        Ok(())
    });
}

#[test]
fn a_killed_opener_is_replaced() {
    host::as_root(|| {
        let scratch = Scratch::new("opener")?;
        let program = scratch.program("program")?;
        let mounted = Mounted::start("opener")?;
        let dir = mounted.dir();
        for round in 0..3 {
            let line = format!("p:files/opened_{round} {}:{:#x}", program.display(), entry(&program)?);
            let end = Instant::now() + Duration::from_secs(20);
            // Requests in flight fail when the helper process ends; later ones succeed.
            while let Err(error) = mirror::write(dir, "dynamic_events", line.as_bytes(), true) {
                ensure!(error == libc::EIO && Instant::now() < end, "{error}");
            }
            let helpers = mounted.helpers("tracer-opener")?;
            ensure!(helpers.len() == 3 - round, "{helpers:?}");
            let first = helpers.first().and_then(|pid| Pid::from_raw(*pid)).context("a process")?;
            rustix::process::kill_process(first, Signal::KILL)?;
            let end = Instant::now() + Duration::from_secs(20);
            while mounted.helpers("tracer-opener")?.len() == helpers.len() {
                ensure!(Instant::now() < end, "it lives");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // Without the last helper, naming a file only fails with an error.
        let line = format!("p:files/late {}:{:#x}", program.display(), entry(&program)?);
        ensure!(mirror::write(dir, "dynamic_events", line.as_bytes(), true) == Err(libc::EIO));
        set(dir, "events/files/opened_0/enable", "1")?;
        run(&program)?;
        ensure!(hits(dir, "opened_0")? == 1);
        mounted.stop()?.success().map(drop)
    });
}

#[test]
fn a_file_that_changed_is_refused() {
    host::as_root(|| {
        let scratch = Scratch::new("change")?;
        let program = scratch.program("program")?;
        let mounted = Mounted::start("change")?;
        let dir = mounted.dir();
        let place = format!("{}:{:#x}", program.display(), entry(&program)?);
        set(dir, "dynamic_events", &format!("p:files/change {place}"))?;
        File::options().append(true).open(&program)?.write_all(b"more")?;
        let done = mirror::write(dir, "events/files/change/enable", b"1", false);
        ensure!(done == Err(libc::ESTALE), "{done:?}");
        ensure!(text(dir, "events/files/change/enable")? == "0\n");
        // A new definition uses the file's current content.
        set(dir, "dynamic_events", &format!("p:files/again {place}"))?;
        set(dir, "events/files/again/enable", "1")?;
        run(&program)?;
        ensure!(hits(dir, "again")? == 1 && hits(dir, "change")? == 0, "{}", text(dir, "trace")?);
        let said = mounted.stop()?.stderr;
        ensure!(said.contains("changed after offset"), "{said}");
        Ok(())
    });
}

/// Copies of this test are programs with events. Each copy runs this test, which hits the events and prints whether
/// they are traced before and after the hits.
#[test]
fn a_program_hits_its_events() {
    let before = events::trace_everything_enabled();
    events::round(0);
    println!("traced: {before}, {}", events::trace_everything_enabled());
}

/// Runs a copy of this test, which hits each event once. Returns whether the event's semaphore is raised.
fn hit(copy: &Path) -> Result<bool> {
    let (before, after) = hit_and_look(copy)?;
    ensure!(before == after, "the semaphore changed meanwhile");
    Ok(before)
}

/// As [`hit`], but returns whether the semaphore is raised before and after the hits.
fn hit_and_look(copy: &Path) -> Result<(bool, bool)> {
    let own = host::test_name(module_path!(), "a_program_hits_its_events");
    let output = Command::new(copy).args(["--exact", "--nocapture", &own]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && said.contains("1 passed"), "{}: {said}", copy.display());
    let states = said.lines().find_map(|line| line.split_once("traced: ")?.1.split_once(", "));
    let parsed = states.and_then(|(before, after)| Some((before.parse().ok()?, after.parse().ok()?)));
    parsed.with_context(|| said.into_owned())
}

#[test]
fn events_of_a_program_stay_at_the_file_that_was_named() {
    host::as_root(|| {
        let scratch = Scratch::new("program")?;
        let [old, new, link] = ["old", "new", "link"].map(|name| scratch.0.join(name));
        for copy in [&old, &new] {
            fs::copy(std::env::current_exe()?, copy)?;
        }
        symlink(&old, &link)?;
        let mounted = Mounted::start("program")?;
        let dir = mounted.dir();
        let done = mirror::write(dir, "program_events", link.as_os_str().as_encoded_bytes(), false);
        ensure!(done.is_ok(), "{done:?}");
        let enable = "events/demo/everything/enable";
        swap(&link, &new)?;
        ensure!(!hit(&old)? && !hit(&new)?, "a semaphore is raised before anybody traces");
        set(dir, enable, "1")?;
        ensure!(!hit(&new)? && !hit(&link)?, "the semaphore of the new file is raised");
        ensure!(hits(dir, "everything")? == 0, "the probe is at the new file: {}", text(dir, "trace")?);
        for count in 1..=3 {
            ensure!(hit(&old)?, "the semaphore of the old file is not raised");
            ensure!(hits(dir, "everything")? == count, "hit {count}: {}", text(dir, "trace")?);
        }
        set(dir, enable, "0")?;
        // The daemon closes the attachments after the write, which lowers the semaphore.
        let (start, limit) = (Instant::now(), host::patience(Duration::from_secs(5)));
        while hit_and_look(&old)? != (false, false) {
            ensure!(start.elapsed() < limit, "the semaphore stays raised");
            std::thread::sleep(Duration::from_millis(5));
        }
        eprintln!("the semaphore was raised for {:?} more", start.elapsed());
        ensure!(hits(dir, "everything")? == 3, "hits that nobody traces: {}", text(dir, "trace")?);
        // Names the file again and then changes its content.
        set(dir, "program_events", "")?;
        set(dir, "program_events", old.to_str().context("a plain name")?)?;
        File::options().append(true).open(&old)?.write_all(b"more")?;
        let done = mirror::write(dir, enable, b"1", false);
        ensure!(done == Err(libc::ESTALE), "{done:?}");
        Ok(())
    });
}

#[test]
fn restored_probes_are_at_the_same_file() {
    host::as_root(|| {
        let scratch = Scratch::new("restore")?;
        let (old, new, same) = (scratch.program("old")?, scratch.program("new")?, scratch.program("same")?);
        let link = scratch.0.join("link");
        symlink(&old, &link)?;
        let place = scratch.0.join("mirror");
        let mut first = Mounted::at(place.clone())?;
        for (event, path) in [("moved", &link), ("stays", &same)] {
            let line = format!("p:files/{event} {}:{:#x}", path.display(), entry(&old)?);
            mirror::write(&place, "uprobe_events", line.as_bytes(), true)
                .map_err(std::io::Error::from_raw_os_error)?;
            set(&place, &format!("events/files/{event}/enable"), "1")?;
        }
        first.kill();
        swap(&link, &new)?;
        let second = Mounted::with(place.clone(), &["--restore"])?;
        let left = text(&place, "uprobe_events")?;
        ensure!(!left.contains("files/moved") && left.contains("files/stays"), "{left}");
        run(&same)?;
        run(&new)?;
        ensure!(hits(&place, "stays")? == 1, "{}", text(&place, "trace")?);
        let said = second.stop()?.stderr;
        ensure!(said.contains("files/moved") && said.contains("Stale file handle"), "{said}");
        Ok(())
    });
}

/// Writes in a separate thread, because the write may block.
fn write_beside(dir: &Path, file: &'static str, line: String) -> Receiver<(Answer, Duration)> {
    let (to, answer) = channel();
    let dir = dir.to_owned();
    std::thread::spawn(move || {
        let start = Instant::now();
        let done = mirror::write(&dir, file, line.as_bytes(), true);
        let _ = to.send((done, start.elapsed()));
    });
    answer
}

/// Uses other files until `done` returns true, at most as long as the refusal of a file may take. Returns the
/// durations.
fn others(dir: &Path, mut done: impl FnMut() -> bool) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    let limit = host::patience(Duration::from_secs(10));
    let begin = Instant::now();
    while !done() || took.len() < 20 {
        ensure!(begin.elapsed() < limit, "no answer in {limit:?}, in which others had {}", took.len());
        let (to, answer) = channel();
        let own = dir.to_owned();
        let start = Instant::now();
        // Runs in a thread, so that this test does not hang when the mirror hangs.
        std::thread::spawn(move || {
            let read = text(&own, "tracing_on").and_then(|_| set(&own, "trace_marker", "still here"));
            let _ = to.send(read.and_then(|()| text(&own, "uprobe_events")));
        });
        answer.recv_timeout(Duration::from_secs(10)).context("other files hang")??;
        took.push(start.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    took.sort();
    Ok(took)
}

/// The three files, each with a line that names the path.
fn named(path: &Path) -> [(&'static str, String); 3] {
    let path = path.display();
    [
        ("program_events", path.to_string()),
        ("uprobe_events", format!("p:files/named {path}:0")),
        ("dynamic_events", format!("p:files/named {path}:main")),
    ]
}

#[test]
fn no_client_waits_for_a_fifo_or_a_device() {
    host::as_root(|| {
        let scratch = Scratch::new("fifo")?;
        let running = {
            let (fifo, huge) = (scratch.0.join("fifo"), scratch.0.join("huge"));
            rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR)?;
            File::create(&huge)?.set_len(3 << 30)?;
            let place = scratch.0.join("mirror");
            let running = Tracer::new([Path::new("mount"), &place])?.start()?;
            for path in [&fifo, Path::new("/dev/zero"), Path::new("/dev/tty"), Path::new("/proc"), &huge] {
                for (file, line) in named(path) {
                    let answer = write_beside(&place, file, line);
                    others(&place, || true)?;
                    let (done, took) = answer
                        .recv_timeout(host::patience(Duration::from_secs(5)))
                        .with_context(|| format!("{} to {file} hangs", path.display()))?;
                    let expected = match file {
                        // An instruction's offset is valid in a file of any size.
                        "uprobe_events" if path == huge => Ok(()),
                        _ if path == huge => Err(libc::EFBIG),
                        _ => Err(libc::EINVAL),
                    };
                    ensure!(done == expected, "{} to {file}: {done:?}", path.display());
                    let limit = host::patience(Duration::from_secs(2));
                    ensure!(took < limit, "{} to {file}: {took:?}", path.display());
                }
            }
            running
        };
        let start = Instant::now();
        running.signal(Signal::TERM)?;
        running.wait()?.success()?;
        ensure!(start.elapsed() < Duration::from_secs(2), "its end took {:?}", start.elapsed());
        Ok(())
    });
}

/// A FUSE file system that reads requests and never answers. Dropping it ends all waits.
struct Silent {
    device: Option<OwnedFd>,
}

/// `FUSE_INIT`, and the size of the headers of a request and of an answer (`include/uapi/linux/fuse.h`).
const INIT: u32 = 26;
const IN_HEADER: usize = 40;

impl Silent {
    fn mount(at: &Path) -> Result<Self> {
        fs::create_dir_all(at)?;
        let (device, root) = mount::fuse("tracer-test")?;
        let place = rustix::fs::open(at, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        mount::attach(root.as_fd(), place.as_fd())?;
        let mut requests = File::from(device.try_clone()?);
        let mut request = vec![0; 1 << 17];
        let length = requests.read(&mut request)?;
        let word =
            |at: usize| u32::from_le_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
        ensure!(length >= IN_HEADER && word(4) == INIT, "the first request is FUSE_INIT");
        // struct fuse_out_header, struct fuse_init_out of 7.31: versions, read-ahead, flags, background, the largest
        // write.
        let mut answer = Vec::new();
        answer.extend(80_u32.to_le_bytes());
        answer.extend(0_u32.to_le_bytes());
        answer.extend(&request[8..16]);
        for word in [7_u32, 31, 0, 0, 0, 4096, 1, 1] {
            answer.extend(word.to_le_bytes());
        }
        answer.resize(80, 0);
        requests.write_all(&answer)?;
        // A request that was read but not answered keeps its process waiting despite signals.
        std::thread::spawn(move || while requests.read(&mut request).is_ok_and(|length| length > 0) {});
        Ok(Self { device: Some(device) })
    }

    /// Aborts the connection, because the reading thread has its descriptor as well; the mount itself may be busy.
    fn end(&mut self, at: &Path) {
        let _ = unmount(at, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
        drop(self.device.take());
    }
}

#[test]
fn no_client_waits_for_a_file_system_that_never_answers() {
    host::as_root(|| {
        let scratch = Scratch::new("silent")?;
        let at = scratch.0.join("fuse");
        let mut silent = Silent::mount(&at)?;
        let place = scratch.0.join("mirror");
        let running = Tracer::new([Path::new("mount"), &place])?.start()?;
        let process = pidfd_open(
            Pid::from_raw(running.pid().cast_signed()).context("a process")?,
            PidfdFlags::empty(),
        )?;
        let test = || -> Result<Vec<u32>> {
            for (file, line) in named(&at.join("file")) {
                let answer = write_beside(&place, file, line);
                let mut came = None;
                let took = others(&place, || {
                    came = came.take().or_else(|| answer.try_recv().ok());
                    came.is_some()
                })?;
                let (median, most) = (took[took.len() / 2], took[took.len() - 1]);
                ensure!(
                    median < Duration::from_millis(100),
                    "{file}: others took {median:?}, {most:?} at most"
                );
                let (done, took) = came.context("an answer")?;
                ensure!(done == Err(libc::ETIMEDOUT), "{file}: {done:?}");
                ensure!((Duration::from_secs(2)..Duration::from_secs(5)).contains(&took), "{file}: {took:?}");
                eprintln!("{file}: refused after {took:?}; others took {median:?}, {most:?} at most");
            }
            // After a user has used all slots, further requests are refused at once. No slot becomes free before the
            // file system answers.
            let said = as_nobody(&place, &at.join("file"), 6)?;
            let answers: Vec<&str> = said.lines().collect();
            ensure!(answers.len() == 6, "{said}");
            ensure!(answers[..4].iter().all(|line| line.contains("timed out")), "{said}");
            ensure!(answers[4..].iter().all(|line| line.contains("temporarily unavailable")), "{said}");
            others(&place, || true)?;
            let helpers = children(running.pid())?;
            let waiting =
                write_beside(&place, "uprobe_events", format!("p:files/x {}:0", at.join("x").display()));
            std::thread::sleep(Duration::from_millis(50));
            let start = Instant::now();
            running.signal(Signal::TERM)?;
            let limit = Timespec { tv_sec: 2, tv_nsec: 0 };
            let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit))?;
            ensure!(ended == 1, "it has not ended after {:?}", start.elapsed());
            eprintln!("ended after {:?}", start.elapsed());
            drop(waiting);
            Ok(helpers)
        };
        let helpers = test();
        // Ends the file system first: a process that waits for it cannot even be killed.
        silent.end(&at);
        let outcome = running.stop();
        // All helpers end once the file system is gone.
        let end = Instant::now() + Duration::from_secs(10);
        for pid in helpers? {
            while Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok() {
                ensure!(Instant::now() < end, "a helper stays");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // The daemon has already ended, so there is no process to interrupt.
        ensure!(outcome.is_err() || outcome?.status.success());
        Ok(())
    });
}

/// Names a file repeatedly as a user with write permission for `uprobe_events` only. Returns the shell's output.
fn as_nobody(place: &Path, file: &Path, times: u32) -> Result<String> {
    let file = file.display();
    let script = format!(
        "chmod 755 . && chmod 666 uprobe_events && exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c \
         'for n in $(seq {times}); do /bin/echo p:files/n$n {file}:0 >> uprobe_events; done' 2>&1"
    );
    // Four of the writes wait for two seconds each.
    let limit = host::patience(Duration::from_secs(30)).as_secs().to_string();
    let output = Command::new("timeout").args([&limit, "sh", "-c", &script]).current_dir(place).output()?;
    ensure!(output.status.code() != Some(124), "not done in {limit} s: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The child processes of a process.
fn children(pid: u32) -> Result<Vec<u32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}
