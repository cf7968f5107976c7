//! Many users at once, and users with many uids: what they use up together, and what is left for others and for root.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    sync::{Arc, mpsc::channel},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open},
};
use tracer_tests::{
    blocked_fs::BlockedFs,
    host,
    mirror::{Mounted, set, text},
};

use crate::timed::{await_true, soon};
use crate::user::{Client, open_to_all};

/// The first uid of the clients. They have this one and lower ones.
const FIRST: u32 = 65_534;
/// A uid that owns a user namespace, and the first uid that is mapped in it.
const OWNER: u32 = 65_300;
/// See [`OWNER`].
const MAPPED: u32 = 3_000_000;
/// Open files that a payer may have.
const FILES: u64 = 1024;

/// Starts a client as a uid of a new user namespace.
fn within(owner: u32, uid: u32, mapped: u32, words: &[&str]) -> Result<Client> {
    let (owner, uid) = (owner.to_string(), uid.to_string());
    let mut client = Client::start(0, &[&["within", &owner, &uid], words].concat())?;
    ensure!(client.line()? == "entered");
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", client.pid()), format!("0 {mapped} 65536"))?;
    }
    client.go_on()?;
    Ok(client)
}

/// The number of files that a client could open.
fn taken(client: &mut Client) -> Result<u64> {
    let line = client.line()?;
    let number = line.strip_prefix("taken ").and_then(|rest| rest.split(' ').next()).context("a number")?;
    number.parse().with_context(|| line.clone())
}

#[test]
fn all_uids_of_a_users_namespace_count_for_that_user() {
    host::as_root(|| {
        let mirror = Mounted::start("payers-subordinate")?;
        let dir = mirror.dir();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(dir.join("tracing_on"), fs::Permissions::from_mode(0o644))?;
        let path = dir.to_str().context("a path")?;
        let take =
            |tries: u64| ["take", "files", path].map(str::to_owned).into_iter().chain([tries.to_string()]);
        let words: Vec<String> = take(700).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // Three uids, in namespaces of one owner, and the owner itself.
        let mut clients = vec![
            within(OWNER, 5, MAPPED, &words)?,
            within(OWNER, 6, MAPPED, &words)?,
            within(OWNER, 70, MAPPED, &words)?,
        ];
        let mut all = 0;
        for client in &mut clients {
            all += taken(client)?;
        }
        ensure!(all == FILES, "{all}");
        clients.push(Client::start(OWNER, &words)?);
        ensure!(taken(clients.last_mut().context("the owner")?)? == 0);
        // Another user, and each of root's containers, have their own.
        let words: Vec<String> = take(FILES + 10).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        for mut other in [
            Client::start(OWNER + 1, &words)?,
            within(0, 5, MAPPED + 65_536, &words)?,
            within(0, 5, MAPPED + 65_536, &words)?,
        ] {
            let opened = taken(&mut other)?;
            ensure!(opened == FILES, "{opened}");
            clients.push(other);
        }
        drop(clients);
        mirror.stop()?.success().map(drop)
    });
}

/// Number of users whose threads all wait.
const HOLDERS: u32 = 14;

#[test]
fn users_that_hold_their_threads_leave_one_to_a_further_user() {
    host::as_root(|| {
        let mirror = Mounted::start("payers-threads")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        let held = BlockedFs::mount("payers-threads")?;
        let (page, path) = (held.file(), dir.to_str().context("a path")?);
        let page = page.to_str().context("a path")?;
        let mut holders = Vec::new();
        for number in 0..HOLDERS {
            let mut holder = Client::start(FIRST - number, &["crowd", path, page, "8"])?;
            ensure!(holder.line()? == "asking");
            holders.push(holder);
        }
        // All requests were refused at their deadline, but their threads still wait.
        for holder in &mut holders {
            let line = holder.line()?;
            ensure!(line.starts_with(&format!("errno {} ", libc::EFAULT)), "{line}");
        }
        let since = Instant::now();
        let mut other = Client::start(FIRST - HOLDERS, &["flood", path, "1"])?;
        let line = other.line()?;
        ensure!(line.contains(" made 1 refused 0 "), "{line}");
        eprintln!("beside {HOLDERS} users with held threads a registration took {:?}", since.elapsed());
        held.release();
        drop((holders, other));
        mirror.stop()?.success().map(drop)
    });
}

/// Number of users with many events.
const FLOODS: u32 = 8;

#[test]
fn root_can_enable_all_events_beside_users_with_many() {
    host::as_root(|| {
        let mirror = Mounted::start("payers-events")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        let path = dir.to_str().context("a path")?;
        let mut clients = Vec::new();
        // An emulated machine takes minutes for the events of all.
        let floods = if host::part() > 1 { 1 } else { FLOODS };
        for number in 0..floods {
            // Their events have names of their own, so none holds an event of another.
            let name = format!("flood{number}");
            let mut client = Client::start(FIRST - number, &["flood", path, "1024", &name])?;
            let line = client.line()?;
            ensure!(number > 2 || line.contains(" made 1024 refused 0 "), "{line}");
            clients.push(client);
        }
        let status = text(dir, "user_events_status")?;
        let active = status.lines().find_map(|line| line.strip_prefix("Active: ")).context("a number")?;
        let active: usize = active.parse()?;
        ensure!(active > 4000 || floods < FLOODS, "{active}");
        let since = Instant::now();
        set(dir, "events/user_events/enable", "1")?;
        let users = since.elapsed();
        set(dir, "events/enable", "1")?;
        eprintln!("{active} user events enabled in {users:?}, all in {:?}", since.elapsed());
        ensure!(text(dir, "events/user_events/enable")?.trim() == "1");
        ensure!(text(dir, "events/enable")?.trim() == "1", "{}", text(dir, "events/enable")?);
        set(dir, "events/enable", "0")?;
        drop(clients);
        mirror.stop()?.success().map(drop)
    });
}

/// Number of users that read at once.
const READERS: u32 = 100;

#[test]
fn root_reads_before_many_other_readers() {
    host::as_root(|| {
        let mirror = Mounted::start("payers-readers")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        fs::set_permissions(dir.join("user_events_status"), fs::Permissions::from_mode(0o644))?;
        let path = dir.to_str().context("a path")?;
        let mut flood = Client::start(FIRST, &["flood", path, "1024"])?;
        flood.line()?;
        let read = || -> Result<Duration> {
            let since = Instant::now();
            text(dir, "user_events_status")?;
            Ok(since.elapsed())
        };
        let alone = read()?;
        let file = dir.join("user_events_status");
        let mut readers = Vec::new();
        for number in 1..=READERS {
            let mut reader = Client::start(FIRST - number, &["read", file.to_str().context("a path")?, "1"])?;
            ensure!(reader.line()? == "reading");
            readers.push(reader);
        }
        let mut times = (0..20).map(|_| read()).collect::<Result<Vec<_>>>()?;
        times.sort_unstable();
        eprintln!("alone {alone:?}, beside {READERS} readers {:?} to {:?}", times[0], times[19]);
        // Each of root's five requests waits for one of another user; in turn with all, they would wait for 500.
        let limit = host::patience(Duration::from_millis(200)).max(20 * alone);
        ensure!(times[10] < limit, "{times:?}");
        drop((readers, flood));
        await_true("the mirror serves", || read().map(|_| true))?;
        mirror.stop()?.success().map(drop)
    });
}

/// Reads that may wait for records, for each payer.
const READS: usize = 64;

#[test]
fn a_read_by_roots_program_of_a_clients_file_counts_for_the_client() {
    host::as_root(|| {
        let mirror = Mounted::start("payers-inherited")?;
        let dir = mirror.dir();
        // Records of root's go to another instance.
        let instance = dir.join("instances/clients");
        fs::create_dir(&instance)?;
        let (cpu, stream) = (instance.join("per_cpu/cpu0"), instance.join("per_cpu/cpu0/trace_pipe_raw"));
        for dir in [dir, &dir.join("instances"), &instance, &instance.join("per_cpu"), &cpu] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        }
        fs::set_permissions(&stream, fs::Permissions::from_mode(0o644))?;
        let mut client =
            Client::start(FIRST, &["reopen", stream.to_str().context("a path")?, "/proc/self/exe"])?;
        ensure!(client.line()? == "opened");
        // As a set-user-ID program that the client starts, this process has the client's open file.
        let process = Pid::from_raw(client.pid().try_into()?).context("a process")?;
        let process = pidfd_open(process, PidfdFlags::empty())?;
        let shows = |number: &i32| {
            let link = fs::read_link(format!("/proc/{}/fd/{number}", client.pid()));
            link.is_ok_and(|link| link == stream)
        };
        let number = (0..64).find(shows).context("the client's descriptor")?;
        let file = Arc::new(pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?);
        let (done, answers) = channel();
        for _ in 0..READS + 6 {
            let (file, done) = (Arc::clone(&file), done.clone());
            std::thread::spawn(move || done.send(rustix::io::read(&*file, &mut [0_u8; 4096][..])));
        }
        for _ in 0..6 {
            let answer = answers.recv_timeout(soon())?;
            ensure!(answer == Err(Errno::AGAIN), "{answer:?}");
        }
        ensure!(answers.try_recv().is_err(), "a read ended that may wait");
        // Root's own file may wait, and reads of the client's file end with the mirror.
        let own = File::open(dir.join("trace_pipe"))?;
        let (done, answer) = channel();
        std::thread::spawn(move || done.send(rustix::io::read(&own, &mut [0_u8; 64][..])));
        set(dir, "trace_marker", "for root")?;
        ensure!(answer.recv_timeout(soon()).context("a read of root's")?? > 0, "no record");
        drop(file);
        mirror.stop()?.success().map(drop)
    });
}
