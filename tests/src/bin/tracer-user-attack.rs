//! A test program that attacks a mirror through its user events. It also executes a copy of itself, which checks its
//! own memory for foreign writes.
//!
//! All pages that it registers with the mirror are at two addresses, [`ZEROES`] and [`ONES`]. Each program maps its
//! own pages there.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs::File,
    io::{Read as _, Write as _},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode},
    sync::{
        Arc, Barrier, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{anyhow, bail};
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};

use tracer_tests::{
    blocked_fs,
    user_events::{Data, PERSIST, Page, fork_with, start_child, wait_for},
};

/// Address of the first page; [`ONES`] is the second. In a program that has registered nothing, the first page holds
/// only zero bits and the second only one bits. The first shows a bit that was set, the second a bit that was
/// cleared.
const ZEROES: u64 = 0x1000_0000_0000;
/// See [`ZEROES`].
const ONES: u64 = ZEROES + Page::SIZE as u64;
/// Exit code of a watching program whose memory was written.
const TOUCHED: u8 = 99;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let done = match words[..] {
        ["watch", micros] => return watch(Duration::from_micros(number(micros)), false),
        ["watch", micros, "aloud"] => return watch(Duration::from_micros(number(micros)), true),
        ["become", dir, page, program, how] => {
            become_another(dir, page, program, how).map(|never| match never {})
        }
        ["crowd", dir, page, count] => crowd(dir, page, number(count)),
        ["stuck", dir, page] => stuck(dir, page),
        ["flood", dir, count] => flood(dir, number(count)),
        ["page", dir] => page(dir),
        ["take", what, dir, tries] => take(what, Path::new(dir), number(tries)),
        ["races", dir, races, seed, micros] => {
            races::run(Path::new(dir), number(races), number(seed), number(micros))
        }
        _ => Err(anyhow!("tracer-user-attack watch|become|crowd|stuck|flood|page|take|races ...")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error:#}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn said(text: &str) {
    println!("{text}");
    let _ = std::io::stdout().flush();
}

fn in_step<T>(what: &str, done: Result<T, i32>) -> anyhow::Result<T> {
    done.map_err(|error| anyhow!("{what}: {}", std::io::Error::from_raw_os_error(error)))
}

/// The two pages of a program that has registered nothing.
struct Canary {
    zeroes: Page,
    ones: Page,
}

impl Canary {
    fn map() -> anyhow::Result<Self> {
        let canary = Self {
            zeroes: in_step("a page", Page::fixed(ZEROES, None))?,
            ones: in_step("a page", Page::fixed(ONES, None))?,
        };
        canary.zeroes.put(0, &[0; Page::SIZE]);
        canary.ones.put(0, &[0xff; Page::SIZE]);
        Ok(canary)
    }

    /// The pages that this process inherited by fork(2).
    fn inherited() -> Self {
        Self { zeroes: Page::at(ZEROES), ones: Page::at(ONES) }
    }

    fn is_untouched(&self) -> bool {
        self.zeroes.is_all(0) && self.ones.is_all(0xff)
    }

    /// Whether nothing was written. Polls the words that programs register, because a write may be undone, and checks
    /// the remaining bytes at the end.
    fn stays_untouched(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if (0..32).any(|bit| self.zeroes.bit(bit) || !self.ones.bit(bit)) {
                return false;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        self.is_untouched()
    }
}

/// Checks for `time` that nothing writes to its pages.
fn watch(time: Duration, aloud: bool) -> ExitCode {
    let Ok(canary) = Canary::map() else { return ExitCode::FAILURE };
    if aloud {
        said(if rustix::process::geteuid().is_root() { "watching as root" } else { "watching" });
    }
    if canary.stays_untouched(time) { ExitCode::SUCCESS } else { ExitCode::from(TOUCHED) }
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

/// Registers as many events as the mirror accepts.
fn flood(dir: &str, count: u64) -> anyhow::Result<()> {
    let data = Data::open(Path::new(dir))?;
    in_step("a page", Page::fixed(ZEROES, None))?.put(0, &[0]);
    let persistent = data.register_at("flood_persistent u32 a", ZEROES, 0, 4, PERSIST);
    let (mut made, mut refused) = (0, 0);
    let mut first = 0;
    let since = Instant::now();
    for number in 0..count {
        match data.register_first_age(&format!("flood_{number} u32 a")) {
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

/// Races between changes of an event's enable state and address spaces that appear and disappear.
mod races {
    use super::{
        AtomicU32, AtomicU64, Canary, Command, CommandExt, Data, Duration, Instant, ONES, Ordering, Page,
        Path, TOUCHED, ZEROES, fork_with, in_step, said, start_child, wait_for,
    };

    /// The open file, as a global: children have no other state.
    static DATA: std::sync::OnceLock<Data> = std::sync::OnceLock::new();
    static SEEN: AtomicU32 = AtomicU32::new(0);
    /// Microseconds for which a program that follows by exec(2) or pid reuse checks its pages.
    static WATCH: AtomicU64 = AtomicU64::new(0);

    fn word(page: &Page) -> bool {
        page.bit(7)
    }

    fn register(place: u64) -> bool {
        DATA.get().is_some_and(|data| data.register_at("raced u32 a", place, 7, 4, 0).is_ok())
    }

    extern "C" fn ends(_: *mut libc::c_void) -> i32 {
        0
    }

    extern "C" fn shares(_: *mut libc::c_void) -> i32 {
        SEEN.fetch_add(1, Ordering::Relaxed);
        0
    }

    extern "C" fn is_untouched(_: *mut libc::c_void) -> i32 {
        let time = Duration::from_micros(WATCH.load(Ordering::Relaxed));
        i32::from(!Canary::inherited().stays_untouched(time))
    }

    /// The way in which a child races.
    #[derive(Clone, Copy)]
    enum Kind {
        Exit,
        Fork,
        Clone,
        Unmap,
        Exec,
    }

    /// Races of a child that first registers at one of the two addresses. The exit code is 1 when the enable bit is
    /// set at the end, and 2 when a step failed.
    fn child(kind: Kind, place: u64, own: &Path, times: u64) -> i32 {
        let Ok(mut page) = Page::fixed(place, None) else { return 2 };
        page.put(0, &[0]);
        if !register(place) {
            return 2;
        }
        match kind {
            Kind::Exit => {}
            Kind::Fork => {
                for _ in 0..times {
                    let Ok(child) = start_child(false, ends) else { return 2 };
                    let _ = wait_for(child);
                }
            }
            Kind::Clone => {
                for _ in 0..times {
                    let Ok(child) = start_child(true, shares) else { return 2 };
                    let _ = wait_for(child);
                }
            }
            Kind::Unmap => {
                for _ in 0..times {
                    page.unmap();
                    std::hint::spin_loop();
                    let Ok(again) = Page::fixed(place, None) else { return 2 };
                    page = again;
                    page.put(1, &[0]);
                }
                if let Some(data) = DATA.get() {
                    let _ = data.unregister_at(place, 7);
                }
            }
            Kind::Exec => {
                let time = WATCH.load(Ordering::Relaxed).to_string();
                let _ = Command::new(own).args(["watch", &time]).exec();
                return 2;
            }
        }
        i32::from(word(&page))
    }

    pub(super) fn run(dir: &Path, races: u64, seed: u64, micros: u64) -> anyhow::Result<()> {
        WATCH.store(micros, Ordering::Relaxed);
        let data = Data::open(dir)?;
        let _ = DATA.set(data);
        let own = std::env::current_exe()?;
        // This program has registered nothing, so neither it nor its children that do not register may be written to.
        let canary = Canary::map()?;
        let (mut done, mut stray, mut on, mut failed, mut children) = (0, 0, 0, 0, 0);
        // How often this program requested the pid of an ended process for a new process, and how often that
        // succeeded.
        let (mut asked, mut reused) = (0, 0);
        let mut kinds = [0_u64; 5];
        let mut numbers = seed | 1;
        let end = Instant::now() + Duration::from_secs(240);
        while done < races && Instant::now() < end {
            numbers ^= numbers << 13;
            numbers ^= numbers >> 7;
            numbers ^= numbers << 17;
            let (index, kind, times) = match numbers % 32 {
                0..4 => (0, Kind::Exit, 1),
                4..10 => (1, Kind::Fork, 8),
                10..17 => (2, Kind::Clone, 16),
                17..24 => (3, Kind::Unmap, 64),
                _ => (4, Kind::Exec, 1),
            };
            let place = if numbers & 0x100 == 0 { ZEROES } else { ONES };
            let child = in_step("fork", fork_with(|| child(kind, place, &own, times)))?;
            let code = in_step("wait", wait_for(child))?;
            children += 1;
            match code {
                0 => {}
                1 => on += 1,
                code if code == i32::from(TOUCHED) => stray += 1,
                _ => failed += 1,
            }
            done += times;
            kinds[index] += times;
            if numbers.is_multiple_of(4)
                && std::fs::write("/proc/sys/kernel/ns_last_pid", (child - 1).to_string()).is_ok()
            {
                let again = in_step("fork", start_child(false, is_untouched))?;
                asked += 1;
                reused += i32::from(again == child);
                stray += in_step("wait", wait_for(again))?;
            }
            if !canary.is_untouched() {
                stray += 1;
                break;
            }
        }
        said(&format!(
            "races {done} exit {} fork {} clone {} unmap {} exec {} children {children} on {on} \
             asked {asked} reused {reused} failed {failed} stray {stray}",
            kinds[0], kinds[1], kinds[2], kinds[3], kinds[4]
        ));
        Ok(())
    }
}
