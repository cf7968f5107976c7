//! A program that attacks a mirror by its user events, for tests; and what it becomes, a program that watches its memory.
//!
//! All pages that it tells the mirror of lie at one address, [`PLACE`], at which each program maps its own.

use std::{
    convert::Infallible,
    fs::File,
    io::Write as _,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use tracer_tests::{
    held,
    user_events::{Data, PERSIST, Page, start_child, wait_for},
};

/// Where pages are mapped.
const PLACE: u64 = 0x1000_0000_0000;
/// What pages hold that nobody is to write.
const CANARY: u8 = 0x5a;
/// What a watching program exits with when something was written.
const TOUCHED: u8 = 99;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let done = match words[..] {
        ["watch", micros] => return watch(Duration::from_micros(number(micros))),
        ["become", dir, page, program, how] => {
            become_another(dir, page, program, how).map(|never| match never {})
        }
        ["crowd", dir, page, count] => crowd(dir, page, number(count)),
        ["stuck", dir, page] => stuck(dir, page),
        ["flood", dir, count] => flood(dir, number(count)),
        ["page", dir] => page(dir),
        ["races", dir, races, seed] => races::run(Path::new(dir), number(races), number(seed)),
        _ => Err("tracer-user-attack watch|become|crowd|stuck|flood|page|races ...".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn said(text: &str) {
    println!("{text}");
    let _ = std::io::stdout().flush();
}

fn told<T>(what: &str, done: Result<T, i32>) -> Result<T, String> {
    done.map_err(|error| format!("{what}: {}", std::io::Error::from_raw_os_error(error)))
}

fn canary() -> Result<Page, String> {
    let page = told("a page", Page::fixed(PLACE, None))?;
    page.put(0, &[CANARY; Page::SIZE]);
    Ok(page)
}

/// Watches a page for a while.
fn watch(time: Duration) -> ExitCode {
    let Ok(page) = canary() else { return ExitCode::FAILURE };
    let root = rustix::process::geteuid().is_root();
    if !time.is_zero() {
        said(if root { "watching as root" } else { "watching" });
    }
    let end = Instant::now() + time;
    while Instant::now() < end && page.is_all(CANARY) {
        std::thread::sleep(Duration::from_micros(100));
    }
    if page.is_all(CANARY) { ExitCode::SUCCESS } else { ExitCode::from(TOUCHED) }
}

/// Asks to be told at a page that does not come, and runs another program when that is refused.
fn become_another(dir: &str, page: &str, program: &str, how: &str) -> Result<Infallible, String> {
    let open = if how == "read" { Data::open_to_read } else { Data::open };
    let data = open(Path::new(dir)).map_err(|error| error.to_string())?;
    let file = held::open(Path::new(page)).map_err(|error| error.to_string())?;
    told("the held page", Page::fixed(PLACE, Some(&file)))?;
    let since = Instant::now();
    let done = data.register_at("attack u32 a", PLACE, 3, 4, 0);
    said(&format!("refused {done:?} after {} ms", since.elapsed().as_millis()));
    Err(Command::new(program).args(["watch", "5000000"]).exec().to_string())
}

/// Many threads ask to be told at pages that do not come.
fn crowd(dir: &str, page: &str, count: u64) -> Result<(), String> {
    let data = Data::open(Path::new(dir)).map_err(|error| error.to_string())?;
    let file = held::open(Path::new(page)).map_err(|error| error.to_string())?;
    told("the held page", Page::fixed(PLACE, Some(&file)))?;
    said("asking");
    std::thread::scope(|scope| {
        for number in 0..count {
            let data = &data;
            scope.spawn(move || data.register_at("crowd u32 a", PLACE + number * 4, 3, 4, 0));
        }
    });
    said("refused");
    Ok(())
}

/// Registers, and then has its page taken away by one that does not come.
fn stuck(dir: &str, page: &str) -> Result<(), String> {
    let data = Data::open(Path::new(dir)).map_err(|error| error.to_string())?;
    let file = held::open(Path::new(page)).map_err(|error| error.to_string())?;
    told("a page", Page::fixed(PLACE, None))?.put(0, &[0]);
    told("register", data.register_at("stuck u32 a", PLACE, 3, 4, 0))?;
    told("the held page", Page::fixed(PLACE, Some(&file)))?;
    said("stuck");
    let _ = std::io::stdin().read_line(&mut String::new());
    Ok(())
}

/// Registers as many events as it is let.
fn flood(dir: &str, count: u64) -> Result<(), String> {
    let data = Data::open(Path::new(dir)).map_err(|error| error.to_string())?;
    told("a page", Page::fixed(PLACE, None))?.put(0, &[0]);
    let persistent = data.register_at("flood_persistent u32 a", PLACE, 0, 4, PERSIST);
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

/// Tries to map the page of all programs to write it.
fn page(dir: &str) -> Result<(), String> {
    let path = Path::new(dir).join("user_events_status");
    for (read, write) in [(true, true), (false, true)] {
        if File::options().read(read).write(write).open(&path).is_ok() {
            return Err("it is open to be written".to_owned());
        }
    }
    let file = File::open(&path).map_err(|error| error.to_string())?;
    match Page::fixed(PLACE, Some(&file)) {
        Ok(_) => Err("it is mapped to be written".to_owned()),
        Err(_) => Ok(()),
    }
}

/// Address spaces that come and go while events are turned on and off.
mod races {
    use super::{
        AtomicU32, CANARY, Command, CommandExt, Data, Duration, Instant, Ordering, PLACE, Page, Path,
        TOUCHED, canary, said, start_child, told, wait_for,
    };

    /// The file, for children that have nothing but globals.
    static DATA: std::sync::OnceLock<Data> = std::sync::OnceLock::new();
    static SEEN: AtomicU32 = AtomicU32::new(0);

    fn word(page: &Page) -> bool {
        page.bit(7)
    }

    fn register() -> bool {
        DATA.get().is_some_and(|data| data.register_at("raced u32 a", PLACE, 7, 4, 0).is_ok())
    }

    extern "C" fn ends(_: *mut libc::c_void) -> i32 {
        0
    }

    extern "C" fn shares(_: *mut libc::c_void) -> i32 {
        SEEN.fetch_add(1, Ordering::Relaxed);
        0
    }

    extern "C" fn is_untouched(_: *mut libc::c_void) -> i32 {
        i32::from(!Page::at(PLACE).is_all(CANARY))
    }

    /// How one child races.
    #[derive(Clone, Copy)]
    enum Kind {
        Exit,
        Fork,
        Clone,
        Unmap,
        Exec,
    }

    /// Races of a child that registers first; how it exits: bit 0 an event that was on was seen, 1 it could not register.
    fn child(kind: Kind, own: &Path, times: u64) -> i32 {
        let Ok(mut page) = Page::fixed(PLACE, None) else { return 2 };
        page.put(0, &[0]);
        if !register() {
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
                    let Ok(again) = Page::fixed(PLACE, None) else { return 2 };
                    page = again;
                    page.put(1, &[0]);
                }
                if let Some(data) = DATA.get() {
                    let _ = data.unregister_at(PLACE, 7);
                }
            }
            Kind::Exec => {
                let _ = Command::new(own).args(["watch", "0"]).exec();
                return 2;
            }
        }
        i32::from(word(&page))
    }

    pub(super) fn run(dir: &Path, races: u64, seed: u64) -> Result<(), String> {
        let data = Data::open(dir).map_err(|error| error.to_string())?;
        let _ = DATA.set(data);
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        // This program has never asked for anything: nothing is written into it, nor into children that do not.
        let canary = canary()?;
        let (mut done, mut stray, mut on, mut failed, mut children) = (0, 0, 0, 0, 0);
        let mut kinds = [0_u64; 5];
        let mut numbers = seed | 1;
        let end = Instant::now() + Duration::from_secs(120);
        while done < races && Instant::now() < end {
            numbers ^= numbers << 13;
            numbers ^= numbers >> 7;
            numbers ^= numbers << 17;
            let (index, kind, times) = match numbers % 32 {
                0..4 => (0, Kind::Exit, 1),
                4..12 => (1, Kind::Fork, 8),
                12..22 => (2, Kind::Clone, 16),
                22..31 => (3, Kind::Unmap, 64),
                _ => (4, Kind::Exec, 1),
            };
            let child = start(|| child(kind, &own, times))?;
            let code = told("wait", wait_for(child))?;
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
                let again = told("fork", start_child(false, is_untouched))?;
                stray += told("wait", wait_for(again))?;
            }
            if !canary.is_all(CANARY) {
                stray += 1;
                break;
            }
        }
        said(&format!(
            "races {done} exit {} fork {} clone {} unmap {} exec {} children {children} on {on} failed {failed} stray {stray}",
            kinds[0], kinds[1], kinds[2], kinds[3], kinds[4]
        ));
        Ok(())
    }

    /// Runs something in a child process.
    fn start(act: impl FnOnce() -> i32) -> Result<i32, String> {
        told("fork", tracer_tests::user_events::fork_with(act))
    }
}
