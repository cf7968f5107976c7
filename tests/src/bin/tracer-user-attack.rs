//! A test program that attacks a mirror through its user events. It also executes a copy of itself, which checks its
//! own memory for foreign writes.
//!
//! All pages that it registers with the mirror are at two addresses, [`races::ZEROES`] and [`races::ONES`]. Each
//! program maps its own pages there.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs::File,
    io::{Read as _, Seek as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{fs::OpenOptionsExt as _, process::CommandExt},
    },
    path::Path,
    process::{Command, ExitCode},
    sync::{Arc, Barrier, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use rustix::process::{Gid, Resource, Rlimit, Signal, Uid, getpid, getrlimit, kill_process, setrlimit};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use tracer_tests::{
    blocked_fs,
    races::{self, ONES, ZEROES},
    user_events::{
        Data, PERSIST, Page, Word, enter_user_namespace, fork_as, fork_with, start_child, wait_for,
    },
};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["watch", micros] => return races::watch(Duration::from_micros(number(micros)), false),
        ["watch", micros, "aloud"] => return races::watch(Duration::from_micros(number(micros)), true),
        ["within", owner, id, ref rest @ ..] => enter(number(owner), number(id)).and_then(|()| run(rest)),
        ref words => run(words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// Enters a new user namespace that a uid owns, and waits for a line, before which the test maps uids and gids of the
/// namespace. Then becomes one of them.
fn enter(owner: u64, id: u64) -> anyhow::Result<()> {
    enter_user_namespace(owner as u32).map_err(|error| anyhow!("a user namespace: {error}"))?;
    said("entered");
    std::io::stdin().read_line(&mut String::new())?;
    let (user, group) = (Uid::from_raw(id as u32), Gid::from_raw(id as u32));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

fn run(words: &[&str]) -> anyhow::Result<()> {
    match words[..] {
        ["become", dir, page, program, how] => {
            become_another(dir, page, program, how).map(|never| match never {})
        }
        ["crowd", dir, page, count] => crowd(dir, page, number(count)),
        ["stuck", dir, page] => stuck(dir, page),
        ["flood", dir, count] => flood(dir, number(count), "flood"),
        ["flood", dir, count, name] => flood(dir, number(count), name),
        ["page", dir] => page(dir),
        ["write", file, page, how] => write(Path::new(file), Path::new(page), how),
        ["map", file, first, second] => map(Path::new(file), first, second),
        ["reopen", file, page] => reopen(Path::new(file), Path::new(page)),
        ["take", what, dir, tries] => take(what, Path::new(dir), number(tries)),
        ["leave", dir, command, count] => leave(Path::new(dir), command, number(count)),
        ["races", dir, races, seed, micros] => {
            races::run(Path::new(dir), number(races), number(seed), number(micros)).map(|line| said(&line))
        }
        ["outlived", dir, page] => outlived(dir, page),
        ["as", pid, dir, command] => register_as(pid.parse()?, Path::new(dir), command),
        ["hold", file, bytes] => hold(Path::new(file), number(bytes), 0),
        ["hold", file, bytes, offset] => hold(Path::new(file), number(bytes), number(offset)),
        ["touch", file] => touch(Path::new(file)),
        ["list", dir, page] => list(Path::new(dir), Path::new(page)),
        ["delete", dir, name] => {
            let done = Data::open(Path::new(dir))?.delete(name);
            said(&format!("deleted {done:?}"));
            Ok(())
        }
        ["read", file, count] => read(Path::new(file), number(count)),
        _ => Err(anyhow!(
            "tracer-user-attack [within OWNER UID] watch|become|crowd|stuck|flood|page|write|map|reopen|take|leave|\
             races|outlived|as|hold|touch|list|delete|read ..."
        )),
    }
}

/// Registers an address, replaces its page by a page whose fault is never answered, and starts a process that shares the
/// memory and prints its id. Then this process waits to be killed.
fn outlived(dir: &str, page: &str) -> anyhow::Result<()> {
    extern "C" fn wait(_: *mut libc::c_void) -> i32 {
        loop {
            rustix::event::pause();
        }
    }

    let data = Data::open(Path::new(dir))?;
    let file = blocked_fs::open(Path::new(page))?;
    in_step("a page", Page::fixed(ZEROES, None))?.put(0, &[0]);
    in_step("register", data.register_at("outlived u32 a", ZEROES, 3, 4, 0))?;
    in_step("the held page", Page::fixed(ZEROES, Some(&file)))?;
    said(&in_step("a child", start_child(true, wait))?.to_string());
    let _ = std::io::stdin().read_line(&mut String::new());
    Ok(())
}

/// Registers an event in a process with this id. Prints the result, the time that it took, and the word.
fn register_as(pid: i32, dir: &Path, command: &str) -> anyhow::Result<()> {
    let child = fork_as(pid, || {
        let Ok(data) = Data::open(dir) else { return 1 };
        let (word, since) = (Word::default(), Instant::now());
        let done = data.register(command, &word, 0, 0);
        said(&format!("{done:?} after {} ms: {}", since.elapsed().as_millis(), word.get()));
        0
    });
    let code = in_step("the process", child.and_then(wait_for))?;
    if code == 0 { Ok(()) } else { Err(anyhow!("it left {code}")) }
}

/// For each line of standard input, opens a file once more, reads so many bytes from an offset, and prints the number of
/// open files. At the line `rest`, reads them all to their ends and prints the number of bytes of each.
fn hold(file: &Path, bytes: u64, offset: u64) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    let mut files = Vec::new();
    let mut text = Vec::new();
    for line in std::io::stdin().lines() {
        if line? == "rest" {
            let lengths = files.iter_mut().map(|file: &mut File| {
                text.clear();
                file.read_to_end(&mut text).map(|length| length.to_string())
            });
            said(&lengths.collect::<Result<Vec<_>, _>>()?.join(" "));
            continue;
        }
        let mut opened = File::open(file)?;
        opened.seek(std::io::SeekFrom::Start(offset))?;
        text.clear();
        std::io::Read::by_ref(&mut opened).take(bytes).read_to_end(&mut text)?;
        files.push(opened);
        said(&files.len().to_string());
    }
    Ok(())
}

/// Threads that read a file again and again until standard input ends. Prints `reading` when each has read it once.
fn read(file: &Path, threads: u64) -> anyhow::Result<()> {
    let (send, read) = std::sync::mpsc::channel();
    for _ in 0..threads {
        let (file, send) = (file.to_owned(), send.clone());
        std::thread::spawn(move || {
            let mut text = Vec::new();
            loop {
                text.clear();
                let done = File::open(&file).and_then(|mut file| file.read_to_end(&mut text));
                // Nobody listens after the first time.
                let _ = send.send(done.map(drop));
            }
        });
    }
    let first = || read.recv()?.map_err(anyhow::Error::from);
    (0..threads).try_for_each(|_| first())?;
    said("reading");
    let _ = std::io::stdin().read_line(&mut String::new());
    Ok(())
}

fn said(text: &str) {
    println!("{text}");
    let _ = std::io::stdout().flush();
}

fn in_step<T>(what: &str, done: Result<T, i32>) -> anyhow::Result<T> {
    done.map_err(|error| anyhow!("{what}: {}", std::io::Error::from_raw_os_error(error)))
}

/// Registers an address in a page whose fault is never answered, and executes another program when the mirror
/// refuses.
fn become_another(dir: &str, page: &str, program: &str, how: &str) -> anyhow::Result<Infallible> {
    let open = if how == "read" { Data::open_to_read } else { Data::open };
    let data = open(Path::new(dir))?;
    let file = blocked_fs::open(Path::new(page))?;
    // The mirror clears the bit of a disabled event.
    in_step("the held page", Page::fixed(ONES, Some(&file)))?;
    let since = Instant::now();
    let done = data.register_at("attack u32 a", ONES, 3, 4, 0);
    said(&format!("refused {done:?} after {} ms", since.elapsed().as_millis()));
    let error = Command::new(program).args(["watch", "5000000", "aloud"]).exec();
    eprintln!("{program}: {error}");
    // The end of a process waits for the page too, unless it is killed.
    kill_process(getpid(), Signal::KILL)?;
    Err(error.into())
}

/// Many threads at once register addresses in pages whose faults are never answered. Prints the number of refused
/// requests by errno, and the time until the refusal.
fn crowd(dir: &str, page: &str, count: u64) -> anyhow::Result<()> {
    let data = Data::open(Path::new(dir))?;
    let file = blocked_fs::open(Path::new(page))?;
    in_step("the held page", Page::fixed(ZEROES, Some(&file)))?;
    said("asking");
    let (all, answers) = (Barrier::new(count as usize), Mutex::new(BTreeMap::<i32, Vec<Duration>>::new()));
    std::thread::scope(|scope| {
        for number in 0..count {
            let (data, all, answers) = (&data, &all, &answers);
            scope.spawn(move || {
                all.wait();
                let since = Instant::now();
                let done = data.register_at("crowd u32 a", ZEROES + number * 4, 3, 4, 0);
                let took = since.elapsed();
                let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.entry(done.err().unwrap_or(0)).or_default().push(took);
            });
        }
    });
    let answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    let tally = answers.iter().map(|(error, times)| {
        let (first, last) = (times.iter().min(), times.iter().max());
        let millis = |time: Option<&Duration>| time.map_or(0, Duration::as_millis);
        format!("errno {error} count {} from {} to {} ms", times.len(), millis(first), millis(last))
    });
    said(&tally.collect::<Vec<_>>().join(", "));
    Ok(())
}

/// Writes eight bytes of a mapped page to a file, which is opened with `O_APPEND` if `how` is `append`.
fn write(file: &Path, page: &Path, how: &str) -> anyhow::Result<()> {
    let file = File::options().write(true).append(how == "append").open(file)?;
    let page = in_step("the page", Page::of(&File::open(page)?))?;
    said("writing");
    said(&format!("written {:?}", page.write_to(&file, 8)));
    Ok(())
}

/// Writes text to a file, then maps the file, and writes other text by the mapping.
fn map(file: &Path, first: &str, second: &str) -> anyhow::Result<()> {
    let mut file = File::options().read(true).write(true).open(file)?;
    // The kernel takes the length of what was written for the size of the file.
    file.write_all(first.as_bytes())?;
    match Page::fixed(ONES, Some(&file)) {
        Ok(page) => {
            page.put(0, second.as_bytes());
            said(&format!("synced {:?}", page.sync()));
        }
        Err(errno) => said(&format!("not mapped {errno}")),
    }
    Ok(())
}

/// Opens a file that it may not read, and changes the file's times when a line arrives on its standard input.
fn touch(file: &Path) -> anyhow::Result<()> {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};

    let descriptor = File::options().read(true).custom_flags(libc::O_PATH).open(file)?;
    said("opened");
    std::io::stdin().read_line(&mut String::new())?;
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    let done = utimensat(CWD, format!("/proc/self/fd/{}", descriptor.as_raw_fd()), &times, AtFlags::empty());
    said(&format!("touched {:?}", done.map_err(rustix::io::Errno::raw_os_error)));
    Ok(())
}

/// Lists a directory into a mapped page of a file.
fn list(dir: &Path, page: &Path) -> anyhow::Result<()> {
    let dir = File::open(dir).with_context(|| dir.display().to_string())?;
    let file = blocked_fs::open(page).with_context(|| page.display().to_string())?;
    let page = in_step("the page", Page::fixed(ONES, Some(&file)))?;
    said("listing");
    said(&format!("listed {:?}", page.list(&dir)));
    Ok(())
}

/// Opens a file for reading, and by that descriptor for writing when a line arrives on its standard input.
fn reopen(file: &Path, page: &Path) -> anyhow::Result<()> {
    // The file may not be readable yet.
    let descriptor =
        File::open(file).or_else(|_| File::options().read(true).custom_flags(libc::O_PATH).open(file))?;
    said("opened");
    std::io::stdin().read_line(&mut String::new())?;
    write(Path::new(&format!("/proc/self/fd/{}", descriptor.as_raw_fd())), page, "at once")
}

/// Acquires more and more of a resource and keeps it. Prints how much was granted, how often it was refused, and the
/// errnos.
fn take(what: &str, dir: &Path, tries: u64) -> anyhow::Result<()> {
    // Raises the process's own limit, so that only the mirror refuses.
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, most)?;
    let number = |error: &std::io::Error| error.raw_os_error().unwrap_or(-1);
    let (mut files, mut opened) = (Vec::new(), Vec::new());
    let errors: Vec<i32> = match what {
        "files" => {
            let open = |_| File::open(dir.join("tracing_on")).map(|file| files.push(file));
            (0..tries).map(open).filter_map(Result::err).map(|error| number(&error)).collect()
        }
        "user_events_data" => {
            let open = |_| Data::open(dir).map(|data| opened.push(data));
            (0..tries).map(open).filter_map(Result::err).map(|error| number(&error)).collect()
        }
        "reads" => reads(dir, tries)?,
        "spaces" => {
            let data = Data::open(dir)?;
            (0..tries).map(|_| space(&data)).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()
        }
        _ => bail!("there is no such thing"),
    };
    let refused = errors.len() as u64;
    let kinds: std::collections::BTreeSet<i32> = errors.into_iter().collect();
    said(&format!("taken {} refused {refused} errnos {kinds:?}", tries - refused));
    let _ = std::io::stdin().read_line(&mut String::new());
    Ok(())
}

/// Threads that read a file without records; returns the errnos of the refused reads. The other reads keep waiting.
fn reads(dir: &Path, tries: u64) -> anyhow::Result<Vec<i32>> {
    let (send, answers) = std::sync::mpsc::channel();
    // All threads share one open file, because `trace_pipe` allows only one.
    let file = Arc::new(File::open(dir.join("trace_pipe"))?);
    for _ in 0..tries {
        let (file, send) = (Arc::clone(&file), send.clone());
        std::thread::spawn(move || {
            let done = (&*file).read(&mut [0; 64]);
            send.send(done.err().and_then(|error| error.raw_os_error()).unwrap_or(-1))
        });
    }
    // A read that has not returned after this time counts as waiting.
    let quiet = Duration::from_secs(1);
    Ok(std::iter::from_fn(|| answers.recv_timeout(quiet).ok()).collect())
}

/// A process that registers an event and stays alive; returns the errno of a refusal.
fn space(data: &Data) -> anyhow::Result<Option<i32>> {
    let (answer, its) = rustix::pipe::pipe()?;
    in_step(
        "fork",
        fork_with(|| {
            let done = Page::fixed(ZEROES, None).and_then(|page| {
                page.put(0, &[0]);
                data.register_at("space u32 a", ZEROES, 3, 4, 0)
            });
            let _ = File::from(its).write_all(&done.err().unwrap_or(0).to_ne_bytes());
            // Stays until the test closes the input.
            let _ = std::io::stdin().read_line(&mut String::new());
            0
        }),
    )?;
    let mut error = [0; 4];
    File::from(answer).read_exact(&mut error)?;
    Ok(Some(i32::from_ne_bytes(error)).filter(|error| *error != 0))
}

/// Registers an address, and then replaces its page by a page whose fault is never answered.
fn stuck(dir: &str, page: &str) -> anyhow::Result<()> {
    let data = Data::open(Path::new(dir))?;
    let file = blocked_fs::open(Path::new(page))?;
    in_step("a page", Page::fixed(ZEROES, None))?.put(0, &[0]);
    in_step("register", data.register_at("stuck u32 a", ZEROES, 3, 4, 0))?;
    in_step("the held page", Page::fixed(ZEROES, Some(&file)))?;
    said("stuck");
    let _ = std::io::stdin().read_line(&mut String::new());
    Ok(())
}

/// Registers an event with a number, writes this many records after a line of input, and ends after another.
fn leave(dir: &Path, command: &str, count: u64) -> anyhow::Result<()> {
    let (data, word) = (Data::open(dir)?, Word::default());
    let index = in_step("register", data.register(command, &word, 0, 0))?;
    said("registered");
    std::io::stdin().read_line(&mut String::new())?;
    for number in 0..count as u32 {
        in_step("write", data.write(index, &number.to_ne_bytes()))?;
    }
    said("written");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Registers as many events as the mirror accepts.
fn flood(dir: &str, count: u64, name: &str) -> anyhow::Result<()> {
    let data = Data::open(Path::new(dir))?;
    in_step("a page", Page::fixed(ZEROES, None))?.put(0, &[0]);
    let persistent = data.register_at(&format!("{name}_persistent u32 a"), ZEROES, 0, 4, PERSIST);
    let (mut made, mut refused) = (0, 0);
    let mut first = 0;
    let since = Instant::now();
    for number in 0..count {
        match data.register_first_age(&format!("{name}_{number} u32 a")) {
            Ok(_) => made += 1,
            Err(error) => {
                first = if first == 0 { error } else { first };
                refused += 1;
            }
        }
    }
    said(&format!(
        "persistent {} made {made} refused {refused} errno {first} ms {}",
        persistent.err().unwrap_or(0),
        since.elapsed().as_millis()
    ));
    let _ = std::io::stdin().read_line(&mut String::new());
    Ok(())
}

/// Tries to map the status page of all programs writable.
fn page(dir: &str) -> anyhow::Result<()> {
    let path = Path::new(dir).join("user_events_status");
    for (read, write) in [(true, true), (false, true)] {
        if File::options().read(read).write(write).open(&path).is_ok() {
            bail!("it is open to be written");
        }
    }
    let file = File::open(&path)?;
    match Page::fixed(ZEROES, Some(&file)) {
        Ok(_) => Err(anyhow!("it is mapped to be written")),
        Err(_) => Ok(()),
    }
}
