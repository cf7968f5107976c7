//! Compares triggers of a mounted mirror with triggers of the kernel's tracefs. Both receive the same writes and see
//! the same hits.

use std::path::Path;

use anyhow::{Result, ensure};
use tracer_tests::generate::Rng;
use tracer_tests::host;
use tracer_tests::mirror::{self, stacks, text};
use tracer_tests::triggers::{
    ENABLE, FILTER, GETPGID, GETSID, ON, OTHER, OTHER_ENABLE, OTHER_NAME, Pair, Step, TRIGGER, play,
};
use tracer_tests::workload::{getpgid, getsid};

use crate::run;

/// Lines to write, one after the other.
const LINES: &str = "traceoff\n\
     traceoff\n\
     traceon\n\
     !traceon\n\
     !traceon\n\
     traceoff:5\n\
     !traceoff:7 if x\n\
     traceoff:0x10 if pid == 3\n\
     !traceoff\n\
     traceoff:08\n\
     traceoff:-1\n\
     traceoff:1x\n\
     traceoff:\n\
     !traceoff\n\
     traceoff:99999999999999999999\n\
     traceoff:18446744073709551615\n\
     !traceoff\n\
     traceoff:9223372036854775808\n\
     !traceoff\n\
     traceoff: 3\n\
     !traceoff\n\
     traceoff 3\n\
     !traceoff\n\
     traceoff:3:4\n\
     !traceoff\n\
     traceoff if\n\
     traceoff if nonsense == 1\n\
     traceoff if pid ==\n\
     traceoff if (pid == 1\n\
     traceoff if  pid  == 1\n\
     !traceoff\n\
     traceoff:1 pid == 1\n\
     !traceoff\n\
     stacktrace:2\n\
     stacktrace\n\
     snapshot:1\n\
     !snapshot\n\
     !stacktrace\n\
     x\n\
     !\n\
     !!traceoff\n\
     ! traceoff\n\
     !traceoff\n\
     enable_event\n\
     enable_event:\n\
     enable_event:syscalls\n\
     enable_event:syscalls:\n\
     enable_event:syscalls:nonsense\n\
     enable_event:nonsense:sys_enter_getsid\n\
     enable_event:ftrace:print\n\
     enable_event:syscalls:sys_enter_getsid\n\
     enable_event:syscalls:sys_enter_getsid:4\n\
     disable_event:syscalls:sys_enter_getsid\n\
     !disable_event:syscalls:sys_enter_getsid:9\n\
     disable_event:syscalls:sys_enter_getsid:3 if pid > 5\n\
     enable_event:syscalls:sys_enter_getpgid\n\
     !enable_event:syscalls:sys_enter_getsid\n\
     !enable_event:syscalls:sys_enter_getpgid\n\
     disable_event:syscalls:sys_enter_getsid:\n\
     disable_event:syscalls:sys_enter_getsid:x\n\
     disable_event:syscalls:sys_enter_getsid if nonsense\n\
     enable_hist\n\
     enable_hist:syscalls\n\
     enable_hist:syscalls:nonsense\n\
     enable_hist:ftrace:print\n\
     enable_hist:syscalls:sys_enter_getsid\n\
     enable_hist:syscalls:sys_enter_getsid:4\n\
     disable_hist:syscalls:sys_enter_getsid\n\
     enable_event:syscalls:sys_enter_getsid\n\
     !disable_hist:syscalls:sys_enter_getsid:9\n\
     disable_hist:syscalls:sys_enter_getsid:3 if pid > 5\n\
     enable_hist:syscalls:sys_enter_getpgid\n\
     !enable_hist:syscalls:sys_enter_getsid\n\
     !enable_hist:syscalls:sys_enter_getpgid\n\
     !enable_event:syscalls:sys_enter_getsid\n\
     disable_hist:syscalls:sys_enter_getsid:x\n\
     traceoffs\n\
     traceoff=3";

/// More lines, with blanks and other bytes in unusual places.
const ODD: &[&str] =
    &["traceoff if ", "traceoff:1  if\tpid == 1", "", "\n", " ", " traceoff ", "!traceoff\n", "traceoff\0:3"];

#[test]
fn both_accept_and_refuse_the_same_lines() {
    run(|| {
        let pair = Pair::new("lines")?;
        let trigger = format!("{GETPGID}/trigger");
        for line in LINES.split('\n').chain(ODD.iter().copied()) {
            pair.write(&trigger, line);
            pair.all_same(&format!("{line:?}"));
        }
        let long = format!("traceoff if pid == 1{}", " ".repeat(4096));
        pair.write(&trigger, &long[..4096]);
        pair.write(&trigger, &long[..4095]);
        pair.all_same("long lines");
        // Opening the file with `O_TRUNC` removes no simple trigger.
        for dir in [pair.ours.as_path(), pair.kernel.dir()] {
            ensure!(mirror::write(dir, &trigger, b"\n", false) == Err(libc::EINVAL));
        }
        pair.all_same("emptying");
        Ok(())
    });
}

// One line per scenario.
#[rustfmt::skip]
#[test]
fn hits_have_the_same_effects() {
    use Step::{Group, Session, To};
    run(|| {
        let pair = Pair::new("effects")?;
        let enable = |count: &str| format!("enable_event:{OTHER_NAME}{count}");
        let disable = |count: &str| format!("disable_event:{OTHER_NAME}{count}");
        // Turns recording off; the hit that does so is recorded.
        play(&pair, &[To(ENABLE, "1"), To(TRIGGER, "traceoff:2"), Group(1), Group(2), To(ON, "1"), Group(3),
            To(ON, "1"), Group(4), Group(5)]);
        // Turns recording on. The hit is recorded when the trigger needs no record, and is not when the trigger reads
        // the record first.
        play(&pair, &[To(ENABLE, "1"), To(ON, "0"), To(TRIGGER, "traceon:1"), Group(1), To(ON, "0"),
            Group(2), Group(3)]);
        play(&pair, &[To(ENABLE, "1"), To(ON, "0"), To(TRIGGER, "traceon if pid == 2"), Group(1), Group(2),
            Group(3), To(ON, "0"), To(FILTER, "pid < 3"), Group(1), Group(2), Group(3), To(FILTER, "0")]);
        // Triggers act even if the event is disabled or its filter drops the hit.
        play(&pair, &[To(TRIGGER, "traceoff if pid == 2"), Group(1), Group(2)]);
        play(&pair, &[To(ENABLE, "1"), To(FILTER, "pid == 9"), To(TRIGGER, "traceoff if pid == 2"), Group(1),
            Group(9), Group(2), Group(9), To(FILTER, "0")]);
        // Enables and disables other events.
        play(&pair, &[Session(1), To(TRIGGER, &enable(":1")), Session(2), Group(1), Session(3),
            To(OTHER_ENABLE, "0"), Session(4), Group(2), Session(5), To(OTHER_ENABLE, "1"), Session(6)]);
        play(&pair, &[To(OTHER_ENABLE, "1"), To(TRIGGER, &disable(":2")), Session(1), Group(1), Session(2),
            Group(2), To(OTHER_ENABLE, "1"), Session(3), Group(3), Session(4), To(OTHER_ENABLE, "1"),
            Group(4), Session(5), To(TRIGGER, &format!("!{}", disable(""))), Session(6)]);
        // Removes the trigger after it has enabled or disabled the event.
        play(&pair, &[To(TRIGGER, &enable("")), Group(1), To(TRIGGER, &format!("!{}", enable(""))),
            Session(1), To(TRIGGER, &disable("")), Group(2), Session(2), To(TRIGGER, &format!("!{}",
            disable(""))), Session(3)]);
        // A trigger enables an event that disables itself again.
        let itself = format!("disable_event:{OTHER_NAME} if pid == 7");
        play(&pair, &[To(TRIGGER, &enable(" if pid > 3")), To(OTHER, &itself), Group(1), Session(1),
            Group(4), Session(2), Session(7), Session(3), Group(5), Session(4)]);
        // Without a condition the trigger acts before the check whether the event is enabled.
        play(&pair, &[To(OTHER, &disable("")), To(OTHER_ENABLE, "1"), Session(1), Session(2),
            To(OTHER_ENABLE, "1"), Session(3)]);
        play(&pair, &[To(OTHER, &enable("")), Session(1), Session(2), To(OTHER_ENABLE, "0"), Session(3),
            Session(4)]);
        // The snapshot has the records before it.
        if pair.snapshots {
            play(&pair, &[To(ENABLE, "1"), To(OTHER_ENABLE, "1"), Session(1), Group(1), To(TRIGGER,
            "snapshot:2"), Group(2), Session(2), Group(3), Group(4), To(ON, "0"), To(TRIGGER, "!snapshot"),
            To(TRIGGER, "snapshot"), Group(5)]);
            play(&pair, &[To(OTHER_ENABLE, "1"), Session(1), To(TRIGGER, "snapshot if pid > 2"), Group(1),
            Group(3), Session(2), To(ENABLE, "1"), Group(4), Session(3), To(FILTER, "pid == 5"), Group(6),
            Group(5), To(FILTER, "0"), To(TRIGGER, "traceoff if pid == 7"), Group(7), Session(4),
            To("snapshot", "2"), To("snapshot", "0")]);
        }
        // Triggers that need no record also act for threads that are not traced.
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        play(&pair, &[To(ENABLE, "1"), To("set_event_pid", "\n"), To("set_event_notrace_pid", &own),
            To(TRIGGER, &enable("")), Group(1), To("set_event_notrace_pid", ""), To(TRIGGER, "traceoff"),
            Group(2)]);
        Ok(())
    });
}

#[test]
fn random_triggers_show_no_difference() {
    run(|| {
        let pair = Pair::new("chance")?;
        let mut rng = Rng::new(0x7416_6e75);
        let files = [format!("{GETPGID}/trigger"), format!("{GETSID}/trigger")];
        let mut log = Vec::new();
        for _ in 0..host::share(600).min(400) {
            let which = rng.below(2);
            let one = |list: &[&str], rng: &mut Rng| list[rng.below(list.len())].to_owned();
            let what = match rng.below(10) {
                0..=2 => {
                    getpgid(1 + rng.below(4) as i32);
                    "getpgid".to_owned()
                }
                3 | 4 => {
                    getsid(1 + rng.below(4) as i32);
                    "getsid".to_owned()
                }
                5 => {
                    let (file, value) = (
                        one(
                            &["tracing_on", &format!("{GETPGID}/enable"), &format!("{GETSID}/enable")],
                            &mut rng,
                        ),
                        one(&["0", "1", "1"], &mut rng),
                    );
                    pair.write(&file, &value);
                    format!("{value} to {file}")
                }
                6 => {
                    let value = one(&["pid == 2", "pid < 3", "0", "nonsense"], &mut rng);
                    pair.write(&format!("{GETPGID}/filter"), &value);
                    format!("{value} to filter")
                }
                _ => {
                    let line = [
                        one(&["", "", "!"], &mut rng),
                        one(
                            &[
                                "traceon",
                                "traceoff",
                                "enable_event:syscalls:sys_enter_getsid",
                                "disable_event:syscalls:sys_enter_getsid",
                                "enable_event:syscalls:sys_enter_getpgid",
                                "disable_event:syscalls:sys_enter_getpgid",
                                &format!("enable_hist:syscalls:sys_enter_{}", ["getsid", "getpgid"][which]),
                                &format!("disable_hist:syscalls:sys_enter_{}", ["getsid", "getpgid"][which]),
                                "hist:keys=pid:sort=pid",
                                "hist:keys=pid.log2:sort=pid",
                            ],
                            &mut rng,
                        ),
                        one(&["", "", ":1", ":2", ":0", ":x", ":pause", ":cont"], &mut rng),
                        one(&["", "", " if pid == 2", " if pid > 2", " if"], &mut rng),
                    ]
                    .concat();
                    pair.write(&files[which], &line);
                    format!("{line} to {}", files[which])
                }
            };
            log.push(what);
            pair.all_same(&format!("\n{}", log[log.len().saturating_sub(30)..].join("\n")));
        }
        Ok(())
    });
}

/// Deletes the test's definitions on drop.
struct Defined<'a>(Vec<(&'a Path, &'a str)>);

impl Drop for Defined<'_> {
    fn drop(&mut self) {
        for (dir, line) in &self.0 {
            let _ = mirror::write(dir, "kprobe_events", line.as_bytes(), true);
        }
    }
}

#[test]
fn dynamic_events_have_triggers() {
    run(|| {
        let pair = Pair::new("dynamic")?;
        let (theirs, our) = (pair.kernel.tracefs().root(), pair.mounted.dir());
        // The entry functions of two system calls: one event with two probes.
        let entry = if cfg!(target_arch = "aarch64") { "__arm64_sys_" } else { "__x64_sys_" };
        let group = format!("triggers{}", std::process::id());
        let lines = [
            format!("p:{group}/twice {entry}getpgid"),
            format!("p:{group}/twice {entry}getsid"),
            format!("p:{group}/once {entry}getsid"),
        ];
        if mirror::write(theirs, "kprobe_events", lines[0].as_bytes(), true).is_err() {
            host::skip("own_kprobe_events", "the kernel has no kprobes");
            return Ok(());
        }
        let (twice, once) = (format!("-:{group}/twice"), format!("-:{group}/once"));
        let mut defined = Defined(vec![(theirs, &twice), (theirs, &once), (our, &twice), (our, &once)]);
        for (dir, line) in [(theirs, 1), (theirs, 2), (our, 0), (our, 1), (our, 2)] {
            let done = mirror::write(dir, "kprobe_events", lines[line].as_bytes(), true);
            ensure!(done.is_ok(), "{:?} in {}: {done:?}", lines[line], dir.display());
        }
        let file = |event: &str, file: &str| format!("events/{group}/{event}/{file}");
        let (enable, trigger) = (file("once", "enable"), file("once", "trigger"));
        let both = file("twice", "enable");
        for (file, value, hits) in [
            (trigger.as_str(), format!("enable_event:{group}:twice:1"), 2),
            (both.as_str(), "0".to_owned(), 1),
            (&trigger, format!("!enable_event:{group}:twice"), 1),
            (&enable, "1".to_owned(), 1),
            (&trigger, "traceoff:1".to_owned(), 2),
            ("tracing_on", "1".to_owned(), 1),
            (&trigger, "!traceoff".to_owned(), 0),
            (&trigger, format!("disable_event:{group}:once"), 0),
            ("tracing_on", "1".to_owned(), 2),
            (&enable, "1".to_owned(), 1),
            (&trigger, format!("!disable_event:{group}:once"), 0),
            (&enable, "0".to_owned(), 1),
        ] {
            pair.write(file, &value);
            for pid in 1..=hits {
                getpgid(pid);
                getsid(pid);
            }
            for file in [&enable, &trigger, &both, "tracing_on"] {
                pair.same(file, &format!("{value} to {file}"));
            }
            let bodies = |dir: &Path| text(dir, "trace").map(|trace| mirror::bodies(&trace));
            let (ours, kernels) = (bodies(&pair.ours)?, bodies(pair.kernel.dir())?);
            ensure!(ours == kernels, "{value} to {file}: {ours:#?} and the kernel's {kernels:#?}");
        }
        // An event that a trigger refers to cannot be deleted.
        pair.write(&trigger, &format!("enable_event:{group}:twice"));
        for dir in [theirs, our] {
            for line in [&once, &twice] {
                let answer = mirror::write(dir, "kprobe_events", line.as_bytes(), true);
                ensure!(answer == Err(libc::EBUSY), "{line} in {}: {answer:?}", dir.display());
            }
        }
        pair.write(&trigger, &format!("!enable_event:{group}:twice"));
        for dir in [theirs, our] {
            for line in [&once, &twice] {
                ensure!(mirror::write(dir, "kprobe_events", line.as_bytes(), true).is_ok());
            }
        }
        defined.0.clear();
        Ok(())
    });
}

#[test]
fn stacks_are_the_kernels() {
    run(|| {
        let pair = Pair::new("stacks")?;
        // A system call event, hit by the entry code, and an event inside the kernel.
        let tasks = "events/task/task_rename";
        for (file, value) in [
            (format!("{GETPGID}/enable"), "1"),
            (format!("{GETPGID}/trigger"), "stacktrace:2"),
            (format!("{tasks}/trigger"), "stacktrace if newcomm == \"stacked\""),
            (format!("{tasks}/enable"), "1"),
        ] {
            pair.write(&file, value);
        }
        for name in ["other", "stacked", "again"] {
            rustix::thread::set_name(&std::ffi::CString::new(name)?)?;
        }
        (1..=4).for_each(getpgid);
        let read = |dir: &Path| -> Result<(Vec<Vec<String>>, Vec<String>)> {
            let trace = text(dir, "trace")?;
            Ok((stacks(&trace), mirror::bodies(&trace)))
        };
        let (theirs, our) = (read(pair.kernel.dir())?, read(&pair.ours)?);
        ensure!(our.1 == theirs.1, "{:?} and the kernel's {:?}", our.1, theirs.1);
        ensure!(our.0.len() == 3 && our.0 == theirs.0, "{:#?} and the kernel's {:#?}", our.0, theirs.0);
        ensure!(our.0.iter().all(|stack| stack.len() > 2), "{:#?}", our.0);
        pair.same(&format!("{GETPGID}/trigger"), "hits");
        // Symbol names with offsets and addresses.
        for option in ["options/sym-offset", "options/sym-addr"] {
            pair.write(option, "1");
        }
        let lines = |dir: &Path| -> Result<Vec<String>> {
            let trace = text(dir, "trace")?;
            Ok(trace.lines().filter(|line| line.starts_with(" => ")).map(str::to_owned).collect())
        };
        let (theirs, our) = (lines(pair.kernel.dir())?, lines(&pair.ours)?);
        ensure!(!our.is_empty() && !theirs.is_empty(), "{our:#?} and {theirs:#?}");
        ensure!(our.iter().all(|line| line.contains("+0x") && line.contains(" <ffff")), "{our:#?}");
        // The return addresses of the hook differ; below the hook both stacks are equal.
        ensure!(our.last() == theirs.last(), "{our:#?} and {theirs:#?}");
        Ok(())
    });
}

#[test]
fn options_record_stacks_after_every_event() {
    run(|| {
        let pair = Pair::new("options")?;
        for (file, value) in [
            (format!("{GETPGID}/enable"), "1"),
            ("options/stacktrace".to_owned(), "1"),
            ("options/userstacktrace".to_owned(), "1"),
            (format!("{GETSID}/enable"), "1"),
        ] {
            pair.write(&file, value);
        }
        for pid in 1..=3 {
            getpgid(pid);
            getsid(pid);
        }
        pair.write("options/stacktrace", "0");
        getpgid(4);
        pair.write("options/userstacktrace", "0");
        getpgid(5);
        pair.same("trace", "hits");
        for option in ["sym-userobj", "sym-addr"] {
            pair.write(&format!("options/{option}"), "1");
            let lines = |dir: &Path| {
                text(dir, "trace").map(|trace| {
                    let user = trace.split("<user stack trace>\n").skip(1);
                    user.map(|stack| {
                        stack.lines().take_while(|line| line.starts_with(" =>")).map(str::to_owned).collect()
                    })
                    .collect::<Vec<Vec<String>>>()
                })
            };
            let (theirs, our) = (lines(pair.kernel.dir())?, lines(&pair.ours)?);
            ensure!(our.len() == 7 && our == theirs, "{option}: {our:#?} and the kernel's {theirs:#?}");
        }
        Ok(())
    });
}
