//! Attacks of an unprivileged client on a mirror through its user events: pages whose faults are never answered,
//! programs that replace others, and requests beyond every limit. The tests also check the effects on root.

use std::{
    collections::BTreeMap,
    ffi::CStr,
    fs,
    io::{BufRead, BufReader, Read, Write as _},
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::inotify;
use tracer_tests::{
    blocked_fs::BlockedFs,
    host,
    mirror::{Mounted, set, text},
    races,
    user_events::{Data, Word, in_step},
};

use crate::timed::{await_true, soon};

/// User and group id of nobody.
pub(crate) const USER: u32 = 65_534;
/// How long the daemon waits for a client that registers an address in unavailable memory.
const DEADLINE: Duration = Duration::from_secs(4);
/// How long a change of an event waits for clients whose memory is unavailable.
const CHANGE_WAIT: Duration = Duration::from_millis(100);

/// The number after a word of a line.
fn number(line: &str, key: &str) -> Result<u64> {
    let mut words = line.split([' ', ',']).skip_while(|word| *word != key);
    words.nth(1).and_then(|word| word.parse().ok()).with_context(|| format!("{key} of {line}"))
}

/// A client that is killed on drop.
pub(crate) struct Client {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Client {
    pub(crate) fn start(uid: u32, words: &[&str]) -> Result<Self> {
        let mut command = host::binary_as(uid, uid, "tracer-user-attack", "TRACER_USER_ATTACK_BIN")?;
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Self { child, lines })
    }

    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        ensure!(!line.is_empty(), "it ended: {:?}", self.child.wait());
        Ok(line.trim_end().to_owned())
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets a client that waits for input continue.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        Ok(self.child.stdin.as_mut().context("its input")?.write_all(b"\n")?)
    }

    /// Waits for the end of a client.
    pub(crate) fn ended(mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        host::kill(&mut self.child);
    }
}

/// Allows all users to register.
pub(crate) fn open_to_all(dir: &Path) -> Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(dir.join("user_events_data"), fs::Permissions::from_mode(0o666))?;
    Ok(fs::set_permissions(dir.join("user_events_status"), fs::Permissions::from_mode(0o666))?)
}

/// A setuid-root program that exists until drop.
struct Setuid(PathBuf);

impl Setuid {
    fn make() -> Result<Self> {
        // Tests run at the same time.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tracer-setuid-{}-{number}", std::process::id()));
        let _ = fs::remove_file(&path);
        fs::copy(host::binary("tracer-user-attack", "TRACER_USER_ATTACK_BIN")?, &path)?;
        std::os::unix::fs::chown(&path, Some(0), Some(0))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755))?;
        Ok(Self(path))
    }
}

impl Drop for Setuid {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The mirror refuses a client whose page fault is unanswered. The client executes a setuid-root program, and then
/// the page fault is answered.
fn attack(dir: &Path, how: &str) -> Result<()> {
    let (held, program) = (BlockedFs::mount(how)?, Setuid::make()?);
    let (page, path) = (held.file(), dir.to_str().context("a path")?);
    let words =
        ["become", path, page.to_str().context("a path")?, program.0.to_str().context("a path")?, how];
    let mut client = Client::start(USER, &words)?;
    let refused = client.line()?;
    ensure!(refused.starts_with(&format!("refused Err({})", libc::EFAULT)), "{refused}");
    ensure!(held.reads() > 0, "nobody waited for the page");
    ensure!(client.line()? == "watching as root", "it is no program of root's");
    // Processes that waited for the page continue now.
    held.release();
    let ended = client.child.wait()?;
    ensure!(ended.success(), "memory of a program of root's was written: {ended}");
    Ok(())
}

#[test]
fn a_setuid_program_executed_by_a_client_is_not_written() {
    host::as_root(|| {
        let mirror = Mounted::start("user-trust")?;
        open_to_all(mirror.dir())?;
        attack(mirror.dir(), "write")?;
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_setuid_program_executed_by_a_reader_is_not_written() {
    host::as_root(|| {
        let place = std::env::temp_dir().join(format!("tracer-user-group-{}", std::process::id()));
        let mirror = Mounted::with(place, &["--gid", &USER.to_string(), "--mode", "750"])?;
        attack(mirror.dir(), "read")?;
        mirror.stop()?.success().map(drop)
    });
}

/// Runs a function and returns its duration.
fn timed(what: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let since = Instant::now();
    what()?;
    Ok(since.elapsed())
}

/// Number of threads of one client that send requests at once. [`WAITING`] of them may wait.
const CROWD: u64 = 300;
/// See [`CROWD`].
const WAITING: u64 = 128;

#[test]
fn clients_that_wait_forever_block_no_other_client() {
    host::as_root(|| {
        let mirror = Mounted::start("user-crowd-held")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        let held = BlockedFs::mount("crowd")?;
        let (page, path) = (held.file(), dir.to_str().context("a path")?);
        let page = page.to_str().context("a path")?;
        let mut crowd = Client::start(USER, &["crowd", path, page, &CROWD.to_string()])?;
        ensure!(crowd.line()? == "asking");
        let asking = Instant::now();
        await_true("a thread waits for the page", || Ok(held.reads() > 0))?;
        // Root and another client are served while the threads wait.
        let (data, word) = (Data::open(dir)?, Word::default());
        in_step("register", data.register("mine u32 a", &word, 0, 0))?;
        let mut other = Client::start(USER - 1, &["flood", path, "1"])?;
        ensure!(other.line()?.contains("made 1 "), "another client is refused");
        word.becomes(1, || set(dir, "events/user_events/mine/enable", "1"))?;
        let served = asking.elapsed();
        // As many requests of the crowd wait as one uid may have, and all others are refused at once.
        let line = crowd.line()?;
        eprintln!("{CROWD} threads on a held page: {line}; all others served after {served:?}");
        ensure!(served < DEADLINE || host::part() > 1, "nobody waited any more: {served:?}");
        let answers = line.split(", ").map(|part| {
            let number = |key| number(part, key);
            Ok((number("errno")? as i32, (number("count")?, number("from")?, number("to")?)))
        });
        let answers: BTreeMap<i32, (u64, u64, u64)> = answers.collect::<Result<_>>()?;
        let (Some(late), Some(at_once)) = (answers.get(&libc::EFAULT), answers.get(&libc::ENOMEM)) else {
            bail!("{line}")
        };
        ensure!(answers.len() == 2 && late.0 == WAITING && at_once.0 == CROWD - WAITING, "{line}");
        // Those that are refused at once have their answer before the deadline of the first that waits.
        let deadline = DEADLINE.as_millis() as u64;
        ensure!(late.1 >= deadline && at_once.2 < late.1, "{line}");
        ensure!(late.2 < deadline + soon().as_millis() as u64, "{line}");
        held.release();
        drop((crowd, other));
        mirror.stop()?.success().map(drop)
    });
}

/// Number of uids with stuck clients, and of clients of each.
const STUCK_UIDS: u32 = 16;
/// See [`STUCK_UIDS`].
const STUCK_OF_EACH: u32 = 8;

#[test]
fn changes_do_not_wait_for_stuck_clients() {
    host::as_root(|| {
        let mirror = Mounted::start("user-stuck")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        let held = BlockedFs::mount("stuck")?;
        let (page, path) = (held.file(), dir.to_str().context("a path")?);
        let page = page.to_str().context("a path")?;
        let (data, word) = (Data::open(dir)?, Word::default());
        in_step("register", data.register("stuck u32 a", &word, 0, 0))?;
        let change = |round: u32| -> Result<Duration> {
            let on = round.is_multiple_of(2);
            let value = if on { "1" } else { "0" };
            let took = timed(|| set(dir, "events/user_events/stuck/enable", value))?;
            // A change waits [`CHANGE_WAIT`] for a notification, so that a slow machine may update this program later.
            await_true("this program is updated", || Ok(word.get() == u32::from(on)))?;
            Ok(took)
        };
        // Per uid as many clients as the daemon has threads for a uid. The uids together use all threads except
        // root's.
        let mut clients = Vec::new();
        for number in 0..STUCK_UIDS * STUCK_OF_EACH {
            let mut client = Client::start(USER - number % STUCK_UIDS, &["stuck", path, page])?;
            ensure!(client.line()? == "stuck");
            clients.push(client);
        }
        let mut times = vec![change(0)?];
        // The daemon remembers these clients, so only the first change waits for them. Any further wait would last
        // [`CHANGE_WAIT`]; a slow machine may need several changes for one that is faster than that.
        let quick = host::patience(CHANGE_WAIT);
        while times.len() < 10 || times[1..].iter().all(|took| *took >= quick) {
            ensure!(times.len() < 100, "each change waits for the clients: {times:?}");
            times.push(change(times.len() as u32)?);
        }
        eprintln!("beside {} stuck clients each change took {times:?}", clients.len());
        // A wait for one client after the other would take longer than this.
        ensure!(times.iter().all(|took| *took < soon()), "{times:?}");
        // The daemon's end waits for no client either.
        set(dir, "events/user_events/stuck/enable", "1")?;
        let took = timed(|| mirror.stop_within(soon())?.success().map(drop))?;
        eprintln!("the end took {took:?}");
        ensure!(word.get() == 0, "{:#x}", word.get());
        held.release();
        Ok(())
    });
}

/// Events that root registers after a client has used up its limit.
const ROOTS_EVENTS: u32 = 2000;
/// Smallest interval between two writes of the daemon's state file.
const SAVE_INTERVAL: Duration = Duration::from_millis(100);

/// Counts how often a mirror's state file is replaced.
struct StateWrites {
    changes: OwnedFd,
    name: String,
}

impl StateWrites {
    fn watch(dir: &Path) -> Result<Self> {
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&changes, "/run/tracer/state", inotify::WatchFlags::MOVED_TO)?;
        Ok(Self { changes, name: state_name(dir) })
    }

    fn count(self) -> Result<u128> {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let (mut changes, mut count) = (inotify::Reader::new(self.changes, &mut buffer), 0);
        loop {
            match changes.next() {
                Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => {
                    bail!("too many changes")
                }
                Ok(event) => {
                    let ours = |name: &CStr| name.to_bytes() == self.name.as_bytes();
                    count += u128::from(event.file_name().is_some_and(ours));
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(count),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[test]
fn a_client_has_a_limit_of_events_and_no_persistent_ones() {
    host::as_root(|| {
        let mirror = Mounted::start("user-flood")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        let path = dir.to_str().context("a path")?;
        let count = if host::part() > 1 { 1300 } else { 3000 };
        let mut client = Client::start(USER, &["flood", path, &count.to_string()])?;
        let line = client.line()?;
        eprintln!("{count} registrations: {line}");
        let expected =
            format!("persistent {} made 1024 refused {} errno {} ", libc::EPERM, count - 1024, libc::EMFILE);
        ensure!(line.starts_with(&expected), "{line}");
        // The client's events do not outlive the daemon, and root can make more.
        set(dir, "tracing_on", "0")?;
        let state = text(Path::new("/run/tracer/state"), &state_name(dir))?;
        ensure!(!state.contains("flood_"), "{state}");
        let (data, word) = (Data::open(dir)?, Word::default());
        let kept = StateWrites::watch(dir)?;
        let since = Instant::now();
        let roots = host::share(ROOTS_EVENTS).max(600);
        for number in 0..roots {
            in_step("register", data.register_first_age(&format!("root_{number} u32 a")))?;
        }
        let last = format!("root_{} u32 a", roots - 1);
        await_true("the state with the last event is written", || {
            Ok(text(Path::new("/run/tracer/state"), &state_name(dir))?.contains(&last))
        })?;
        let (took, kept) = (since.elapsed(), kept.count()?);
        eprintln!("{roots} registrations of root's took {took:?}; the state was kept {kept} times");
        // The state is written at intervals, independent of the number of registrations.
        let most = took.as_millis() / SAVE_INTERVAL.as_millis() + 2;
        ensure!((1..=most.min(u128::from(roots / 4))).contains(&kept), "{kept} times in {took:?}");
        in_step("register", data.register("last u32 a", &word, 0, 0))?;
        word.becomes(1, || set(dir, "events/user_events/last/enable", "1"))?;
        drop((client, data));
        mirror.stop()?.success().map(drop)
    });
}

/// The name of a mirror's state file.
fn state_name(dir: &Path) -> String {
    let path = dir.to_string_lossy().replace('-', "%2d").replace('/', "-");
    path + ".json"
}

#[test]
fn a_client_has_a_limit_of_bytes_of_definitions() {
    host::as_root(|| {
        let mirror = Mounted::start("definitions")?;
        let dir = mirror.dir();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(dir.join("dynamic_events"), fs::Permissions::from_mode(0o666))?;
        // Some 2,000 bytes for the fields of each event, and two events on one more.
        let fields: Vec<_> =
            (0..60).map(|number| format!(" u64 a_field_with_a_long_name_{number};")).collect();
        let fields = fields.concat();
        let script = "made=0; while [ $made -lt 400 ]; do \
                      printf 's:filled_%d%s\n' $made \"$2\" >> $1/dynamic_events || break; \
                      made=$((made + 1)); done; echo $made";
        let fill = || -> Result<usize> {
            let output = Command::new("sh")
                .args(["-c", script, "sh", dir.to_str().context("a path")?, &fields])
                .uid(USER)
                .gid(USER)
                .stdin(Stdio::null())
                .output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            said.trim().parse().with_context(|| format!("{output:?}"))
        };
        let made = fill()?;
        let bytes = made * (fields.len() + "s:filled_100".len());
        println!("{made} definitions of {bytes} bytes");
        ensure!((200 << 10..=256 << 10).contains(&bytes), "{made} definitions, {bytes} bytes");
        ensure!(text(dir, "dynamic_events")?.lines().count() == made);
        // Root can still define events, and deleted definitions no longer count.
        set(dir, "synthetic_events", "")?;
        set(dir, "dynamic_events", &format!("s:of_root{fields}"))?;
        set(dir, "dynamic_events", "")?;
        if host::part() == 1 {
            ensure!(fill()? == made);
        }
        mirror.stop()?.success().map(drop)
    });
}

/// The limited resources: the kind, the limit of one uid, the errno beyond the limit, and the daemon's name for the
/// resource.
const RESOURCES: [(&str, u64, i32, &str); 4] = [
    ("files", 1024, libc::EMFILE, "open files"),
    ("user_events_data", 256, libc::ENOMEM, "open user_events_data files"),
    ("reads", 64, libc::EAGAIN, "waiting reads"),
    ("spaces", 256, libc::ENOMEM, "address spaces with user events"),
];
/// Number of requests beyond the limit.
const EXCESS: u64 = 20;

#[test]
fn a_client_reaches_its_limits_and_root_is_served() {
    host::as_root(|| {
        let mirror = Mounted::start("user-takes")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        for file in ["tracing_on", "trace_pipe"] {
            fs::set_permissions(dir.join(file), fs::Permissions::from_mode(0o644))?;
        }
        let path = dir.to_str().context("a path")?;
        // The clients' readers do not receive the marks of this instance.
        let own = mirror.instance("own")?;
        for (index, (what, most, errno, _)) in RESOURCES.into_iter().enumerate() {
            let mut client = Client::start(USER, &["take", what, path, &(most + EXCESS).to_string()])?;
            let line = client.line()?;
            eprintln!("{what}: {line}");
            ensure!(line == format!("taken {most} refused {EXCESS} errnos {{{errno}}}"), "{what}: {line}");
            // Root opens files, waits for records, and registers events.
            ensure!(text(dir, "tracing_on")? == "1\n");
            let mut pipe = fs::File::open(own.join("trace_pipe"))?;
            let reader = std::thread::spawn(move || {
                let mut line = [0; 256];
                pipe.read(&mut line).map(|length| String::from_utf8_lossy(&line[..length]).into_owned())
            });
            set(&own, "trace_marker", &format!("beside {what}"))?;
            await_true("the reader has a record", || Ok(reader.is_finished()))?;
            let record = reader.join().map_err(|_| anyhow::anyhow!("the reader"))??;
            ensure!(record.contains(&format!("beside {what}")), "{record}");
            let (data, word) = (Data::open(dir)?, Word::default());
            in_step("register", data.register(&format!("served_{index} u32 a"), &word, 0, 0))?;
            word.becomes(1, || set(dir, &format!("events/user_events/served_{index}/enable"), "1"))
                .context(what)?;
            // The end of the client releases its resources.
            drop(client);
            await_true("the resources are given back", || {
                Ok(Client::start(USER, &["take", what, path, "1"])?.line()?.starts_with("taken 1 "))
            })?;
        }
        let outcome = mirror.stop()?.success()?;
        for (what, _, _, name) in RESOURCES {
            let said = format!("uid {USER} is refused more {name}:");
            let lines = outcome.stderr.lines().filter(|line| line.contains(&said)).count();
            ensure!(lines == 1, "{what}: {lines} lines in {}", outcome.stderr);
        }
        Ok(())
    });
}

#[test]
fn events_do_not_hide_files_and_the_page_is_not_written() {
    host::as_root(|| {
        let mirror = Mounted::start("user-names")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        let (data, word) = (Data::open(dir)?, Word::default());
        for (bit, name) in ["enable", "filter", "other"].into_iter().enumerate() {
            in_step(name, data.register(&format!("{name} u32 a"), &word, bit as u8, 0))?;
        }
        for file in ["enable", "filter"] {
            ensure!(fs::metadata(dir.join("events/user_events").join(file))?.is_file(), "{file}");
        }
        let listed = fs::read_dir(dir.join("events/user_events"))?.filter_map(Result::ok).count();
        ensure!(listed == 3, "{listed} names");
        word.becomes(0b111, || set(dir, "events/user_events/enable", "1"))?;
        let mut client = Client::start(USER, &["page", dir.to_str().context("a path")?])?;
        ensure!(client.child.wait()?.success());
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_killed_helper_is_replaced_and_nothing_is_forgotten() {
    host::as_root(|| {
        let mirror = Mounted::start("user-helper")?;
        let dir = mirror.dir();
        let (data, word) = (Data::open(dir)?, Word::default());
        in_step("register", data.register("kept u32 a", &word, 5, 0))?;
        for round in 0..2 {
            let helpers = mirror.helpers("tracer-memory")?;
            ensure!(helpers.len() == 3 - round, "{helpers:?}");
            // The helper that was started first is the active one.
            let first = helpers.iter().min().context("a helper")?;
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(*first).context("a process")?,
                rustix::process::Signal::KILL,
            )?;
            await_true("another helper serves", || {
                // A request in flight is lost; the next one is not.
                set(dir, "events/user_events/kept/enable", "0")?;
                set(dir, "events/user_events/kept/enable", "1")?;
                let done = data.register(&format!("more{round} u32 a"), &word, round as u8, 0);
                Ok(word.get() & 1 << 5 != 0 && matches!(done, Ok(_) | Err(libc::EADDRINUSE)))
            })?;
        }
        word.becomes(0, || set(dir, "events/user_events/kept/enable", "0"))?;
        mirror.stop()?.success().map(drop)
    });
}

/// The soak test plays more races, with other seeds.
#[test]
fn no_race_writes_into_another_address_space() {
    host::as_root(|| {
        let program = host::binary("tracer-user-attack", "TRACER_USER_ATTACK_BIN")?;
        let races = u64::from(host::share(25_000));
        eprintln!("{}", races::play(&program, races, 88_172_645_463_325_252)?);
        Ok(())
    });
}
