//! Events that a program defines (crate `tracer-events`), traced by probes at their sites. This test is the program:
//! its file has the notes, and its hits are known.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_events::{Transport, register_at, register_by};
use tracer_tests::events::{self, trace_sched_wakeup_enabled, trace_softirq_entry_enabled};
use tracer_tests::host::{self, Tracefs};
use tracer_tests::mirror::{self, Mounted, bodies, set, text};
use tracer_tests::tracer::Tracer;
use tracer_user::event::program;

use crate::run;

fn own_file() -> PathBuf {
    std::env::current_exe().unwrap()
}

/// Names of the softirqs.
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// The expected texts of a round.
fn said(round: u32) -> Vec<String> {
    let (comm, odd) = if round.is_multiple_of(2) { ("even", "even") } else { ("odd", "odd") };
    let count = (round % 4).min(3) as usize;
    let values: Vec<String> = [1, 2, round][..count].iter().map(|value| format!("{value:#x}")).collect();
    let vec = round % 11;
    let name = SOFTIRQS.get(vec as usize).map_or(format!("{vec:#x}"), |name| (*name).to_owned());
    vec![
        format!("sched_wakeup: comm={comm} pid={round} prio=120 target_cpu=001"),
        format!("sched_wakeup_new: comm={comm} pid={round} prio=120 target_cpu=002"),
        format!("sched_waking: {comm}:{round}"),
        "module_load: demo_module OE".to_owned(),
        format!("softirq_entry: vec={vec} [action={name}]"),
        format!(
            "everything: small={round} big=-{} {odd} pair={round},0xff00 mac=00:11:22:33:44:{round:02x} text=some text values={{{}}} \
             ({}) other=<some text> 100%",
            round + 1,
            values.join(","),
            2 * count,
        ),
    ]
}

fn said_by(rounds: u32) -> Vec<String> {
    (0..rounds).flat_map(said).collect()
}

fn hit(rounds: u32) {
    (0..rounds).for_each(events::round);
}

/// `tracer record` of this program's events.
fn record() -> Result<Tracer> {
    Ok(Tracer::record()?
        .args(["--program".into(), own_file()])
        .args(["--pid", &std::process::id().to_string()]))
}

#[test]
fn a_recording_shows_the_text_of_the_events() {
    run(|| {
        ensure!(!trace_sched_wakeup_enabled(), "somebody traces it before anybody does");
        let running = record()?.start()?;
        ensure!(trace_sched_wakeup_enabled(), "the semaphore is not raised");
        hit(12);
        let outcome = running.stop()?.success()?;
        ensure!(!trace_sched_wakeup_enabled(), "the semaphore stays raised");
        hit(1);
        assert_eq!(bodies(&outcome.text()), said_by(12));
        for (event, counts) in outcome.counts() {
            let hits = if event == "total" { 72 } else { 12 };
            assert_eq!((counts.hits, counts.recorded, counts.dropped), (hits, hits, 0), "{event}");
        }
        Ok(())
    });
}

#[test]
fn filters_see_every_kind_of_field() {
    run(|| {
        type Holds = fn(u32) -> bool;
        let cases: [(&str, &str, Holds); 13] = [
            ("sched_wakeup", "pid > 3 && comm == \"odd\"", |round| round > 3 && round % 2 == 1),
            ("sched_wakeup", "comm ~ \"ev*\" || pid == 1", |round| round.is_multiple_of(2) || round == 1),
            ("sched_wakeup", "target_cpu != 1", |_| false),
            ("module_load", "name == \"demo_module\"", |_| true),
            ("module_load", "name ~ \"*xyz*\"", |_| false),
            ("module_load", "taints & 0x1000", |_| true),
            ("softirq_entry", "vec >= 7", |round| round % 11 >= 7),
            ("everything", "small == 5", |round| round == 5),
            ("everything", "big < -9", |round| round > 8),
            ("everything", "odd == 1", |round| round % 2 == 1),
            ("everything", "path ~ \"/odd*\"", |round| round % 2 == 1),
            ("everything", "text ~ \"some*\" && other == \"<some text>\" && small < 3", |round| round < 3),
            ("everything", "common_pid == 1", |_| false),
        ];
        // Under emulation a recording takes seconds to start.
        let step = if host::part() > 1 { 4 } else { 1 };
        for (event, filter, holds) in cases.into_iter().step_by(step) {
            let running = record()?.event(&format!("demo:{event}"), Some(filter)).start()?;
            hit(12);
            let outcome = running.stop()?.success()?;
            let line = |line: &String| line.starts_with(&format!("{event}: "));
            let expected: Vec<String> =
                (0..12).filter(|round| holds(*round)).flat_map(said).filter(line).collect();
            assert_eq!(bodies(&outcome.text()), expected, "{event} if {filter}");
            let counts = outcome.counts()[&format!("demo:{event}")];
            assert_eq!((counts.hits, counts.recorded), (12, expected.len() as u64), "{event} if {filter}");
        }
        Ok(())
    });
}

#[test]
fn errors_are_reported() {
    run(|| {
        let refused = |arguments: &[&str]| -> Result<String> {
            let outcome = Tracer::record()?.args(arguments).run()?;
            ensure!(!outcome.status.success(), "taken: {arguments:?}");
            Ok(outcome.stderr)
        };
        let own = own_file();
        let own = own.to_str().context("a path that is text")?;
        ensure!(refused(&["--program", "/nowhere"])?.contains("/nowhere: No such file"));
        let none = refused(&["--program", "/bin/sh"])?;
        ensure!(none.contains("/bin/sh: it has no events"), "{none}");
        let filter = refused(&["--program", own, "-e", "demo:softirq_entry if nope == 1"])?;
        ensure!(
            filter.contains("filter of demo:softirq_entry") && filter.contains("Field not found"),
            "{filter}"
        );
        ensure!(refused(&["--program", own, "-e", "demo:nope"])?.contains("no event matches `demo:nope`"));
        Ok(())
    });
}

/// A format file without the event's name and id, and without the signedness of characters, which depends on the
/// kernel's compiler.
fn comparable(format: &str) -> Vec<String> {
    let lines = format.lines().filter(|line| !line.starts_with("name: ") && !line.starts_with("ID: "));
    lines
        .map(|line| {
            let line =
                if line.contains("char") { line.replace("signed:1", "signed:0") } else { line.to_owned() };
            // Omits flags, because the kernel's macros have more of them or write them differently.
            let line = line.replace("(1UL << ", "1 << ").replace("), \"", ", \"");
            line.split(", { 1 << ").next().unwrap_or_default().to_owned()
        })
        .collect()
}

#[test]
fn formats_are_as_the_kernels() {
    run(|| {
        let kernel = Tracefs::find_or_mount()?;
        let mounted = Mounted::start("programs-format")?;
        let dir = mounted.dir();
        set(dir, "program_events", own_file().to_str().context("a path that is text")?)?;
        let mut compared = 0;
        for (event, kernels) in [
            ("sched_wakeup", "sched:sched_wakeup"),
            ("sched_wakeup_new", "sched:sched_wakeup_new"),
            ("module_load", "module:module_load"),
            ("softirq_entry", "irq:softirq_entry"),
        ] {
            let ours = text(dir, &format!("events/demo/{event}/format"))?;
            let Ok(expected) = kernel.format(kernels) else { continue };
            assert_eq!(comparable(&ours), comparable(&expected), "{event}");
            ensure!(ours.starts_with(&format!("name: {event}\nID: ")), "{ours}");
            compared += 1;
        }
        ensure!(compared >= 3, "the kernel has too few of these events");
        let everything = text(dir, "events/demo/everything/format")?;
        let fields: Vec<&str> =
            everything.lines().filter(|line| line.contains("field:") && !line.contains("common_")).collect();
        assert_eq!(
            fields,
            [
                "\tfield:u8 small;\toffset:8;\tsize:1;\tsigned:0;",
                "\tfield:s64 big;\toffset:16;\tsize:8;\tsigned:1;",
                "\tfield:bool odd;\toffset:24;\tsize:1;\tsigned:0;",
                "\tfield:const char * path;\toffset:32;\tsize:8;\tsigned:0;",
                "\tfield:u16 pair[2];\toffset:40;\tsize:4;\tsigned:0;",
                "\tfield:u8 mac[6];\toffset:44;\tsize:6;\tsigned:0;",
                "\tfield:__data_loc char[] text;\toffset:52;\tsize:4;\tsigned:0;",
                "\tfield:__data_loc u16[] values;\toffset:56;\tsize:4;\tsigned:0;",
                "\tfield:__data_loc char[] other;\toffset:60;\tsize:4;\tsigned:0;",
            ]
        );
        mounted.stop()?;
        Ok(())
    });
}

/// Waits until a condition holds, for at most a minute.
fn eventually(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !holds()? {
        ensure!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The number of uprobe programs that a process holds.
fn programs_of(pid: u32) -> Result<usize> {
    let mut ids = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let info = match std::fs::read_to_string(entry?.path()) {
            Ok(info) => info,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        // BPF_PROG_TYPE_KPROBE; the info of a link starts with another type.
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if field("prog_type:") == Some("2") && field("link_type:").is_none() {
            ids.extend(field("prog_id:").map(str::to_owned));
        }
    }
    Ok(ids.len())
}

fn arm(dir: &Path) -> Result<()> {
    set(dir, "set_event_pid", &rustix::thread::gettid().as_raw_nonzero().to_string())
}

#[test]
fn the_mirror_has_events_of_programs_like_any_other_event() {
    run(|| {
        let mounted = Mounted::start("programs")?;
        let dir = mounted.dir();
        let own = own_file();
        let own = own.to_str().context("a path that is text")?;
        for (line, errno) in [
            ("relative", libc::EINVAL),
            ("/nowhere", libc::ENOENT),
            ("/bin/sh", libc::EINVAL),
            ("-/bin/sh", libc::ENOENT),
        ] {
            assert_eq!(mirror::write(dir, "program_events", line.as_bytes(), true), Err(errno), "{line}");
        }
        let registered = register_at(&[dir])?;
        assert_eq!((registered.transport, registered.events), (Transport::Probes, 6), "{registered}");
        assert_eq!(text(dir, "program_events")?, format!("{own}\n"));
        // Registering again changes nothing.
        register_at(&[dir])?;
        assert_eq!(text(dir, "program_events")?, format!("{own}\n"));
        assert_eq!(
            text(dir, "available_events")?.lines().filter(|line| line.starts_with("demo:")).count(),
            6
        );

        arm(dir)?;
        set(dir, "events/demo/sched_wakeup/enable", "1")?;
        let before = programs_of(mounted.pid())?;
        ensure!(before >= 2, "the gate and a program behind it: {before}");
        for event in ["sched_wakeup_new", "sched_waking"] {
            set(dir, &format!("events/demo/{event}/enable"), "1")?;
        }
        assert_eq!(programs_of(mounted.pid())?, before, "events of a class share their program");
        ensure!(!trace_softirq_entry_enabled(), "an event that nobody turned on");
        set(dir, "events/demo/enable", "1")?;
        ensure!(programs_of(mounted.pid())? > before, "other events have programs of their own");
        ensure!(trace_softirq_entry_enabled(), "an event that is on");
        hit(5);
        assert_eq!(bodies(&text(dir, "trace")?), said_by(5));

        set(dir, "trace", "")?;
        set(dir, "events/demo/sched_wakeup/filter", "pid == 2")?;
        set(dir, "events/demo/everything/filter", "other ~ \"*nothing*\"")?;
        hit(4);
        let kept = |line: &String| {
            !line.starts_with("everything")
                && (!line.starts_with("sched_wakeup: ") || line.contains("pid=2 "))
        };
        let expected: Vec<String> = said_by(4).into_iter().filter(kept).collect();
        assert_eq!(bodies(&text(dir, "trace")?), expected);

        // A trigger with a condition reads the record as a filter does.
        set(dir, "trace", "")?;
        set(dir, "events/demo/softirq_entry/trigger", "traceoff if vec == 2")?;
        hit(5);
        assert_eq!(text(dir, "tracing_on")?, "0\n");
        let last = bodies(&text(dir, "trace")?).pop().context("something was recorded")?;
        assert_eq!(last, said(2)[4]);

        assert_eq!(
            mirror::write(dir, "program_events", format!("-{own}").as_bytes(), true),
            Err(libc::EBUSY)
        );
        set(dir, "events/demo/softirq_entry/trigger", "!traceoff if vec == 2")?;
        set(dir, "events/demo/enable", "0")?;
        eventually("nobody traces the events", || Ok(!trace_sched_wakeup_enabled()))?;
        assert_eq!(mirror::write(dir, "program_events", format!("-{own}").as_bytes(), true), Ok(()));
        ensure!(!dir.join("events/demo").exists(), "the events are still there");
        assert_eq!(text(dir, "program_events")?, "");
        mounted.stop()?;
        Ok(())
    });
}

/// A field text with decimal numbers only (`=0x10 (16)`, the form of newer kernels, becomes `=16`).
fn decimal(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("=0x") {
        out += &rest[..=at];
        rest = &rest[at + 1..];
        if let Some((start, end)) = rest.find(" (").zip(rest.find(')')) {
            out += &rest[start + 2..end];
            rest = &rest[end + 1..];
        }
    }
    out + rest
}

/// The expected texts of user events for a round, in the kernel's default form: user events have no print fmt.
fn said_by_fields(round: u32) -> Vec<String> {
    let comm = if round.is_multiple_of(2) { "even" } else { "odd" };
    vec![
        format!("sched_wakeup: comm={comm} pid={round} prio=120 target_cpu=1"),
        "module_load: taints=12288 name=demo_module".to_owned(),
        format!("softirq_entry: vec={}", round % 11),
    ]
}

#[test]
fn user_events_accept_the_same_records() {
    const CHILD: &str = "TRACER_TESTS_PROGRAM_EVENTS_USER";
    // In a separate process: a registration lasts until the process ends.
    if let Some(dir) = std::env::var_os(CHILD) {
        let dir = Path::new(&dir);
        let registered = register_by(Transport::MirrorUserEvents, dir).unwrap();
        assert_eq!((registered.events, registered.refused.len()), (6, 0), "{registered}");
        assert!(!trace_sched_wakeup_enabled());
        for event in ["sched_wakeup", "module_load", "softirq_entry", "everything"] {
            set(dir, &format!("events/user_events/{event}/enable"), "1").unwrap();
        }
        assert!(trace_sched_wakeup_enabled() && trace_softirq_entry_enabled());
        hit(4);
        // The events and their records are removed with the process.
        let lines = bodies(&text(dir, "trace").unwrap()).into_iter().map(|line| decimal(&line));
        let (whole, plain): (Vec<_>, Vec<_>) =
            lines.into_iter().partition(|line| line.starts_with("everything: "));
        assert_eq!(plain, (0..4).flat_map(said_by_fields).collect::<Vec<_>>());
        assert_eq!(whole.len(), 4);
        for (round, line) in whole.iter().enumerate() {
            // The texts are correct although padding is omitted and data words are adjusted.
            assert!(
                line.contains(&format!(" big=-{} ", round + 1)) && line.contains(" text=some text "),
                "{line}"
            );
            assert!(line.ends_with(" other=<some text>"), "{line}");
        }
        return set(dir, "events/user_events/enable", "0").unwrap();
    }
    run(|| {
        let mounted = Mounted::start("programs-user")?;
        let dir = mounted.dir();
        if !dir.join("user_events_data").exists() {
            host::skip("prog_syscall", "the mirror has no user_events");
            return Ok(());
        }
        let ended = Command::new(own_file())
            .args(["--exact", &host::test_name(module_path!(), "user_events_accept_the_same_records")])
            .env(CHILD, dir)
            .output()?;
        ensure!(
            ended.status.success(),
            "{}{}",
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&ended.stderr)
        );
        mounted.stop()?;
        Ok(())
    });
}

#[test]
fn a_program_that_starts_later_is_traced() {
    const CHILD: &str = "TRACER_TESTS_PROGRAM_EVENTS_CHILD";
    if std::env::var_os(CHILD).is_some() {
        eprintln!("child: {}", trace_sched_wakeup_enabled());
        return hit(3);
    }
    run(|| {
        let mounted = Mounted::start("programs-later")?;
        let dir = mounted.dir();
        set(dir, "program_events", own_file().to_str().context("a path that is text")?)?;
        let instance = mounted.instance("later")?;
        set(&instance, "events/demo/sched_wakeup/enable", "1")?;
        let ended = Command::new(own_file())
            .args(["--exact", &host::test_name(module_path!(), "a_program_that_starts_later_is_traced")])
            .env(CHILD, "1")
            .output()?;
        ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        let expected: Vec<String> =
            said_by(3).into_iter().filter(|line| line.starts_with("sched_wakeup: ")).collect();
        assert_eq!(bodies(&text(&instance, "trace")?), expected);
        mounted.stop()?;
        Ok(())
    });
}

#[test]
fn invalid_notes_are_refused_or_omitted() {
    let mut file = std::fs::read(own_file()).unwrap();
    let whole = program::events(&file).unwrap();
    assert_eq!(whole.len(), 6);
    let notes = {
        use object::{Object as _, ObjectSection as _};
        let parsed = object::File::parse(&*file).unwrap();
        let (start, size) = parsed.section_by_name(".note.tracer").unwrap().file_range().unwrap();
        start as usize..(start + size) as usize
    };
    // A fixed generator, so that every run is the same.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..host::share(4000) {
        let at = notes.start + next() as usize % notes.len();
        let old = file[at];
        file[at] = next() as u8;
        if let Ok(events) = program::events(&file) {
            assert!(events.len() <= 6);
            for event in events {
                assert!(event.offset < file.len() as u64 && event.reference < file.len() as u64);
                assert!(event.format.fixed_size() <= 8192);
            }
        }
        file[at] = old;
    }
    assert_eq!(program::events(&file).unwrap(), whole);
}
