//! The event API for kprobe events, in a running mirror. The test follows
//! `kernel/trace/kprobe_event_gen_test.c`, with its definitions.

use std::fs::File;

use anyhow::{Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{Mounted, bodies, set, text};
use tracer_user::api::dynevent::MAX_DYNEVENT_CMD_LEN;
use tracer_user::api::event_file::{
    TraceArray, trace_array_set_clr_event, trace_get_event_file, trace_put_event_file,
};
use tracer_user::api::kprobe::{
    kprobe_event_add_fields, kprobe_event_cmd_init, kprobe_event_delete, kprobe_event_gen_cmd_end,
    kprobe_event_gen_cmd_start, kretprobe_event_gen_cmd_end, kretprobe_event_gen_cmd_start,
};
use tracer_user::api::{Errno, Files};

/// The first four arguments of a function, as the kernel's test has them on this architecture.
const ARGS: [&str; 4] = if cfg!(target_arch = "aarch64") {
    ["dfd=%x0", "filename=%x1", "flags=%x2", "mode=%x3"]
} else {
    ["dfd=%ax", "filename=%dx", "flags=%cx", "mode=+4($stack)"]
};

/// The kernel's test, up to the hits; `listing` returns the content of `kprobe_events`.
fn generate(files: &Files, listing: &dyn Fn() -> Result<String>) -> Result<()> {
    let mut cmd = kprobe_event_cmd_init(files, MAX_DYNEVENT_CMD_LEN);
    kprobe_event_gen_cmd_start(&mut cmd, "gen_kprobe_test", "do_sys_openat2", &ARGS[..2])?;
    kprobe_event_add_fields(&mut cmd, &ARGS[2..])?;
    kprobe_event_gen_cmd_end(&mut cmd)?;
    let mut cmd = kprobe_event_cmd_init(files, MAX_DYNEVENT_CMD_LEN);
    kretprobe_event_gen_cmd_start(&mut cmd, "gen_kretprobe_test", "do_sys_openat2", &["$retval"])?;
    kretprobe_event_gen_cmd_end(&mut cmd)?;
    let wanted = listing()?;
    let lines: Vec<&str> = wanted.lines().collect();
    ensure!(lines.len() == 2, "{wanted}");
    ensure!(lines[0] == format!("p:kprobes/gen_kprobe_test do_sys_openat2 {}", ARGS.join(" ")), "{wanted}");
    // The number after the letter is the maximum number of concurrent calls, which depends on the number of CPUs.
    let back = lines[1].trim_start_matches(|c: char| c == 'r' || c.is_ascii_digit());
    ensure!(back == ":kprobes/gen_kretprobe_test do_sys_openat2 arg1=$retval", "{wanted}");

    // A second definition of the same name with other fields is refused.
    let mut cmd = kprobe_event_cmd_init(files, MAX_DYNEVENT_CMD_LEN);
    kprobe_event_gen_cmd_start(&mut cmd, "gen_kprobe_test", "do_sys_openat2", &["nothing=%none"])?;
    ensure!(kprobe_event_gen_cmd_end(&mut cmd) == Err(Errno::INVAL), "a register that there is none of");
    ensure!(listing()? == wanted, "{}", listing()?);

    let unknown = trace_get_event_file(files, None, "kprobes", "nothing").map(drop);
    ensure!(unknown == Err(Errno::INVAL), "{unknown:?}");
    let nowhere = trace_get_event_file(files, Some("nowhere"), "kprobes", "gen_kprobe_test").map(drop);
    ensure!(nowhere == Err(Errno::NOENT), "{nowhere:?}");
    let top = TraceArray::named(files, None);
    let none = trace_array_set_clr_event(&top, Some("kprobes"), Some("nothing"), true);
    ensure!(none == Err(Errno::INVAL), "{none:?}");
    let gone = kprobe_event_delete(files, "nothing");
    ensure!(gone == Err(Errno::NOENT), "{gone:?}");
    Ok(())
}

fn has_kprobes() -> bool {
    let has =
        host::Tracefs::find_or_mount().is_ok_and(|tracefs| tracefs.root().join("kprobe_events").exists());
    if !has {
        host::skip("perf_kprobe", "the kernel has no kprobes for events");
    }
    has
}

#[test]
fn generated_kprobes_trace_calls() {
    let run = || -> Result<()> {
        if !host::root_or_skip() {
            return Ok(());
        }
        let mounted = Mounted::start("api-kprobe")?;
        let files = Files::at(mounted.dir());
        let listing = || text(mounted.dir(), "kprobe_events");
        generate(&files, &listing)?;
        if has_kprobes() {
            set(mounted.dir(), "set_event_pid", &rustix::thread::gettid().as_raw_nonzero().to_string())?;
            let events = ["gen_kprobe_test", "gen_kretprobe_test"];
            let [entry, back] = events.map(|event| trace_get_event_file(&files, None, "kprobes", event));
            let (entry, back) = (entry?, back?);
            for file in [&entry, &back] {
                let event = file.name().split_off("kprobes:".len());
                trace_array_set_clr_event(file.tr(), Some("kprobes"), Some(&event), true)?;
            }
            ensure!(kprobe_event_delete(&files, "gen_kprobe_test") == Err(Errno::BUSY), "it is on");
            drop(File::open("/dev/null")?);
            for file in [entry, back] {
                trace_array_set_clr_event(file.tr(), Some("kprobes"), None, false)?;
                trace_put_event_file(file);
            }
            let lines = bodies(&text(mounted.dir(), "trace")?);
            let starts = ["gen_kprobe_test: (do_sys_openat2+0x", "gen_kretprobe_test: ("];
            for (start, mark) in starts.into_iter().zip([" dfd=0x", " <- do_sys_openat2) arg1="]) {
                let found = lines.iter().any(|line| line.starts_with(start) && line.contains(mark));
                ensure!(found, "{start}: {lines:?}");
            }
        }
        for event in ["gen_kprobe_test", "gen_kretprobe_test"] {
            kprobe_event_delete(&files, event)?;
        }
        ensure!(listing()?.is_empty(), "{}", listing()?);
        Ok(())
    };
    run().unwrap();
}
