//! Threads that preempt one another inside a hit. Programs at raw tracepoints may be preempted from 7.0 on, those at
//! functions and at uprobes on every kernel that preempts. Each record is whole, and each hit is recorded or counted.

use std::hint::black_box;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{Advice, fadvise};
use tracer_tests::host;
use tracer_tests::load::Preempting;
use tracer_tests::mirror::{Mounted, missed, set, stat, text, write};
use tracer_tests::probes::place;

/// A probed function that only this test calls.
#[inline(never)]
extern "C" fn tracer_test_preempted(offset: u64, length: u64) -> u64 {
    black_box(offset ^ length)
}

/// The two numbers of a thread's call: the thread with the call's number, and a checksum of them.
fn numbers(thread: usize, call: u64) -> [u64; 2] {
    let first = (thread as u64 + 1) << 40 | call;
    [first, first.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 | 1]
}

/// An event that is hit once in every call, and how its lines show the call's numbers.
struct Case {
    what: &'static str,
    /// File and line of a definition.
    define: Option<(&'static str, String)>,
    /// The feature of `tracer doctor` that the definition needs.
    needs: &'static str,
    /// Directory of the event in `events`.
    event: &'static str,
    /// Whether a histogram of the system call makes the event.
    is_made: bool,
    /// The text before each number; without, the lines show none.
    before: Option<[&'static str; 2]>,
    /// Base of numbers without `0x`.
    radix: u32,
}

/// The event of all system calls.
const RAW: &str = "raw_syscalls/sys_enter";
/// The function of the system call, after its prefix. On arm64 it has another name.
const FUNCTION: &str = if cfg!(target_arch = "aarch64") { "fadvise64_64" } else { "fadvise64" };
/// The entry of the system call.
const CALL: &str = if cfg!(target_arch = "aarch64") {
    "syscalls/sys_enter_fadvise64_64"
} else {
    "syscalls/sys_enter_fadvise64"
};
/// Its exit.
const EXIT: &str = if cfg!(target_arch = "aarch64") {
    "syscalls/sys_exit_fadvise64_64"
} else {
    "syscalls/sys_exit_fadvise64"
};

fn cases() -> Result<Vec<Case>> {
    let (prefix, first, second) =
        if cfg!(target_arch = "aarch64") { ("arm64", 8, 16) } else { ("x64", 104, 96) };
    let function = format!("__{prefix}_sys_{FUNCTION}");
    let fetch = format!("first=+{first}($arg1):x64 second=+{second}($arg1):x64");
    let user = place(tracer_test_preempted as *const () as u64)?;
    let arguments = if cfg!(target_arch = "aarch64") { ["%x0", "%x1"] } else { ["%di", "%si"] };
    let named = Some(["first=", "second="]);
    let plain = |what, event, before| Case {
        what,
        define: None,
        needs: "bpf",
        event,
        is_made: false,
        before,
        radix: 10,
    };
    let defined = |what, needs, file, line: String, event, before| Case {
        define: Some((file, line)),
        needs,
        ..plain(what, event, before)
    };
    let kprobe =
        |what, line, event, before| defined(what, "perf_kprobe", "kprobe_events", line, event, before);
    let fprobe =
        |what, line, event, before| defined(what, "fentry_attach", "dynamic_events", line, event, before);
    let registers = format!("first={}:x64 second={}:x64", arguments[0], arguments[1]);
    Ok(vec![
        Case { radix: 16, ..plain("raw tracepoint", RAW, Some([", ", ", "])) },
        Case { radix: 16, ..plain("system call", CALL, Some(["offset: ", "len: "])) },
        plain("its exit", EXIT, None),
        Case {
            is_made: true,
            ..defined(
                "synthetic event",
                "bpf",
                "synthetic_events",
                "preempted_made u64 first; u64 second".to_owned(),
                "synthetic/preempted_made",
                named,
            )
        },
        kprobe("kprobe", format!("p:preempted/kprobe {function} {fetch}"), "preempted/kprobe", named),
        kprobe(
            "kretprobe",
            format!("r:preempted/kretprobe {function} ret=$retval"),
            "preempted/kretprobe",
            None,
        ),
        fprobe("fprobe", format!("f:preempted/fprobe {function} {fetch}"), "preempted/fprobe", named),
        fprobe(
            "its return",
            format!("f:preempted/fexit {function}%return ret=$retval"),
            "preempted/fexit",
            None,
        ),
        defined(
            "uprobe",
            "perf_uprobe",
            "uprobe_events",
            format!("p:preempted/uprobe {user} {registers}"),
            "preempted/uprobe",
            named,
        ),
    ])
}

/// The number after `before` in a text, and the text after it.
fn number<'a>(text: &'a str, before: &str, radix: u32) -> Option<(u64, &'a str)> {
    let rest = text.split_once(before)?.1.trim_start();
    let (rest, radix) = rest.strip_prefix("0x").map_or((rest, radix), |rest| (rest, 16));
    let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
    Some((u64::from_str_radix(&rest[..end], radix).ok()?, &rest[end..]))
}

/// The thread of a line and the rest: `comm-PID [cpu] flags time: event: fields`.
fn parts(line: &str) -> Option<(i32, &str)> {
    let (head, body) = line.split_once(": ")?;
    let (task, _) = head.split_once(" [")?;
    Some((task.trim_end().rsplit_once('-')?.1.parse().ok()?, body))
}

/// Checks each record of a case. Returns the number of each thread's.
fn records(case: &Case, trace: &str, pids: [i32; 2]) -> Result<[u64; 2]> {
    let (mut seen, mut last) = ([0; 2], [None; 2]);
    for line in trace.lines().filter(|line| !line.starts_with('#')) {
        let (pid, body) = parts(line).with_context(|| line.to_owned())?;
        let thread = pids.iter().position(|known| *known == pid);
        let thread = thread.with_context(|| format!("another thread: {line}"))?;
        seen[thread] += 1;
        let Some([before, then]) = case.before else { continue };
        let (first, rest) = number(body, before, case.radix).with_context(|| line.to_owned())?;
        let (second, _) = number(rest, then, case.radix).with_context(|| line.to_owned())?;
        let call = first & ((1 << 40) - 1);
        ensure!([first, second] == numbers(thread, call), "a torn record: {line}");
        ensure!(last[thread].is_none_or(|last| last < call), "{call} after {:?}: {line}", last[thread]);
        last[thread] = Some(call);
    }
    Ok(seen)
}

/// What became of a case's hits.
#[derive(Debug)]
struct Outcome {
    calls: [u64; 2],
    recorded: [u64; 2],
    dropped: u64,
    missed: u64,
}

impl Outcome {
    fn check(&self, what: &str) -> Result<()> {
        println!("{what}: {self:?}");
        let calls: u64 = self.calls.iter().sum();
        let known = self.recorded.iter().sum::<u64>() + self.dropped;
        for (calls, recorded) in self.calls.iter().zip(self.recorded) {
            ensure!(recorded <= *calls, "{what}: more records than calls: {self:?}");
        }
        ensure!(known + self.missed >= calls, "{what}: hits are lost and not counted: {self:?}");
        Ok(())
    }
}

/// Wake-ups of the thread that preempts the other, for each event.
fn wakes() -> u64 {
    let set = std::env::var("TRACER_PREEMPTIONS").ok().and_then(|wakes| wakes.parse().ok());
    set.unwrap_or(u64::from(host::share(2000)))
}

/// Threads that preempt one another in system calls and in the probed function.
fn threads() -> Result<Preempting> {
    let (pipe, writer) = std::io::pipe()?;
    let pipe = Arc::new((pipe, writer));
    Preempting::new(host::last_cpu()?, wakes(), move |thread, call| {
        let [first, second] = numbers(thread, call);
        let answer = fadvise(&pipe.0, first, NonZeroU64::new(second), Advice::Normal);
        assert_eq!(answer, Err(rustix::io::Errno::SPIPE));
        black_box(tracer_test_preempted(first, second));
    })
}

/// The hit counts of both threads in a histogram by thread.
fn counted(hist: &str, pids: [i32; 2]) -> Result<[u64; 2]> {
    let of = |pid: i32| {
        let line =
            hist.lines().find(|line| number(line, "common_pid:", 10).is_some_and(|(of, _)| of == pid as u64));
        let count = line.and_then(|line| number(line, "hitcount:", 10));
        Ok::<_, anyhow::Error>(count.with_context(|| format!("{pid}: {hist}"))?.0)
    };
    Ok([of(pids[0])?, of(pids[1])?])
}

fn run(case: &Case, root: &Path, dir: &Path) -> Result<()> {
    if let Some((file, line)) = &case.define {
        let answer = write(root, file, format!("{line}\n").as_bytes(), true);
        ensure!(answer.is_ok(), "{line}: {answer:?}: {}", text(root, "error_log")?);
    }
    let threads = threads()?;
    let pids = threads.pids();
    set(dir, "set_event_pid", &format!("{} {}", pids[0], pids[1]))?;
    set(dir, "trace", "")?;
    let event = |file: &str| format!("events/{}/{file}", case.event);
    let trigger = format!("events/{CALL}/trigger");
    let made = "hist:keys=common_pid:a=offset:b=len:onchange($a).trace(preempted_made,$a,$b)";
    if case.is_made {
        set(dir, &trigger, made)?;
    }
    if case.event == RAW {
        set(dir, &event("filter"), &format!("id == {}", libc::SYS_fadvise64))?;
    }
    set(dir, &event("enable"), "1")?;
    let before = missed(dir)?;
    let calls = threads.run()?;
    let counts =
        if case.is_made { Some(counted(&text(dir, &format!("events/{CALL}/hist"))?, pids)?) } else { None };
    let missed = missed(dir)? - before;
    set(dir, &event("enable"), "0")?;
    if case.is_made {
        set(dir, &trigger, &format!("!{made}"))?;
    }
    let dropped = stat(dir, "dropped events")?;
    let recorded = records(case, &text(dir, "trace")?, pids)?;
    Outcome { calls, recorded, dropped, missed }.check(case.what)?;
    if let Some(counts) = counts {
        Outcome { calls, recorded: counts, dropped: 0, missed }.check("its histogram")?;
    }
    Ok(())
}

#[test]
fn threads_that_preempt_one_another_lose_and_tear_nothing() {
    host::as_root(|| {
        let mounted = Mounted::start("preempted")?;
        let dir = mounted.instance("preempted")?;
        set(&dir, "buffer_size_kb", "65536")?;
        set(&dir, "options/overwrite", "0")?;
        for case in cases()? {
            if host::offers(case.needs) {
                run(&case, mounted.dir(), &dir)?;
            } else {
                host::skip(case.needs, case.what);
            }
        }
        Ok(())
    });
}
