//! The command line: help, list, explain, doctor, errors with carets, exit codes, every way to end, and the removal
//! of all objects from the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tracer_tests::host::{self, Tracefs};
use tracer_tests::tracer::{Outcome, Tracer};
use tracer_tests::workload::Job;

/// Returns from a test that needs root if this process is not root.
macro_rules! needs_root {
    () => {
        if !host::root_or_skip() {
            return;
        }
    };
}

fn tracer(arguments: &[&str]) -> Outcome {
    Tracer::new(arguments).unwrap().run().unwrap()
}

/// A `tracer record` of one event, restricted to a waiting workload.
fn record_of(job: &Job, event: &str, filter: Option<&str>) -> Tracer {
    Tracer::record().unwrap().event(event, filter).args(["--pid", &job.pid().to_string()])
}

#[test]
fn help_has_examples() {
    let top = tracer(&["--help"]);
    assert!(top.status.success());
    for verb in ["record", "list", "explain", "doctor"] {
        assert!(top.text().contains(verb), "no {verb} in:\n{}", top.text());
        let help = tracer(&[verb, "--help"]);
        assert!(help.status.success(), "{verb} --help: {}", help.status);
        assert!(
            help.text().contains(&format!("tracer {verb} ")),
            "no example of {verb} in:\n{}",
            help.text()
        );
    }
    let record = tracer(&["record", "--help"]).text();
    for option in ["-e", "--pid", "--comm", "--for", "-o", "--json"] {
        assert!(record.contains(option), "no {option} in:\n{record}");
    }
}

#[test]
fn a_wrong_command_line_is_refused() {
    for arguments in [&["nonsense"][..], &["record", "--nonsense"], &["explain"]] {
        let outcome = tracer(arguments);
        assert_eq!(outcome.status.code(), Some(2), "{arguments:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.is_empty());
    }
}

#[test]
fn list_names_the_kernels_events() {
    needs_root!();
    let known = Tracefs::find_or_mount().unwrap().events().unwrap();
    let listed: Vec<String> =
        tracer(&["list"]).success().unwrap().text().lines().map(str::to_owned).collect();
    assert_eq!(listed.iter().collect::<BTreeSet<_>>(), known.iter().collect::<BTreeSet<_>>());
    let sched: Vec<_> = known.iter().filter(|event| event.starts_with("sched:sched_wak")).collect();
    let listed = tracer(&["list", "sched:sched_wak*"]).success().unwrap().text();
    assert_eq!(listed.lines().collect::<BTreeSet<_>>(), sched.iter().map(|s| s.as_str()).collect());
    let format = tracer(&["list", "-l", "sched:sched_switch"]).success().unwrap().text();
    for part in ["prev_comm", "next_prio", "print fmt"] {
        assert!(format.contains(part), "no {part} in:\n{format}");
    }
}

#[test]
fn explain_shows_every_stage() {
    needs_root!();
    let filter = "prev_comm ~ \"ba*\" || next_prio < 100";
    let text = tracer(&["explain", "sched:sched_switch", filter]).success().unwrap().text();
    for part in ["prev_comm", "next_prio", "100", "exit"] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    assert!(text.lines().count() > 20, "too short for tokens, tree, plan and listing:\n{text}");
}

#[test]
fn doctor_reports_features_and_reasons() {
    needs_root!();
    let text = tracer(&["doctor"]).success().unwrap().text();
    for part in ["tracefs", "BTF", "ring"] {
        assert!(text.to_lowercase().contains(&part.to_lowercase()), "nothing about {part} in:\n{text}");
    }
    assert!(text.lines().count() > 8, "short:\n{text}");
}

#[test]
fn an_error_has_a_caret_and_a_suggestion() {
    needs_root!();
    let outcome = tracer(&["explain", "sched:sched_switch", "prev_pid == 1 && next_pri < 3"]);
    assert!(!outcome.status.success());
    assert!(outcome.stderr.contains("Field not found"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("next_prio"), "no suggestion: {}", outcome.stderr);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let caret = lines
        .iter()
        .position(|line| line.trim_matches([' ', '|', '~', '^', '-']).is_empty() && line.contains('^'));
    let caret = caret.unwrap_or_else(|| panic!("no caret: {}", outcome.stderr));
    let column = lines[caret].find('^').unwrap();
    let shown = lines[..caret].iter().rev().find(|line| line.contains("next_pri")).unwrap();
    let field = shown.find("next_pri").unwrap();
    assert!(
        (field..field + "next_pri".len()).contains(&column),
        "caret beside the field: {}",
        outcome.stderr
    );

    let unknown = tracer(&["record", "-e", "sched:sched_swich", "--for", "1s"]);
    assert!(!unknown.status.success());
    assert!(unknown.stderr.contains("sched_switch"), "no suggestion: {}", unknown.stderr);
}

#[test]
fn an_interrupt_ends_cleanly_with_counts() {
    needs_root!();
    for signal in [Signal::INT, Signal::TERM] {
        let job = Job::start(&["syscalls"], 3).unwrap();
        let running = record_of(&job, "syscalls:sys_enter_getppid", None).start().unwrap();
        job.go().unwrap();
        running.signal(signal).unwrap();
        let outcome = running.wait().unwrap().success().unwrap();
        let counts = outcome.counts();
        let count = counts["syscalls:sys_enter_getppid"];
        assert_eq!(
            (count.hits, count.filtered, count.recorded, count.dropped),
            (3, 0, 3, 0),
            "{}",
            outcome.stderr
        );
        assert_eq!(counts["total"], count);
        assert_eq!(outcome.trace().lines.len(), 3, "{}", outcome.text());
    }
}

#[test]
fn the_header_is_the_kernels() {
    needs_root!();
    let job = Job::start(&["syscalls"], 1).unwrap();
    let running = record_of(&job, "syscalls:sys_enter_getppid", None).start().unwrap();
    job.go().unwrap();
    let ours = running.stop().unwrap().success().unwrap().trace().header;
    let kernel = tracer_tests::oracle::Oracle::create("header").unwrap().trace().unwrap().header;
    // One header line has the counts of entries, which a stream cannot know in advance.
    let fixed = |lines: &[String]| -> Vec<String> {
        lines.iter().filter(|line| !line.contains("entries-in-buffer")).cloned().collect()
    };
    assert_eq!(fixed(&ours), fixed(&kernel));
}

#[test]
fn a_duration_ends_it() {
    needs_root!();
    let job = Job::start(&["syscalls"], 1).unwrap();
    let start = Instant::now();
    let outcome = record_of(&job, "sched:sched_switch", None).args(["--for", "700ms"]).run().unwrap();
    let took = start.elapsed();
    assert!(outcome.success().unwrap().counts().contains_key("total"));
    assert!((Duration::from_millis(700)..Duration::from_secs(30)).contains(&took), "took {took:?}");
}

#[test]
fn output_is_written_to_a_file() {
    needs_root!();
    let path = std::env::temp_dir().join(format!("tracer-cli-{}", std::process::id()));
    let job = Job::start(&["syscalls"], 2).unwrap();
    let running = record_of(&job, "syscalls:sys_enter_getppid", None).args(["-o".as_ref(), path.as_os_str()]);
    let running = running.start().unwrap();
    job.go().unwrap();
    let outcome = running.stop().unwrap().success().unwrap();
    let written = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(tracer_tests::oracle::Trace::parse(&written).lines.len(), 2);
    assert!(outcome.stdout.is_empty(), "{}", outcome.text());
}

#[test]
fn json_lines_are_json() {
    needs_root!();
    let job = Job::start(&["values"], 1).unwrap();
    let pid = job.pid();
    let running = record_of(&job, "syscalls:sys_enter_lseek", Some("offset == 7")).args(["--json"]);
    let running = running.event("task:task_rename", None).start().unwrap();
    job.go().unwrap();
    let outcome = running.stop().unwrap().success().unwrap();
    let values = outcome.json().unwrap();
    assert_eq!(values.len(), 40 + 11, "{}", outcome.text());
    let text = outcome.text();
    assert!(values.iter().all(serde_json::Value::is_object), "{text}");
    assert!(text.lines().all(|line| line.contains(&pid.to_string())), "{text}");
    assert!(text.contains("fifteen letters"), "{text}");
}

#[test]
fn a_switch_filter_prints_the_right_lines() {
    needs_root!();
    let filter = "prev_comm ~ \"ba*\" || next_prio < 100";
    let running = Tracer::record().unwrap().event("sched:sched_switch", Some(filter)).start().unwrap();
    // Each read waits for input that does not come.
    let mut bash = Command::new("bash")
        .args(["-c", "for turn in {1..20}; do read -t 0.01 line || true; done"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let input = bash.stdin.take();
    assert!(bash.wait().unwrap().success());
    drop(input);
    let outcome = running.stop().unwrap().success().unwrap();
    let trace = outcome.trace();
    let mut seen = 0;
    for line in &trace.lines {
        let priority: i32 = line.text.rsplit_once("next_prio=").unwrap().1.trim().parse().unwrap();
        let ba = line.text.contains("prev_comm=ba");
        assert!(ba || priority < 100, "{}", line.text);
        seen += usize::from(line.text.contains(&format!("prev_comm=bash prev_pid={} ", bash.id())));
    }
    assert!(seen >= 20, "bash was switched away from {seen} times:\n{}", outcome.text());
    let count = outcome.counts()["sched:sched_switch"];
    assert!(count.add_up() && count.filtered > 0, "{count:?}");
    assert_eq!(count.recorded, trace.lines.len() as u64);
}

#[test]
fn a_string_filter_on_a_command_prints_the_right_lines() {
    needs_root!();
    let outcome = Tracer::record()
        .unwrap()
        .event("syscalls:sys_enter_openat", Some("filename.ustring ~ \"*passwd*\""))
        .args(["--", "cat", "/etc/passwd"])
        .run()
        .unwrap()
        .success()
        .unwrap();
    let lines: Vec<String> =
        outcome.text().lines().filter(|line| line.contains("sys_openat(")).map(str::to_owned).collect();
    assert_eq!(lines.len(), 1, "{}", outcome.text());
    assert!(lines[0].trim_start().starts_with("cat-"), "{}", lines[0]);
    let count = outcome.counts()["syscalls:sys_enter_openat"];
    assert_eq!(count.recorded, 1);
    assert!(count.filtered >= 1 && count.add_up(), "cat opens libraries, too: {count:?}");
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    needs_root!();
    let begins: [&[&str]; 2] = [
        &["record", "-q", "-e", "syscalls:sys_enter_getpgid", "--"],
        &["hist", "syscalls:sys_enter_getpgid", "keys=common_pid", "--"],
    ];
    for begin in begins {
        // A shell reports the end by a signal as 128 and the signal's number.
        for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 128 + libc::SIGTERM)] {
            let arguments = begin.iter().copied().chain(["sh", "-c", script]);
            let outcome = Tracer::new(arguments).unwrap().run().unwrap();
            assert_eq!(outcome.status.code(), Some(code), "{} {script}: {}", begin[0], outcome.stderr);
        }
    }
}

#[test]
fn the_program_does_not_trace_itself() {
    needs_root!();
    let running = Tracer::record()
        .unwrap()
        .event("raw_syscalls:sys_enter", Some("COMM ~ \"tracer*\" || COMM ~ \"tokio*\""))
        .start()
        .unwrap();
    let own: BTreeSet<i32> = fs::read_dir(format!("/proc/{}/task", running.pid()))
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    assert!(!own.is_empty());
    let job = Job::start(&["syscalls"], 1).unwrap();
    let pid = job.pid() as i32;
    // The program makes system calls when it writes lines; it would record them in the next ones.
    let written = || -> u64 {
        let io = fs::read_to_string(format!("/proc/{}/io", running.pid())).unwrap();
        let bytes = io.lines().find_map(|line| line.strip_prefix("wchar: "));
        bytes.unwrap().parse().unwrap()
    };
    let before = written();
    job.go().unwrap();
    let end = Instant::now() + host::patience(Duration::from_secs(10));
    while written() == before {
        assert!(Instant::now() < end, "no lines are written");
        std::thread::sleep(Duration::from_millis(5));
    }
    let trace = running.stop().unwrap().success().unwrap().trace();
    assert!(trace.lines.iter().any(|line| line.pid == pid), "the workload was not seen either");
    let wrong: Vec<_> = trace.lines.iter().filter(|line| own.contains(&line.pid)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Ids of the BPF objects that a process holds, as `prog 12`.
fn objects(pid: u32) -> BTreeSet<(String, u32)> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        for line in text.lines() {
            if let Some((key, value)) = line.split_once(':')
                && let Some(kind @ ("prog" | "map" | "link")) = key.trim().strip_suffix("_id")
                && let Ok(id) = value.trim().parse()
            {
                found.insert((kind.to_owned(), id));
            }
        }
    }
    found
}

/// The objects that still exist in the kernel.
fn alive(objects: &BTreeSet<(String, u32)>) -> Vec<&(String, u32)> {
    let there = |(kind, id): &&(String, u32)| {
        let mut command = Command::new("bpftool");
        let output = command.args([kind.as_str(), "show", "id", &id.to_string()]).output().unwrap();
        output.status.success()
    };
    objects.iter().filter(there).collect()
}

#[test]
fn a_killed_recording_leaves_nothing() {
    needs_root!();
    if Command::new("bpftool").arg("version").output().is_err() {
        host::skip("bpftool", "no bpftool");
        return;
    }
    let job = Job::start(&["syscalls"], 1).unwrap();
    let running = record_of(&job, "syscalls:sys_enter_getppid", None)
        .event("sched:sched_switch", Some("prev_prio > 1"))
        .start()
        .unwrap();
    let held = objects(running.pid());
    assert!(held.iter().any(|(kind, _)| kind == "prog"), "no program held: {held:?}");
    assert!(held.iter().any(|(kind, _)| kind == "map"), "no map held: {held:?}");
    assert!(!alive(&held).is_empty(), "bpftool knows none of {held:?}");
    running.signal(Signal::KILL).unwrap();
    assert!(!running.wait().unwrap().status.success());
    // An object is freed with its last reference, a grace period after the process.
    let deadline = Instant::now() + Duration::from_secs(20);
    while !alive(&held).is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(alive(&held).is_empty(), "left behind: {:?}", alive(&held));
}
