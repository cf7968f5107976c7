//! Races between changes of an event's enable state and address spaces that appear and disappear. No write of the
//! daemon may reach a program that has registered nothing.
//!
//! A program that takes part runs [`run`] for the arguments `races DIR NUMBER SEED MICROSECONDS` and [`watch`] for
//! `watch MICROSECONDS`, because it executes itself. `trust::user` and the soak test start such programs with
//! [`play`].

use std::ffi::c_void;
use std::io::Write as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::host;
use crate::mirror::{Mounted, set};
use crate::user_events::{Data, Page, Word, fork_with, in_step, start_child, wait_for};

/// Address of the first page; [`ONES`] is the second. In a program that has registered nothing, the first page holds
/// only zero bits and the second only one bits. The first shows a bit that was set, the second a bit that was
/// cleared.
pub const ZEROES: u64 = 0x1000_0000_0000;
/// See [`ZEROES`].
pub const ONES: u64 = ZEROES + Page::SIZE as u64;
/// Exit code of a watching program whose memory was written.
const TOUCHED: u8 = 99;

/// Time for which a newly executed program checks its pages. A stray write happens soon.
///
/// A daemon that opens `/proc/TID/mem` only when it writes makes a stray write once in 30,000 to 90,000 races, so a
/// single run may miss it.
const WATCH: Duration = Duration::from_millis(3);

/// The two pages of a program that has registered nothing.
struct Canary {
    zeroes: Page,
    ones: Page,
}

impl Canary {
    fn map() -> Result<Self> {
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
pub fn watch(time: Duration, aloud: bool) -> ExitCode {
    let Ok(canary) = Canary::map() else { return ExitCode::FAILURE };
    if aloud {
        println!("{}", if host::is_root() { "watching as root" } else { "watching" });
        let _ = std::io::stdout().flush();
    }
    if canary.stays_untouched(time) { ExitCode::SUCCESS } else { ExitCode::from(TOUCHED) }
}

/// The open file, as a global: children have no other state.
static DATA: OnceLock<Data> = OnceLock::new();
static SEEN: AtomicU32 = AtomicU32::new(0);
/// Microseconds for which a program that follows by exec(2) or pid reuse checks its pages.
static MICROS: AtomicU64 = AtomicU64::new(0);

fn word(page: &Page) -> bool {
    page.bit(7)
}

fn register(place: u64) -> bool {
    DATA.get().is_some_and(|data| data.register_at("raced u32 a", place, 7, 4, 0).is_ok())
}

extern "C" fn ends(_: *mut c_void) -> i32 {
    0
}

extern "C" fn shares(_: *mut c_void) -> i32 {
    SEEN.fetch_add(1, Ordering::Relaxed);
    0
}

extern "C" fn is_untouched(_: *mut c_void) -> i32 {
    let time = Duration::from_micros(MICROS.load(Ordering::Relaxed));
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
            let time = MICROS.load(Ordering::Relaxed).to_string();
            let _ = Command::new(own).args(["watch", &time]).exec();
            return 2;
        }
    }
    i32::from(word(&page))
}

/// Plays races with a mirror, and returns their numbers as text.
///
/// # Errors
/// When the mirror's files, a fork or a wait fails.
pub fn run(dir: &Path, races: u64, seed: u64, micros: u64) -> Result<String> {
    MICROS.store(micros, Ordering::Relaxed);
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
    Ok(format!(
        "races {done} exit {} fork {} clone {} unmap {} exec {} children {children} on {on} asked {asked} reused {reused} \
         failed {failed} stray {stray}",
        kinds[0], kinds[1], kinds[2], kinds[3], kinds[4]
    ))
}

/// The number after a word of a line.
fn number(line: &str, key: &str) -> Result<u64> {
    let mut words = line.split(' ').skip_while(|word| *word != key);
    words.nth(1).and_then(|word| word.parse().ok()).with_context(|| format!("{key} of {line}"))
}

/// Plays this many races between a mirror whose event is enabled and disabled all the time and `program`, which takes
/// the arguments of this module. Returns a summary.
///
/// # Errors
/// When a write reached another program, or one side did not take part.
pub fn play(program: &Path, races: u64, seed: u64) -> Result<String> {
    let mirror = Mounted::start("user-races")?;
    let dir = mirror.dir();
    let (data, word) = (Data::open(dir)?, Word::default());
    in_step("register", data.register("raced u32 a", &word, 0, 0))?;
    let over = AtomicBool::new(false);
    let (line, changes) = std::thread::scope(|scope| -> Result<_> {
        let changer = scope.spawn(|| -> Result<u64> {
            let mut changes = 0;
            while !over.load(Ordering::Acquire) {
                let value = if changes % 2 == 0 { "1" } else { "0" };
                set(dir, "events/user_events/raced/enable", value)?;
                changes += 1;
            }
            Ok(changes)
        });
        let micros = host::patience(WATCH).as_micros();
        let line = Command::new(program)
            .arg("races")
            .arg(dir)
            .args([races.to_string(), seed.to_string(), micros.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output();
        over.store(true, Ordering::Release);
        let changes = changer.join().map_err(|_| anyhow!("the changer"))??;
        Ok((String::from_utf8_lossy(&line?.stdout).trim_end().to_owned(), changes))
    })?;
    let summary = format!("{line}; {changes} changes");
    ensure!(number(&line, "races")? >= races, "{summary}");
    for kind in ["exit", "fork", "clone", "unmap", "exec"] {
        ensure!(number(&line, kind)? >= races / 1000, "{summary}");
    }
    ensure!(number(&line, "stray")? == 0 && number(&line, "failed")? == 0, "{summary}");
    // New processes reused the pids of others, where the test may request pids.
    ensure!(number(&line, "asked")? == 0 || number(&line, "reused")? > 0, "{summary}");
    // Both sides took part: children saw enabled events, and the event changed all the time.
    ensure!(number(&line, "on")? > 0 && changes > 10, "{summary}");
    mirror.stop()?.success()?;
    Ok(summary)
}
