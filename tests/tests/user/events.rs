//! User events of the mirror: both ABI versions, many clients at once, a malicious client, and every way for a client
//! or a daemon to end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mm::ProtFlags;
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, set, text, write};
use tracer_tests::user_events::{
    Data, MULTI_FORMAT, PERSIST, Page, Tally, Word, fork_with, in_child, in_step, outlive_first_thread,
    wait_for,
};

/// Time limit for asynchronous changes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
fn await_true(what: &str, mut is: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !is() {
        ensure!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn exists(dir: &Path, event: &str) -> bool {
    dir.join("events").join(event).exists()
}

/// Records as the writer's thread and the text after the timestamp.
fn records(dir: &Path) -> Result<Vec<(u32, String)>> {
    let trace = text(dir, "trace")?;
    let lines = trace.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            // `COMM-PID [CPU] FLAGS TIME: EVENT: ...`
            let (head, rest) = line.split_once(": ").context("a time")?;
            let pid =
                head.split_once(" [").and_then(|(task, _)| task.trim().rsplit_once('-')).context("a pid")?.1;
            Ok((pid.parse()?, rest.to_owned()))
        })
        .collect()
}

/// A field's value, whose first form in a line is hexadecimal.
fn field(line: &str, name: &str) -> Option<u32> {
    let from = line.find(&format!("{name}=0x"))? + name.len() + 3;
    let digits: String = line[from..].chars().take_while(char::is_ascii_hexdigit).collect();
    u32::from_str_radix(&digits, 16).ok()
}

#[test]
fn an_event_exists_as_long_as_it_is_held() {
    host::as_root(|| {
        let mirror = Mounted::start("user-events")?;
        let dir = mirror.dir();
        let (data, word) = (Data::open(dir)?, Word::default());
        ensure!(in_step("register", data.register("one u32 a; u32 b", &word, 3, 0))? == 0);
        ensure!(in_step("another", data.register("two s64 x", &word, 4, 0))? == 1);
        ensure!(in_step("again", data.register("one u32 a;u32 b", &word, 5, 0))? == 0);
        for (command, bit, flags, errno) in [
            ("one u32 a", 6, 0, libc::EADDRINUSE),
            ("three u32 a", 3, 0, libc::EADDRINUSE),
            ("three long a", 6, 0, libc::EINVAL),
            ("three:flag u32 a", 6, 0, libc::EINVAL),
            ("three u32 a", 32, 0, libc::EINVAL),
            ("three u32 a", 6, 4, libc::EINVAL),
        ] {
            let done = data.register(command, &word, bit, flags);
            ensure!(done == Err(errno), "{command} {bit} {flags}: {done:?}");
        }
        // Addresses that are read-only or unmapped.
        let (read_only, none) =
            (in_step("page", Page::new(ProtFlags::READ))?, in_step("page", Page::new(ProtFlags::empty()))?);
        for (address, size, errno) in [
            (read_only.address(), 4, libc::ENOMEM),
            (none.address(), 4, libc::ENOMEM),
            (8, 4, libc::ENOMEM),
            (0xffff_8000_0000_0000, 8, libc::EFAULT),
            (read_only.address() + 2, 4, libc::EINVAL),
            (read_only.address() + 4, 8, libc::EINVAL),
            (read_only.address(), 2, libc::EINVAL),
        ] {
            let done = data.register_at("four u8 c", address, 0, size, 0);
            ensure!(done == Err(errno), "{address:#x} {size}: {done:?}");
        }
        // Each open file has its own table of events.
        let other = Data::open(dir)?;
        ensure!(in_step("other file", other.register("two s64 x", &word, 7, 0))? == 0);
        ensure!(other.write(1, &[0; 8]) == Err(libc::ENOENT));

        word.becomes(1 << 3 | 1 << 5, || set(dir, "events/user_events/one/enable", "1"))?;
        word.becomes(0b1011_1000, || set(dir, "events/user_events/enable", "1"))?;
        // A child has a copy of the registration, which the mirror updates. The child can unregister its copy.
        let code = in_child(|| {
            let mut failed = 0;
            let mut check = |number: i32, is: bool| failed |= i32::from(!is) << number;
            check(0, write(dir, "events/user_events/one/enable", b"0", true).is_ok());
            check(1, word.get() == 0b1001_0000);
            check(2, write(dir, "events/user_events/one/enable", b"1", true).is_ok());
            check(3, word.get() == 0b1011_1000);
            check(4, data.unregister(&word, 3) == Ok(()));
            check(5, word.get() == 0b1011_0000);
            check(6, data.unregister(&word, 3) == Err(libc::ENOENT));
            failed
        });
        ensure!(in_step("child", code)? == 0, "{code:?}");
        ensure!(word.get() == 0b1011_1000, "{:#x}", word.get());

        ensure!(data.delete("one") == Err(libc::EBUSY) && data.delete("none") == Err(libc::ENOENT));
        ensure!(write(dir, "dynamic_events", b"", false) == Err(libc::EBUSY));
        ensure!(text(dir, "dynamic_events")?.ends_with("u:one u32 a; u32 b\nu:two s64 x\nu:four u8 c\n"));
        let status = text(dir, "user_events_status")?;
        ensure!(status.starts_with("one # Used by ftrace\ntwo # Used by ftrace\nfour"), "{status}");
        ensure!(status.contains("\nActive: 3\n"), "{status}");
        word.becomes(0, || set(dir, "events/user_events/enable", "0"))?;
        for bit in [3, 5] {
            in_step("unregister", data.unregister(&word, bit))?;
        }
        ensure!(data.unregister(&word, 3) == Err(libc::ENOENT) && exists(dir, "user_events/one"));
        drop(data);
        await_true("an event without a holder goes", || !exists(dir, "user_events/one"))?;
        ensure!(exists(dir, "user_events/two"), "it is held");

        // Persistent events, events with the same name, and events of `dynamic_events`.
        in_step("persistent", other.register("stays u32 a", &word, 8, PERSIST))?;
        in_step("many", other.register("many u32 a", &word, 9, MULTI_FORMAT))?;
        in_step("many", other.register("many u64 a", &word, 10, MULTI_FORMAT))?;
        let multi = fs::read_dir(dir.join("events/user_events_multi"))?.flatten();
        let multi = multi.filter(|entry| entry.path().is_dir()).count();
        ensure!(multi == 2, "{multi}");
        in_step("define", write(dir, "dynamic_events", b"u:made char[4] s; struct my m 12\n", true))?;
        let format = text(dir, "events/user_events/made/format")?;
        ensure!(format.contains("field:struct my m;\toffset:12;\tsize:12;\tsigned:1;"), "{format}");
        ensure!(format.ends_with("print fmt: \"s=%s m=%llu\", REC->s, REC->m\n"), "{format}");
        ensure!(write(dir, "dynamic_events", b"u:made u32 a\n", true) == Err(libc::EADDRINUSE));
        ensure!(write(dir, "dynamic_events", b"-:user_events/none\n", true) == Err(libc::ENOENT));
        in_step("delete", write(dir, "dynamic_events", b"-:user_events/made\n", true))?;
        ensure!(!exists(dir, "user_events/made"));
        for bit in [4, 7, 8, 9, 10] {
            in_step("unregister", other.unregister(&word, bit))?;
        }
        drop(other);
        await_true("they go", || !exists(dir, "user_events/two"))?;
        ensure!(exists(dir, "user_events/stays") && !exists(dir, "user_events_multi"));
        in_step("delete", Data::open(dir)?.delete("stays"))?;
        ensure!(!exists(dir, "user_events"));
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn the_first_interface_has_a_page_of_bits() {
    host::as_root(|| {
        let mirror = Mounted::start("user-events")?;
        let dir = mirror.dir();
        let page = in_step("status page", Page::status(dir))?;
        let data = Data::open(dir)?;
        let (bit, index) = in_step("register", data.register_first_age("old:BPF_ITER u32 a"))?;
        ensure!((bit, index) == (1, 0) && !page.bit(bit), "{bit} {index}");
        // While the event is disabled, writes are accepted but not recorded.
        ensure!(data.write(0, &[0; 4]) == Ok(8));
        for _ in 0..3 {
            set(dir, "events/user_events/old/enable", "1")?;
            ensure!(page.bit(bit), "a mapping that is there sees the bit");
            ensure!(
                text(dir, "user_events_status")?
                    .starts_with("1:old # Used by ftrace\n\nActive: 1\nBusy: 1\nMax: 32768\n")
            );
            let later = in_step("status page", Page::status(dir))?;
            ensure!(page.bit(bit) && later.bit(bit) && !later.bit(0));
            set(dir, "events/user_events/old/enable", "0")?;
            ensure!(!page.bit(bit) && !later.bit(bit));
        }
        // An instance has the event as well.
        let instance = mirror.instance("mine")?;
        set(&instance, "events/user_events/old/enable", "1")?;
        ensure!(page.bit(bit));
        data.write(0, &7_u32.to_ne_bytes()).map_err(std::io::Error::from_raw_os_error)?;
        ensure!(records(&instance)?.len() == 1 && records(dir)?.is_empty());
        fs::remove_dir(&instance)?;
        ensure!(!page.bit(bit), "the instance is gone");
        // The event stays without an open file, until it is deleted.
        drop(data);
        let data = Data::open(dir)?;
        let again = in_step("again", data.register_first_age("old u32 a"))?;
        ensure!(again == (1, 0), "{again:?}");
        ensure!(data.delete("old") == Err(libc::EBUSY));
        drop(data);
        in_step("delete", Data::open(dir)?.delete("old"))?;
        ensure!(!exists(dir, "user_events/old"));
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn records_are_filtered_checked_and_shown() {
    host::as_root(|| {
        let mirror = Mounted::start("user-events")?;
        let dir = mirror.dir();
        let (data, word) = (Data::open(dir)?, Word::default());
        let index = in_step("register", data.register("plain s32 a; char[8] s", &word, 0, 0))?;
        let strings = in_step("register", data.register("text u8 a; __rel_loc char[] s", &word, 1, 0))?;
        let empty = in_step("register", data.register("empty", &word, 2, 0))?;
        let record = |a: i32, s: &[u8; 8]| [&a.to_ne_bytes()[..], s].concat();
        ensure!(data.write(index, &record(1, b"off\0\0\0\0\0")) == Err(libc::EBADF));
        set(dir, "events/user_events/enable", "1")?;
        set(dir, "events/user_events/plain/filter", "a > 1 && s ~ \"*o*\"")?;
        for (a, s) in
            [(1, b"too\0\0\0\0\0"), (2, b"two\0\0\0\0\0"), (3, b"three\0\0\0"), (-4, b"four\0\0\0\0")]
        {
            ensure!(data.write(index, &record(a, s)) == Ok(16));
        }
        in_step("empty", data.write(empty, &[]))?;
        let relative = |offset: u32, size: u32, text: &[u8]| {
            [&[5][..], &(size << 16 | offset).to_ne_bytes(), text].concat()
        };
        in_step("text", data.write(strings, &relative(0, 6, b"hello\0")))?;
        for (offset, size, text) in
            [(1, 6, b"hello\0"), (0, 7, b"hello\0"), (1024, 6, b"hello\0"), (0, 6, b"hello!")]
        {
            let done = data.write(strings, &relative(offset, size, text));
            ensure!(done == Err(libc::EFAULT), "{offset} {size}: {done:?}");
        }
        // Shorter than the fields, longer than any record, and without an event.
        ensure!(data.write(index, &[0; 11]) == Err(libc::EINVAL));
        ensure!(data.write_raw(&[0; 3]) == Err(libc::EFAULT));
        ensure!(data.write(3, &[0; 16]) == Err(libc::ENOENT));
        ensure!(data.write(u32::MAX, &[0; 16]) == Err(libc::EINVAL));
        let long = record(9, b"too\0\0\0\0\0")
            .into_iter()
            .chain(std::iter::repeat_n(0, 100_000))
            .collect::<Vec<u8>>();
        ensure!(data.write(index, &long) == Ok(long.len() + 4));
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let seen = records(dir)?;
        ensure!(seen.iter().all(|(pid, _)| *pid == own), "{seen:?}");
        let lines: Vec<&str> = seen.iter().map(|(_, line)| line.as_str()).collect();
        ensure!(lines.len() == 3, "{lines:#?}");
        ensure!(lines[0].starts_with("plain: a=") && lines[0].contains("s=two"), "{}", lines[0]);
        ensure!(lines[1].starts_with("empty:") && lines[2].contains("s=hello"), "{lines:#?}");

        // Triggers, and lists of threads.
        set(dir, "trace", "")?;
        set(dir, "events/user_events/plain/filter", "0")?;
        set(dir, "events/user_events/plain/trigger", "traceoff:1 if a == 77")?;
        for a in [76, 77, 78] {
            in_step("write", data.write(index, &record(a, b"t\0\0\0\0\0\0\0")))?;
        }
        ensure!(text(dir, "tracing_on")? == "0\n");
        let numbers: Vec<_> = records(dir)?.iter().filter_map(|(_, line)| field(line, "a")).collect();
        ensure!(numbers == [76, 77], "{numbers:?}");
        set(dir, "events/user_events/plain/trigger", "!traceoff")?;
        set(dir, "tracing_on", "1")?;
        set(dir, "trace", "")?;
        set(dir, "set_event_pid", "1")?;
        in_step("write", data.write(index, &record(79, b"t\0\0\0\0\0\0\0")))?;
        ensure!(records(dir)?.is_empty());
        set(dir, "set_event_pid", &own.to_string())?;
        in_step("write", data.write(index, &record(80, b"t\0\0\0\0\0\0\0")))?;
        ensure!(records(dir)?.len() == 1);
        // The end of the mirror ends all events.
        ensure!(word.get() == 0b111);
        mirror.stop()?.success()?;
        ensure!(word.get() == 0, "{:#x}", word.get());
        ensure!(
            data.write(index, &record(1, b"gone\0\0\0\0")).is_err() && data.unregister(&word, 0).is_err()
        );
        Ok(())
    });
}

fn client(words: &[&str]) -> Result<Child> {
    let mut command = Command::new(host::binary("tracer-user-client", "TRACER_USER_CLIENT_BIN")?);
    Ok(command.args(words).stdin(Stdio::null()).spawn()?)
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

#[test]
fn many_clients_lose_no_record_and_leave_nothing() {
    host::as_root(|| {
        let mirror = Mounted::start("user-crowd")?;
        let dir = mirror.dir();
        let path = dir.to_str().context("a path")?.to_owned();
        let tally_path = std::env::temp_dir().join(format!("tracer-tally-{}", std::process::id()));
        let tally = Tally::open(&tally_path)?;
        let crowd: u64 = if host::part() > 1 { 15 } else { 100 };
        let holder = Data::open(dir)?;
        let word = Word::default();
        for name in 0..7 {
            in_step("hold", holder.register(&format!("crowd_{name} u32 who; u32 number"), &word, name, 0))?;
        }
        set(dir, "events/user_events/enable", "1")?;
        let before = descriptors(mirror.pid());
        let tally_name = tally_path.to_str().context("a path")?;
        let mut clients = Vec::new();
        for who in 0..crowd {
            clients.push(client(&["crowd", &path, tally_name, &who.to_string()])?);
            // Every tenth client is killed at an arbitrary point, possibly in the middle of a request.
            if who % 10 == 9 {
                clients[(who - 4) as usize].kill()?;
            }
        }
        let mut killed = BTreeSet::new();
        for (who, client) in (0_u64..).zip(&mut clients) {
            let status = client.wait()?;
            let by_signal = std::os::unix::process::ExitStatusExt::signal(&status).is_some();
            if who % 10 == 5 && by_signal {
                killed.insert(who);
            }
            let right = if who % 3 == 0 { by_signal } else { status.success() };
            ensure!(right || killed.contains(&who), "{who}: {status}");
        }
        let mut seen: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (_, line) in records(dir)? {
            let (who, number) = (field(&line, "who"), field(&line, "number"));
            let (Some(who), Some(number)) = (who, number) else { anyhow::bail!("{line}") };
            ensure!(line.starts_with(&format!("crowd_{}:", who % 7)), "{line}");
            seen.entry(u64::from(who)).or_default().push(number);
        }
        for who in 0..crowd {
            let (taken, numbers) = (tally.get(who), seen.remove(&who).unwrap_or_default());
            let (own, children): (Vec<u32>, Vec<u32>) =
                numbers.into_iter().partition(|number| *number < 1000);
            // A killed client may not have stored its last write.
            let slack = u64::from(killed.contains(&who));
            ensure!((taken..=taken + slack).contains(&(own.len() as u64)), "{who}: {taken} taken, {own:?}");
            ensure!(own.iter().copied().eq(0..own.len() as u32), "{who}: {own:?}");
            let expected = if who % 2 == 1 { 5 } else { 0 };
            ensure!(children.len() == expected || slack > 0, "{who}: {children:?}");
        }
        ensure!(seen.is_empty(), "{seen:?}");
        set(dir, "events/user_events/enable", "0")?;
        // All other programs with the events have ended. Now this test unregisters them too.
        for name in 0..7 {
            in_step("unregister", holder.unregister(&word, name))?;
        }
        drop(holder);
        await_true("the events go", || !exists(dir, "user_events"))?;
        ensure!(text(dir, "user_events_status")?.starts_with("\nActive: 0\nBusy: 0\n"));
        await_true("descriptors go", || descriptors(mirror.pid()) <= before)?;
        let _ = fs::remove_file(&tally_path);
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn malicious_clients_harm_only_themselves() {
    host::as_root(|| {
        let mirror = Mounted::start("user-harm")?;
        let dir = mirror.dir();
        let path = dir.to_str().context("a path")?.to_owned();
        let times = if host::part() > 1 { 150 } else { 2500 };
        let (data, word) = (Data::open(dir)?, Word::default());
        let index = in_step("register", data.register("victim u32 n", &word, 9, 0))?;
        set(dir, "events/user_events/enable", "1")?;
        let mut harm = vec![
            client(&["harm", &path, "1", &times.to_string()])?,
            client(&["harm", &path, "77", &times.to_string()])?,
        ];
        let theirs: Vec<u32> = harm.iter().map(Child::id).collect();
        let mut written = 0_u32;
        while harm.iter_mut().any(|child| child.try_wait().is_ok_and(|status| status.is_none())) {
            if written < 500 {
                in_step("write", data.write(index, &written.to_ne_bytes()))?;
                written += 1;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        for child in &mut harm {
            let status = child.wait()?;
            ensure!(status.success(), "{status}");
        }
        ensure!(word.get() == 1 << 9, "{:#x}", word.get());
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let mut numbers = Vec::new();
        for (pid, line) in records(dir)? {
            if pid == own {
                ensure!(line.starts_with("victim: "), "{line}");
                numbers.extend(field(&line, "n"));
            } else {
                ensure!(theirs.contains(&pid), "{pid}: {line}");
            }
        }
        ensure!(written > 0 && numbers.iter().copied().eq(0..written), "{written} written: {numbers:?}");
        // The mirror still serves, and removes the remaining events of the clients.
        let word = Word::default();
        in_step("register", data.register("after u64 x", &word, 0, 0))?;
        set(dir, "events/user_events/enable", "0")?;
        let left = || fs::read_dir(dir.join("events/user_events")).into_iter().flatten().flatten();
        let is_known = |name: &std::ffi::OsStr| {
            ["enable", "filter", "victim", "after"].iter().any(|known| name == *known)
        };
        let persists = text(dir, "dynamic_events")?;
        await_true(&format!("only ours are left of {persists}"), || {
            // Some of the clients' events are persistent or use the first ABI.
            for entry in left().filter(|entry| !is_known(&entry.file_name())) {
                let _ = data.delete(&entry.file_name().to_string_lossy());
            }
            left().all(|entry| is_known(&entry.file_name()))
        })?;
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_killed_mirror_leaves_programs_alive() {
    host::as_root(|| {
        let mut mirror = Mounted::start("user-kill")?;
        let dir = mirror.dir().to_owned();
        let (data, word) = (Data::open(&dir)?, Word::default());
        let index = in_step("register", data.register("left u32 n", &word, 0, 0))?;
        set(&dir, "events/user_events/enable", "1")?;
        in_step("write", data.write(index, &[0; 4]))?;
        mirror.kill();
        ensure!(data.write(index, &[0; 4]).is_err());
        ensure!(data.register("more u32 n", &word, 1, 0).is_err() && data.unregister(&word, 0).is_err());
        drop(data);
        drop(mirror);
        // The next daemon has no state of the program and accepts its registrations.
        let mirror = Mounted::at(dir.clone())?;
        let (data, word) = (Data::open(&dir)?, Word::default());
        let index = in_step("register", data.register("left u32 n", &word, 0, 0))?;
        ensure!(data.write(index, &[0; 4]) == Err(libc::EBADF) && word.get() == 0);
        drop(data);
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_client_in_another_pid_namespace_is_updated() {
    const CHILD: &str = "TRACER_TESTS_USER_EVENTS_NAMESPACE";
    // Process 1 of its own pid namespace, or its child.
    if let Some(dir) = std::env::var_os(CHILD) {
        let dir = Path::new(&dir);
        let (data, word) = (Data::open(dir).unwrap(), Word::default());
        let index = data.register("apart u32 a", &word, 9, 0).unwrap();
        let enable = |on: &str| write(dir, "events/user_events/apart/enable", on.as_bytes(), true);
        assert_eq!((enable("1"), word.get()), (Ok(()), 1 << 9));
        let code = in_child(|| {
            let mut failed = i32::from(word.get() != 1 << 9);
            failed |= i32::from(enable("0").is_err() || word.get() != 0) << 1;
            failed |= i32::from(enable("1").is_err() || word.get() != 1 << 9) << 2;
            failed | i32::from(data.write(index, &[7; 4]) != Ok(8)) << 3
        });
        assert_eq!((code, word.get()), (Ok(0), 1 << 9));
        return enable("0").unwrap();
    }
    host::as_root(|| {
        let mirror = Mounted::start("user-events")?;
        let dir = mirror.dir();
        let own = host::test_name(module_path!(), "a_client_in_another_pid_namespace_is_updated");
        let ended = Command::new("unshare")
            .args(["--pid", "--fork"])
            .arg(std::env::current_exe()?)
            .args(["--exact", &own])
            .env(CHILD, dir)
            .output()?;
        let said = [ended.stdout, ended.stderr].concat();
        ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&said));
        await_true("an event without a holder goes", || !exists(dir, "user_events/apart"))?;
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_client_that_forks_endlessly_blocks_no_other_client() {
    // User id of nobody. A user may register 4,096 addresses.
    const USER: u32 = 65_534;
    const ADDRESSES: u32 = 2000;
    // Changes while the client forks, and after that.
    const ROUNDS: usize = 20;
    host::as_root(|| {
        let mirror = Mounted::start("user-forks")?;
        let dir = mirror.dir();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(dir.join("user_events_data"), fs::Permissions::from_mode(0o666))?;
        let (data, word) = (Data::open(dir)?, Word::default());
        in_step("register", data.register("mine u32 a", &word, 0, 0))?;
        let change = |round: u32| {
            let (since, on) = (Instant::now(), round % 2);
            word.becomes(on, || set(dir, "events/user_events/mine/enable", &on.to_string()))
                .with_context(|| format!("round {round}"))?;
            anyhow::Ok(since.elapsed())
        };
        let forks = host::share(4000);
        let mut client = host::binary_as(USER, USER, "tracer-user-client", "TRACER_USER_CLIENT_BIN")?;
        client.args(["forks", dir.to_str().context("a path")?]);
        client.args([ADDRESSES.to_string(), forks.to_string()]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(client.stdout.take().context("its output")?).lines();
        let mut line = || lines.next().context("it ended")?.context("it ended");
        ensure!(line()? == "registered");
        let (since, mut times) = (Instant::now(), Vec::new());
        let mut changes = |most: usize| -> Result<()> {
            while times.len() < most {
                times.push(change(times.len() as u32)?);
            }
            Ok(())
        };
        changes(ROUNDS)?;
        // The end of its input ends the forks.
        drop(client.stdin.take());
        let line = line()?;
        let forked = line.strip_prefix("forked ").and_then(|count| count.parse::<u32>().ok());
        let forked = forked.filter(|forked| *forked >= forks).context(line)?;
        let took = since.elapsed();
        // The daemon may learn of the forks later.
        changes(2 * ROUNDS)?;
        let slowest = times.iter().max().copied().unwrap_or_default();
        eprintln!(
            "{ROUNDS} changes during {forked} forks in {took:?} of a client with {ADDRESSES} addresses, {slowest:?} at \
             most"
        );
        // A change that waits for the forks takes longer than this.
        ensure!(slowest < host::patience(Duration::from_secs(10)), "{times:?}");
        // The daemon still updates the client's bits afterwards.
        set(dir, "events/user_events/forked/enable", "1")?;
        let status = client.wait()?;
        ensure!(status.success(), "{status}");
        mirror.stop()?.success().map(drop)
    });
}

#[test]
fn a_registration_covers_all_threads_of_a_process() {
    host::as_root(|| {
        let mirror = Mounted::start("user-threads")?;
        let dir = mirror.dir().to_owned();
        let enable =
            |dir: &Path, on: &str| write(dir, "events/user_events/shared/enable", on.as_bytes(), true);
        // A thread that existed before the registration forks a child, which has a copy.
        let (data, word) = (Data::open(&dir)?, Word::default());
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let code = std::thread::scope(|scope| -> Result<i32> {
            let (data, dir) = (&data, &dir);
            let older = scope.spawn(move || {
                let _ = gone.recv();
                in_child(|| {
                    let mut failed = i32::from(enable(dir, "1").is_err() || word.get() != 1 << 4);
                    failed |= i32::from(enable(dir, "0").is_err() || word.get() != 0) << 1;
                    failed |=
                        i32::from(enable(dir, "1").is_err() || data.unregister(&word, 4) != Ok(())) << 2;
                    failed | i32::from(word.get() != 0) << 3
                })
            });
            in_step("register", data.register("shared u32 a", &word, 4, 0))?;
            go.send(())?;
            in_step("child", older.join().map_err(|_| anyhow::anyhow!("the thread"))?)
        })?;
        ensure!(code == 0 && word.get() == 1 << 4, "{code} {:#x}", word.get());
        in_step("unregister", data.unregister(&word, 4))?;
        // The mirror still updates a process whose first thread ended, until its last thread ends.
        let its = dir.clone();
        let child = in_step(
            "fork",
            fork_with(move || {
                let Ok(data) = Data::open(&its) else { return 1 << 5 };
                let word = Word::default();
                if data.register("shared u32 a", &word, 7, 0).is_err() {
                    return 1 << 5;
                }
                outlive_first_thread(move || {
                    let mut failed = i32::from(enable(&its, "0").is_err() || word.get() != 0);
                    failed |= i32::from(enable(&its, "1").is_err() || word.get() != 1 << 7) << 1;
                    failed |=
                        i32::from(data.register("shared u32 a", &word, 7, 0) != Err(libc::EADDRINUSE)) << 2;
                    failed |= i32::from(data.unregister(&word, 7) != Ok(())) << 3;
                    failed | i32::from(data.register("shared u32 a", &word, 8, 0).is_err()) << 4
                })
            }),
        )?;
        let code = in_step("wait", wait_for(child))?;
        ensure!(code == 0, "{code:#b}");
        in_step("off", enable(&dir, "0"))?;
        drop(data);
        await_true("an event without a holder goes", || !exists(&dir, "user_events/shared"))?;
        mirror.stop()?.success().map(drop)
    });
}
