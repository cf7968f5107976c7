//! The memory that a client can make the daemon use: at the limit of each resource, and by files that it holds open.

use std::{fs, io::Write as _, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, Result, ensure};
use tracer_tests::{
    host,
    mirror::{Mounted, set},
    user_events::{Data, Word, in_step},
};
use tracer_user::{engine::quota::Kind, sys::cpus::Cpus};

use crate::user::{Client, open_to_all};

/// The uid of the client.
const USER: u32 = 65_534;
/// Files that it opens.
const OPENS: u32 = 1000;
/// Bytes that the daemon may use besides what is charged: the state of the open files, and memory that the allocator
/// keeps.
const SLACK: usize = 16 << 20;

/// Bytes of anonymous memory of a process and its children.
fn memory(pid: u32) -> Result<usize> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    let own = line.trim().trim_end_matches(" kB").parse::<usize>()? << 10;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut all = own;
    for child in children.split_whitespace() {
        all += memory(child.parse()?)?;
    }
    Ok(all)
}

/// Lets the client open its file once more.
fn open_once(client: &mut Client, number: usize) -> Result<()> {
    client.go_on()?;
    let line = client.line()?;
    ensure!(line == number.to_string(), "{line}");
    Ok(())
}

/// The numbers of bytes that the client reads of its files.
fn rest(client: &mut Client) -> Result<Vec<usize>> {
    client.child.stdin.as_mut().context("its input")?.write_all(b"rest\n")?;
    client.line()?.split(' ').map(|length| Ok(length.parse()?)).collect()
}

fn readable(dir: &Path, name: &str) -> Result<String> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    let path = dir.join(name);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    Ok(path.to_str().context("a path")?.to_owned())
}

#[test]
fn files_that_are_held_open_hold_no_more_than_the_limit() {
    host::as_root(|| {
        let mirror = Mounted::start("held-trace")?;
        let dir = mirror.dir();
        let limit = Kind::HeldBytes.limits().per_payer;
        // All pages of one CPU, held by each open, are three times as much as the limit.
        let opens = host::share(OPENS) as usize;
        let kilobytes = 3 * limit / opens / 1024;
        set(dir, "buffer_size_kb", &kilobytes.to_string())?;
        let path = readable(dir, "trace")?;
        let mark = vec![b'a'; 1000];
        let marker = fs::File::options().write(true).open(dir.join("trace_marker"))?;
        let overwrite = || -> Result<()> {
            // More than a page for each page, because marks have a head.
            (0..kilobytes + 8).try_for_each(|_| Ok((&marker).write_all(&mark)?))
        };
        rustix::thread::sched_setaffinity(None, &one_cpu()?)?;
        overwrite()?;
        let mut client = Client::start(USER, &["hold", &path, "1"])?;
        let before = memory(mirror.pid())?;
        for number in 1..=opens {
            open_once(&mut client, number)?;
            overwrite()?;
        }
        let used = memory(mirror.pid())?.saturating_sub(before);
        eprintln!("{opens} opens of a changing trace of {kilobytes} kB: {} MiB", used >> 20);
        ensure!(used < limit + SLACK, "{used}");
        // Those that hold their pages have them all, and the others show what is left.
        let lengths = rest(&mut client)?;
        let whole = lengths.iter().filter(|length| **length > kilobytes * 600).count();
        eprintln!("{whole} files had all their records");
        ensure!(whole > opens / 10 && lengths.len() == opens, "{whole} of {}", lengths.len());
        // Another client is not affected.
        let mut other = Client::start(USER - 1, &["hold", &path, "1"])?;
        open_once(&mut other, 1)?;
        overwrite()?;
        ensure!(rest(&mut other)?.iter().all(|length| *length > kilobytes * 600));
        drop((client, other));
        mirror.stop()?.success().map(drop)
    });
}

/// The CPU on which this thread runs.
fn one_cpu() -> Result<rustix::thread::CpuSet> {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(Cpus::online()?.first() as usize);
    Ok(cpus)
}

#[test]
fn reads_at_an_offset_hold_no_text() {
    host::as_root(|| {
        let mirror = Mounted::start("held-offset")?;
        let dir = mirror.dir();
        let path = readable(dir, "trace")?;
        let marker = fs::File::options().write(true).open(dir.join("trace_marker"))?;
        for _ in 0..500 {
            (&marker).write_all(&[b'a'; 1000])?;
        }
        let mut client = Client::start(USER, &["hold", &path, "1", "200000"])?;
        open_once(&mut client, 1)?;
        let before = memory(mirror.pid())?;
        let opens = host::share(OPENS) as usize;
        for number in 2..=opens {
            open_once(&mut client, number)?;
        }
        let used = memory(mirror.pid())?.saturating_sub(before);
        eprintln!("{opens} opens that are read at an offset: {} kB", used >> 10);
        ensure!(used < 16 * 1024 * opens + (4 << 20), "{used}");
        drop(client);
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn texts_that_are_not_read_to_their_ends_hold_no_more_than_the_limit() {
    host::as_root(|| {
        let mirror = Mounted::start("held-texts")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        let data = Data::open(dir)?;
        let limit = Kind::HeldBytes.limits().per_payer;
        // A line is longer than its event's name.
        let name = "e".repeat(200);
        let opens = host::share(OPENS) as usize;
        let events = 3 * limit / opens / name.len() + 1;
        for number in 0..events {
            in_step("register", data.register_first_age(&format!("{name}_{number} u32 a")))?;
        }
        let path = readable(dir, "user_events_status")?;
        let mut client = Client::start(USER, &["hold", &path, "1"])?;
        let before = memory(mirror.pid())?;
        for number in 1..=opens {
            open_once(&mut client, number)?;
        }
        let used = memory(mirror.pid())?.saturating_sub(before);
        eprintln!("{opens} opens of a text of {} kB: {} MiB", (events * name.len()) >> 10, used >> 20);
        ensure!(used < limit + SLACK, "{used}");
        let lengths = rest(&mut client)?;
        ensure!(lengths.len() == opens && lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
        drop(client);
        mirror.stop()?.success().map(drop)
    });
}

/// The words of a client's command, the beginning of its answer, and the maximum bytes of memory that this may use.
const RESOURCES: &[(&[&str], &str, usize)] = &[
    (&["flood", "DIR", "1024"], "persistent 1 made 1024 refused 0 ", 16 << 20),
    (&["take", "files", "DIR", "1024"], "taken 1024 refused 0 ", 16 << 20),
    (&["take", "user_events_data", "DIR", "256"], "taken 256 refused 0 ", 16 << 20),
    (&["take", "spaces", "DIR", "256"], "taken 256 refused 0 ", 16 << 20),
    (&["take", "reads", "DIR", "64"], "taken 64 refused 0 ", 16 << 20),
];

#[test]
fn a_client_at_each_limit_uses_little_memory() {
    host::as_root(|| {
        for (words, answer, most) in RESOURCES {
            let mirror = Mounted::start("held-limits")?;
            let dir = mirror.dir();
            open_to_all(dir)?;
            for file in ["tracing_on", "trace_pipe"] {
                readable(dir, file)?;
            }
            let path = dir.to_str().context("a path")?;
            let words: Vec<&str> =
                words.iter().map(|word| if *word == "DIR" { path } else { word }).collect();
            // The first client makes the daemon read what it needs for any.
            let (own, word) = (Data::open(dir)?, Word::default());
            in_step("register", own.register("first u32 a", &word, 0, 0))?;
            let before = memory(mirror.pid())?;
            let mut client = Client::start(USER, &words)?;
            let line = client.line()?;
            let used = memory(mirror.pid())?.saturating_sub(before);
            eprintln!("{}: {line}: {} kB", words.join(" "), used >> 10);
            ensure!(line.starts_with(answer) && used < *most, "{}: {line}: {used}", words.join(" "));
            drop(client);
            mirror.stop()?.success()?;
        }
        Ok(())
    });
}

#[test]
fn nobody_deletes_an_event_of_another_by_any_interface() {
    host::as_root(|| {
        let mirror = Mounted::start("held-ages")?;
        let dir = mirror.dir();
        open_to_all(dir)?;
        let path = dir.to_str().context("a path")?;
        // The victim's event is of the first interface and persists. Another client registers it by the new one.
        let mut victim = Client::start(USER, &["flood", path, "1", "old"])?;
        ensure!(victim.line()?.contains(" made 1 "));
        let mut other = Client::start(USER - 1, &["leave", path, "old_0 u32 a", "0"])?;
        ensure!(other.line()? == "registered");
        // And by the first one, which gives an event of the new interface a bit in the page of all programs.
        let data = Data::open(dir)?;
        let word = Word::default();
        in_step("register", data.register("new_0 u32 a", &word, 0, tracer_tests::user_events::PERSIST))?;
        let mut flood = Client::start(USER - 1, &["flood", path, "1", "new"])?;
        ensure!(flood.line()?.contains(" made 1 "));
        drop((victim, other, flood, data));
        let answer = |uid: u32, name: &str| Client::start(uid, &["delete", path, name])?.line();
        let until = |uid: u32, name: &str, expected: &str| {
            // The ends of programs are learned soon.
            crate::timed::await_true(expected, || Ok(answer(uid, name)? == expected))
        };
        let refused = format!("deleted Err({})", libc::EPERM);
        until(USER - 1, "old_0", &refused)?;
        until(USER, "old_0", "deleted Ok(())")?;
        // This process still has a bit of the other event.
        ensure!(answer(USER - 1, "new_0")? == format!("deleted Err({})", libc::EBUSY));
        let data = Data::open(dir)?;
        in_step("unregister", data.unregister(&word, 0))?;
        until(USER - 1, "new_0", &refused)?;
        in_step("delete", data.delete("new_0"))?;
        mirror.stop()?.success().map(drop)
    });
}
