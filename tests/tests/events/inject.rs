//! `inject` files: a write creates a record of any event. Kernels are rarely built with them
//! (`CONFIG_TRACE_EVENT_INJECT`), so the expected results follow `kernel/trace/trace_events_inject.c`.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rustix::io::Errno;
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, bodies, read, set, stacks, text, write};

const STOP: &str = "events/sched/sched_kthread_stop";

/// A mirror and one of its instances.
fn instance(purpose: &str) -> Result<Option<(Mounted, PathBuf)>> {
    if !host::root_or_skip() {
        return Ok(None);
    }
    let mounted = Mounted::start(purpose)?;
    let dir = mounted.instance("one")?;
    Ok(Some((mounted, dir)))
}

fn inject(dir: &Path, event: &str, text: &str) -> Result<(), i32> {
    write(dir, &format!("{event}/inject"), text.as_bytes(), true)
}

/// The records since the last call.
fn traced(dir: &Path) -> Result<Vec<String>> {
    let lines = bodies(&text(dir, "trace")?);
    set(dir, "trace", "")?;
    Ok(lines)
}

#[test]
fn injected_records_look_like_the_events() {
    let run = || -> Result<()> {
        let Some((_mounted, dir)) = instance("inject-records")? else { return Ok(()) };
        let none = |errno: Errno| Err(errno.raw_os_error());
        for (event, text, answer) in [
            (STOP, "comm='hello' pid=7\n", Ok(())),
            ("events/sched/sched_wakeup_new", "pid = -1\tcomm=\"longer than sixteen\"", Ok(())),
            (STOP, "\n", Ok(())),
            (STOP, "nothing=1", none(Errno::NOENT)),
            (STOP, "pid='1'", none(Errno::INVAL)),
            (STOP, "pid=99999999999999999999", none(Errno::RANGE)),
            (STOP, &"x".repeat(4096), none(Errno::INVAL)),
            ("events/sched/sched_process_exec", "filename='/bin/\"x\"' old_pid=3 pid=4", Ok(())),
            ("events/sched/sched_process_exec", "pid=4", Ok(())),
            ("events/rcu/rcu_utilization", "s='Start'", Ok(())),
            ("events/rcu/rcu_utilization", "", Ok(())),
        ] {
            if text.is_empty() {
                // The kernel does not pass an empty write to the file.
                inject(&dir, event, " ").map_err(std::io::Error::from_raw_os_error)?;
                continue;
            }
            let got = inject(&dir, event, text);
            ensure!(got == answer, "{event} {text}: {got:?}");
        }
        ensure!(read(&dir, &format!("{STOP}/inject")) == Err(Errno::PERM.raw_os_error()), "it reads");
        let whole = text(&dir, "trace")?;
        let name = std::fs::read_to_string("/proc/thread-self/comm")?;
        let who = format!("{}-{} ", name.trim_end(), rustix::thread::gettid().as_raw_nonzero());
        ensure!(whole.lines().filter(|line| line.trim_start().starts_with(&who)).count() == 7, "{whole}");
        let wanted = [
            "sched_kthread_stop: comm=hello pid=7",
            "sched_wakeup_new: comm=longer than six pid=-1 prio=0 target_cpu=000",
            "sched_kthread_stop: comm= pid=0",
            "sched_process_exec: filename=/bin/\"x\" pid=4 old_pid=3",
            "sched_process_exec: filename= pid=4 old_pid=0",
            "rcu_utilization: STATIC STRING CAN NOT BE INJECTED",
            "rcu_utilization: ",
        ];
        ensure!(traced(&dir)? == wanted, "{whole}");
        Ok(())
    };
    run().unwrap();
}

#[test]
fn injected_records_pass_filter_triggers_and_switches() {
    let run = || -> Result<()> {
        let Some((_mounted, dir)) = instance("inject-filter")? else { return Ok(()) };
        let all = |dir: &Path| -> Result<Vec<String>> {
            for pid in 1..=3 {
                let done = inject(dir, STOP, &format!("pid={pid}"));
                done.map_err(std::io::Error::from_raw_os_error)?;
            }
            traced(dir)
        };
        let lines = |pids: &[u32]| -> Vec<String> {
            pids.iter().map(|pid| format!("sched_kthread_stop: comm= pid={pid}")).collect()
        };
        // Other threads also hit the event once it is enabled.
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        set(&dir, "set_event_pid", &own)?;
        ensure!(all(&dir)? == lines(&[1, 2, 3]), "off, and taken all the same");
        set(&dir, &format!("{STOP}/filter"), "pid > 1")?;
        ensure!(all(&dir)? == lines(&[2, 3]), "the filter of an event that is off");
        set(&dir, &format!("{STOP}/enable"), "1")?;
        set(&dir, &format!("{STOP}/filter"), "pid != 2")?;
        ensure!(all(&dir)? == lines(&[1, 3]), "the filter of one that is on");
        set(&dir, &format!("{STOP}/filter"), "0")?;
        set(&dir, "tracing_on", "0")?;
        ensure!(all(&dir)?.is_empty(), "nothing is recorded");
        set(&dir, "tracing_on", "1")?;
        set(&dir, &format!("{STOP}/trigger"), "traceoff if pid == 2")?;
        ensure!(all(&dir)? == lines(&[1, 2]), "the trigger stops behind its record");
        ensure!(text(&dir, "tracing_on")? == "0\n", "it is on");
        set(&dir, "tracing_on", "1")?;
        set(&dir, &format!("{STOP}/trigger"), "!traceoff")?;

        // A trigger that needs no record does not run, because no hook is hit.
        let aimed = "events/sched/sched_process_exec/enable";
        set(&dir, &format!("{STOP}/trigger"), "enable_event:sched:sched_process_exec")?;
        ensure!(all(&dir)? == lines(&[1, 2, 3]), "all");
        ensure!(text(&dir, aimed)? == "0*\n", "{}", text(&dir, aimed)?);
        // It runs if another trigger needs the record.
        set(&dir, &format!("{STOP}/trigger"), "stacktrace if pid == 3")?;
        ensure!(inject(&dir, STOP, "pid=3").is_ok(), "refused");
        ensure!(text(&dir, aimed)? == "1*\n", "{}", text(&dir, aimed)?);
        let whole = text(&dir, "trace")?;
        ensure!(stacks(&whole).len() == 1, "{whole}");
        for trigger in ["!stacktrace if pid == 3", "!enable_event:sched:sched_process_exec"] {
            set(&dir, &format!("{STOP}/trigger"), trigger)?;
        }
        // As in the kernel, an event that a trigger enabled stays enabled.
        ensure!(text(&dir, aimed)? == "1\n", "{}", text(&dir, aimed)?);
        set(&dir, aimed, "0")?;
        // Disables the event while the list of threads changes.
        set(&dir, &format!("{STOP}/enable"), "0")?;
        set(&dir, "trace", "")?;

        set(&dir, "set_event_pid", "1")?;
        let found = all(&dir)?;
        ensure!(found.is_empty(), "another thread's: {found:?}");
        set(&dir, "set_event_pid", &own)?;
        let found = all(&dir)?;
        ensure!(found == lines(&[1, 2, 3]), "our own: {found:?}");
        Ok(())
    };
    run().unwrap();
}
