//! Filters, triggers, histograms and event probes on the events of programs: a user event, a program event, a uprobe.
//! This test is the program, so the counts are known.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::events;
use tracer_tests::mirror::{self, Mounted, bodies, set, text};
use tracer_tests::probes::place;
use tracer_tests::user_events::{Data, Word};

use crate::run;

/// Time limit for a histogram to show the counts.
const PATIENCE: Duration = Duration::from_secs(40);

#[cfg(target_arch = "x86_64")]
const FIRST: &str = "%di";
#[cfg(not(target_arch = "x86_64"))]
const FIRST: &str = "%x0";

/// The target of the uprobe.
#[inline(never)]
extern "C" fn probed(number: u64) -> u64 {
    std::hint::black_box(number)
}

/// The keys and counts of a histogram's lines, once it has this many hits.
fn counted(dir: &Path, event: &str, hits: u64) -> Result<Vec<String>> {
    let start = Instant::now();
    loop {
        let text = text(dir, &format!("events/{event}/hist"))?;
        if text.contains(&format!("Hits: {hits}\n")) {
            return Ok(text.lines().filter(|line| line.starts_with('{')).map(str::to_owned).collect());
        }
        ensure!(start.elapsed() < PATIENCE, "{event}: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Tests an event with a field that counts up from 0 with each hit. `event` is its directory, and `hit` hits it.
fn acts(dir: &Path, event: &str, field: &str, hit: &dyn Fn(u64)) -> Result<()> {
    let file = |name: &str| format!("events/{event}/{name}");
    let append = |name: &str, line: &str| {
        mirror::write(dir, name, format!("{line}\n").as_bytes(), true)
            .map_err(std::io::Error::from_raw_os_error)
            .with_context(|| line.to_owned())
    };
    let (system, name) = event.split_once('/').context("a system")?;
    let hits = || (0..12).for_each(hit);
    let lines = |name: &str| -> Result<usize> {
        Ok(bodies(&text(dir, "trace")?).iter().filter(|line| line.starts_with(&format!("{name}: "))).count())
    };

    // A filter, and a trigger with a condition and a count.
    set(dir, &file("filter"), &format!("{field} >= 4 && {field} != 7"))?;
    append(&file("trigger"), &format!("traceoff:1 if {field} == 10"))?;
    set(dir, &file("enable"), "1")?;
    hits();
    ensure!(text(dir, "tracing_on")? == "0\n", "{event}: {}", text(dir, "trace")?);
    // The trigger acts after the record of its hit.
    ensure!(lines(name)? == 6, "{event}: {}", text(dir, "trace")?);
    append(&file("trigger"), &format!("!traceoff:1 if {field} == 10"))?;
    set(dir, "tracing_on", "1")?;
    set(dir, &file("filter"), "0")?;
    set(dir, "trace", "")?;

    // A histogram with a condition, while the event itself is recorded.
    append(&file("trigger"), &format!("hist:keys={field}:vals=hitcount:sort={field} if {field} < 3"))?;
    hits();
    hits();
    let table = counted(dir, event, 6)?;
    ensure!(table.len() == 3, "{event}: {table:?}");
    for (line, number) in table.iter().zip(0..) {
        let numbers: Vec<u64> =
            line.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
        ensure!(numbers == [number, 2], "{event}: {line}");
    }
    ensure!(lines(name)? == 24, "{event}: {}", lines(name)?);
    append(&file("trigger"), &format!("!hist:keys={field}:vals=hitcount:sort={field} if {field} < 3"))?;

    // An event probe with its own filter; a probe's event cannot have one.
    if system == "acting" {
        let line = format!("e:acting/{name}_seen {system}.{name} n=${field}:u32\n");
        let done = mirror::write(dir, "dynamic_events", line.as_bytes(), true);
        ensure!(done == Err(libc::ENODEV), "{event}: {done:?}");
        return set(dir, &file("enable"), "0");
    }
    append("dynamic_events", &format!("e:acting/{name}_seen {system}.{name} n=${field}:u32"))?;
    set(dir, &format!("events/acting/{name}_seen/filter"), "n & 1")?;
    set(dir, &format!("events/acting/{name}_seen/enable"), "1")?;
    set(dir, "trace", "")?;
    hits();
    ensure!(lines(&format!("{name}_seen"))? == 6, "{event}: {}", text(dir, "trace")?);
    set(dir, &format!("events/acting/{name}_seen/enable"), "0")?;
    append("dynamic_events", &format!("-:acting/{name}_seen"))?;
    set(dir, &file("enable"), "0")?;
    set(dir, "trace", "")
}

#[test]
fn a_user_event_is_like_any_other() {
    run(|| {
        let mounted = Mounted::start("acts-user")?;
        let dir = mounted.dir();
        let (data, word) = (Data::open(dir)?, Word::default());
        let index = data.register("numbered u32 number", &word, 0, 0);
        let index = index.map_err(std::io::Error::from_raw_os_error)?;
        let hit = |number: u64| {
            data.write(index, &(number as u32).to_ne_bytes()).unwrap();
        };
        acts(dir, "user_events/numbered", "number", &hit)?;
        ensure!(word.get() == 0, "nobody listens any more");
        data.unregister(&word, 0).map_err(std::io::Error::from_raw_os_error)?;
        drop(data);
        mounted.stop()?.success().map(drop)
    });
}

#[test]
fn a_stack_of_a_user_event_is_the_writers() {
    run(|| {
        let mounted = Mounted::start("acts-stack")?;
        let dir = mounted.dir();
        let (data, word) = (Data::open(dir)?, Word::default());
        let register =
            |text: &str| data.register(text, &word, 0, 0).map_err(std::io::Error::from_raw_os_error);
        let index = register("numbered u32 number")?;
        let write =
            |number: u32| data.write(index, &number.to_ne_bytes()).map_err(std::io::Error::from_raw_os_error);
        let stacks = || -> Result<Vec<String>> {
            let text = text(dir, "trace")?;
            let after = text.split("<stack trace>\n").skip(1);
            Ok(after.map(|rest| rest.lines().take_while(|line| line.starts_with(" => ")).collect()).collect())
        };
        set(dir, "events/user_events/numbered/enable", "1")?;
        set(dir, "events/user_events/numbered/trigger", "stacktrace:1 if number == 7")?;
        for number in [6, 7, 7] {
            write(number)?;
        }
        let seen = stacks()?;
        ensure!(seen.len() == 1 && seen[0].contains(" => vfs_writev"), "{seen:?}");
        // A trigger of an event probe on it.
        let line = "e:acting/numbered_seen user_events.numbered n=$number:u32\n";
        mirror::write(dir, "dynamic_events", line.as_bytes(), true)
            .map_err(std::io::Error::from_raw_os_error)?;
        set(dir, "events/acting/numbered_seen/enable", "1")?;
        set(dir, "events/acting/numbered_seen/trigger", "stacktrace if n == 8")?;
        write(8)?;
        ensure!(stacks()?.len() == 2, "{}", text(dir, "trace")?);
        // Each record has its own stack.
        set(dir, "events/user_events/numbered/trigger", "!stacktrace:1 if number == 7")?;
        set(dir, "events/user_events/numbered/trigger", "stacktrace if number == 8")?;
        set(dir, "trace", "")?;
        write(8)?;
        let text = text(dir, "trace")?;
        let order: Vec<_> =
            bodies(&text).iter().map(|line| line.split(':').next().unwrap_or("").to_owned()).collect();
        let names: Vec<_> =
            order.iter().filter(|name| name.contains("numbered") || name.contains("stack")).collect();
        ensure!(names == ["numbered", "<stack trace>", "numbered_seen", "<stack trace>"], "{text}");
        set(dir, "events/acting/numbered_seen/trigger", "!stacktrace if n == 8")?;
        set(dir, "events/acting/numbered_seen/enable", "0")?;
        data.unregister(&word, 0).map_err(std::io::Error::from_raw_os_error)?;
        mounted.stop()?.success().map(drop)
    });
}

#[test]
fn an_event_of_a_program_is_like_any_other() {
    run(|| {
        let mounted = Mounted::start("acts-program")?;
        let dir = mounted.dir();
        let own = std::env::current_exe()?;
        set(dir, "program_events", own.to_str().context("a path that is text")?)?;
        // A round hits all events once.
        let hit = |number: u64| events::round(number as u32);
        acts(dir, "demo/sched_wakeup", "pid", &hit)?;
        mounted.stop()?.success().map(drop)
    });
}

#[test]
fn a_uprobe_is_like_any_other() {
    run(|| {
        let mounted = Mounted::start("acts-uprobe")?;
        let dir = mounted.dir();
        let line = format!("p:acting/called {} number={FIRST}:u32", place(probed as *const () as u64)?);
        mirror::write(dir, "uprobe_events", line.as_bytes(), true)
            .map_err(std::io::Error::from_raw_os_error)?;
        acts(dir, "acting/called", "number", &|number| {
            probed(number);
        })?;
        mounted.stop()?.success().map(drop)
    });
}
