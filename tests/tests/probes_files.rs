//! Probes of files and of tracepoints, which the host's kernel has as well: definitions in its `uprobe_events` and in the
//! mirror's, hit by functions of this test, must leave the same texts.

use std::ffi::{CStr, c_char};
use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::text;
use tracer_tests::probes::{Case, Pair, place};
use tracer_tests::tracer::Tracer;

/// What the first function is given a pointer to.
#[repr(C)]
struct Thing {
    name: *const c_char,
    names: *const [*const c_char; 3],
    bits: u32,
    bytes: [u8; 4],
    next: *const Thing,
}

/// Probed.
#[inline(never)]
extern "C" fn tracer_test_target(number: i64, text: *const c_char, thing: *const Thing, small: i8) -> i64 {
    black_box((text, thing, small));
    black_box(number * 2)
}

/// Probed as well, and hit by one test only.
#[inline(never)]
extern "C" fn tracer_test_counted(number: i64) -> i64 {
    black_box(number + 1)
}

/// The path of this program and the offset in it of the function.
fn target() -> Result<String> {
    place(tracer_test_target as *const () as u64)
}

fn hit() {
    let names: [&CStr; 3] = [c"one", c"", c"three"];
    // What was never looked at may not be in memory yet; the kernel waits for it, a program does not.
    for text in names.iter().chain(&[c"last", c"first", c"some text"]) {
        black_box(black_box(*text).to_bytes_with_nul().to_vec());
    }
    let names = names.map(CStr::as_ptr);
    let last = Thing {
        name: c"last".as_ptr(),
        names: &raw const names,
        bits: 0,
        bytes: [0; 4],
        next: std::ptr::null(),
    };
    let thing = Thing {
        name: c"first".as_ptr(),
        names: &raw const names,
        bits: 0xabcd_1234,
        bytes: *b"wxyz",
        next: &raw const last,
    };
    for number in [-5, 0, 7, 1 << 40] {
        black_box(tracer_test_target(number, c"some text".as_ptr(), &raw const thing, number as i8));
    }
    black_box(tracer_test_target(9, std::ptr::null(), &raw const last, 1));
}

/// Arguments of the probe, in registers of the architecture: `%a` to `%d` stand for the first four. No number is read where
/// nothing is: the kernel leaves in the record what was there, and ours is 0.
const ARGS: [&str; 16] = [
    "",
    "%a %b %c %d",
    "n=%a:s64 n8=%a:s8 u16=%a:u16 x32=%a:x32",
    "t=+0(%b):string u=+0(%b):ustring",
    "name=+0(+0(%c)):string next=+0(+0(+24(%c))):string",
    "bits=+16(%c):b4@4/32 b8=+16(%c):b8@8/32 whole=+16(%c):x32",
    "bytes=+20(%c):char[4] hex=+20(%c):x8[4] pair=+20(%c):u16[2]",
    "names=+0(+8(%c)):string[3]",
    "c=$comm top=$stack0:x64 sp=$stack",
    "imm=\\42 neg=\\-3:s32",
    "magic=@+0:x32",
    "s=+0(\\1):string s2=+0(+0(\\1)):string",
    "d=%d:s8 ch=%d:char",
    "same=%a same2=%a:u8",
    "ip=%ip:x64",
    "far=+0(+0(+24(+24(%c)))):string",
];

fn in_registers(args: &str) -> String {
    let names = if cfg!(target_arch = "aarch64") {
        ["x0", "x1", "x2", "x3", "pc"]
    } else {
        ["di", "si", "dx", "cx", "ip"]
    };
    let mut text = args.replace("%ip", &format!("%{}", names[4]));
    for (letter, name) in ["%a", "%b", "%c", "%d"].iter().zip(names) {
        text = text.replace(&format!("{letter} "), &format!("%{name} "));
        text = text.replace(&format!("{letter})"), &format!("%{name})"));
        text = text.replace(&format!("{letter}:"), &format!("%{name}:"));
        if let Some(rest) = text.strip_suffix(letter) {
            text = format!("{rest}%{name}");
        }
    }
    text
}

#[test]
fn uprobes_leave_the_kernels_texts() {
    if !host::root_or_skip() {
        return;
    }
    let run = || -> Result<()> {
        let pair = Pair::start("uprobe")?;
        ensure!(pair.kernel_has("uprobe_events"), "the kernel has no uprobe_events");
        let (target, group) = (target()?, pair.group());
        let mut lines = 0;
        for (number, args) in ARGS.iter().enumerate() {
            let args = in_registers(args);
            for (letter, args) in [("p", args.clone()), ("r", format!("{args} $retval"))] {
                // Registers may hold anything by then, and the kernel waits for pages that are not there yet.
                if letter == "r" && args.contains("(%") {
                    continue;
                }
                let event = format!("{letter}{number}");
                let line = format!("{letter}:{group}/{event} {target} {args}");
                let answers = pair.define(Case { file: "uprobe_events", line: &line });
                if answers.0.is_err() {
                    // An older kernel may not know a type yet.
                    eprintln!("{line}: {answers:?}");
                    continue;
                }
                ensure!(answers.0 == answers.1, "{line}: {answers:?}");
                let (kernel, ours) = pair.formats(&event)?;
                ensure!(kernel == ours, "{line}\n{kernel}\n{ours}");
                let (kernel, ours) = pair.hits(&event, None, true, hit)?;
                ensure!(kernel == ours, "{line}\n{}\n---\n{}", kernel.join("\n"), ours.join("\n"));
                ensure!(kernel.len() == 5, "{line}: {kernel:?}");
                lines += kernel.len();
            }
        }
        ensure!(lines >= 80, "{lines} lines");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn filters_of_uprobes_let_the_same_hits_pass() {
    if !host::root_or_skip() {
        return;
    }
    let run = || -> Result<()> {
        let pair = Pair::start("uprobe-filter")?;
        let args =
            in_registers("n=%a:s64 t=+0(%b):string d=%d:s8 names=+0(+8(%c)):string[3] bytes=+20(%c):x8[4]");
        let line = format!("p:{}/f {} {args}", pair.group(), target()?);
        let answers = pair.define(Case { file: "uprobe_events", line: &line });
        ensure!(answers == (Ok(()), Ok(())), "{answers:?}");
        let mut passed = Vec::new();
        for filter in [
            "n == 7",
            "n < 0 || n > 1000",
            "t == \"some text\"",
            "t ~ \"*text\" && n != 0",
            "t ~ \"some*\" && d < 0",
            "!(n & 1)",
            "d == 7 && common_pid != 0",
            "t == \"none\"",
            "__probe_ip == 0",
        ] {
            let (kernel, ours) = pair.hits("f", Some(filter), true, hit)?;
            ensure!(kernel == ours, "{filter}\n{}\n---\n{}", kernel.join("\n"), ours.join("\n"));
            passed.push(kernel.len());
        }
        ensure!(passed == [1, 2, 4, 3, 1, 2, 1, 0, 0], "{passed:?}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn events_come_and_go_as_the_kernels() {
    if !host::root_or_skip() {
        return;
    }
    let run = || -> Result<()> {
        let pair = Pair::start("uprobe-life")?;
        let (target, group) = (target()?, pair.group());
        let same = |line: &str| -> Result<Result<(), i32>> {
            let answers = pair.define(Case { file: "uprobe_events", line });
            ensure!(answers.0 == answers.1, "{line}: {answers:?}");
            let (kernel, ours) = pair.listings("uprobe_events")?;
            ensure!(kernel == ours, "{line}\n{kernel}\n{ours}");
            let there = |dir: &std::path::Path| dir.join(format!("events/{group}/life")).exists();
            ensure!(there(pair.kernel()) == there(pair.mirror()), "{line}");
            Ok(answers.0)
        };
        let busy = rustix::io::Errno::BUSY.raw_os_error();
        ensure!(same(&format!("p:{group}/life {target} a=$comm"))?.is_ok());
        ensure!(same(&format!("p:{group}/life {target} a=$comm"))?.is_err(), "the same twice");
        ensure!(same(&format!("p:{group}/life {target} a=$stack"))?.is_err(), "another type");
        ensure!(same(&format!("r:{group}/life {target} a=$comm"))?.is_err(), "another kind");
        pair.enable("life", true)?;
        ensure!(same(&format!("-:{group}/life"))? == Err(busy), "it is on");
        hit();
        pair.enable("life", false)?;
        ensure!(same(&format!("-:{group}/other"))?.is_err(), "there is none");
        ensure!(text(pair.mirror(), "trace")?.contains(": life: "), "nothing was recorded");
        ensure!(same(&format!("-:{group}/life"))?.is_ok());
        ensure!(!text(pair.mirror(), "trace")?.contains(": life: "), "records of no event");
        // A directory that went is there again.
        ensure!(same(&format!("p:{group}/life {target} b=$comm"))?.is_ok());
        let format = text(pair.mirror(), &format!("events/{group}/life/format"))?;
        ensure!(format.contains("field:__data_loc char[] b;"), "{format}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn profiles_count_hits() {
    if !host::root_or_skip() {
        return;
    }
    let run = || -> Result<()> {
        let pair = Pair::start("uprobe-profile")?;
        let target = place(tracer_test_counted as *const () as u64)?;
        for letter in ["p", "r"] {
            let line = format!("{letter}:{}/{letter}count {target}", pair.group());
            let answers = pair.define(Case { file: "uprobe_events", line: &line });
            ensure!(answers == (Ok(()), Ok(())), "{answers:?}");
        }
        let own = |text: String| -> Vec<String> {
            text.lines().filter(|line| line.contains("count ")).map(str::to_owned).collect()
        };
        for (event, times) in [("pcount", 7), ("rcount", 3), ("pcount", 2)] {
            pair.hits(event, None, true, || {
                (0..times).for_each(|n| {
                    black_box(tracer_test_counted(n));
                });
            })?;
        }
        let (kernel, ours) = pair.read("uprobe_profile")?;
        ensure!(own(kernel.clone()) == own(ours.clone()), "{kernel}\n{ours}");
        ensure!(ours.contains(" 9\n") && ours.contains(" 3\n"), "{ours}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

/// A tracepoint's probe says what the trace event says, line by line.
#[test]
fn a_tracepoints_probe_agrees_with_its_event() {
    if !host::root_or_skip() {
        return;
    }
    let run = || -> Result<()> {
        let definition = "t:tracer_test/switch sched_switch pc=prev->comm:string pp=prev->pid pr=prev->prio:s32 \
                          nc=next->comm:string np=next->pid nr=next->prio:s32 st=next->start_time";
        let outcome = Tracer::new([
            "record",
            "-q",
            "--no-irq-info",
            "--pid",
            &std::process::id().to_string(),
            "-p",
            definition,
            "-e",
            "sched:sched_switch",
        ])?
        .start()?;
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let text = String::from_utf8_lossy(&outcome.stop()?.stdout).into_owned();
        let lines = |mark: &str| -> Vec<String> {
            text.lines().filter_map(|line| Some(line.split_once(mark)?.1.to_owned())).collect()
        };
        let value = |line: &str, key: &str, ends: &[&str]| -> Option<String> {
            let rest = line.split_once(&format!("{key}="))?.1;
            let end = ends.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
            Some(rest[..end].trim_matches('"').to_owned())
        };
        let probes = lines(": switch: ");
        // The event is also about who is switched to.
        let is_ours = |line: &String| {
            let pid = value(line, "prev_pid", &[" "]);
            pid.is_some_and(|pid| probes.iter().any(|probe| probe.contains(&format!(" pp={pid} "))))
        };
        let events: Vec<String> = lines(": sched_switch: ").into_iter().filter(is_ours).collect();
        ensure!(events.len() >= 20, "{text}");
        ensure!(events.len() == probes.len(), "{} and {}", events.len(), probes.len());
        for (event, probe) in events.iter().zip(&probes) {
            // The stub that the kernel probes; before it had one (6.7), the function that calls the probes.
            let places = ["(__probestub_sched_switch+0x", "(__traceiter_sched_switch+0x"];
            ensure!(places.iter().any(|place| probe.starts_with(place)), "{probe}");
            for (theirs, ours) in [
                ("prev_comm", "pc"),
                ("prev_pid", "pp"),
                ("prev_prio", "pr"),
                ("next_comm", "nc"),
                ("next_pid", "np"),
                ("next_prio", "nr"),
            ] {
                let ends = [" prev_", " next_", " ==>"];
                let a = value(event, theirs, &ends).context("a field")?;
                let b = value(probe, ours, &[" pp=", " pr=", " nc=", " np=", " nr=", " st="])
                    .context("an argument")?;
                ensure!(a == b, "{theirs}\n{event}\n{probe}");
            }
        }
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}

/// What cannot be is said with a caret; what the kernel does not let be used is named.
#[test]
fn refusals_can_be_acted_on() {
    if !host::root_or_skip() {
        return;
    }
    let said = |definition: &str| -> Result<String> {
        let outcome = Tracer::new(["record", "-p", definition, "--for", "10ms"])?.run()?;
        ensure!(!outcome.status.success(), "{definition}");
        Ok(outcome.stderr)
    };
    let run = || -> Result<()> {
        let text = said("t sched_swich $arg*")?;
        ensure!(text.contains("did you mean `sched_switch`?"), "{text}");
        let text = said("p:x /bin/sh:0x10 a=%nothing")?;
        ensure!(text.contains("a=%nothing") && text.contains('^'), "{text}");
        let text = said("t sched_switch next_pid=next->nothing")?;
        ensure!(text.contains('^'), "{text}");
        let text = said("t sched_switch p=next->pid if q == 1")?;
        ensure!(text.contains("q == 1"), "{text}");
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{error:#}"));
}
