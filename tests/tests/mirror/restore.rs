//! State files and start options: a killed daemon leaves a state file for the next daemon; a daemon that ends
//! normally leaves none.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted, set, text};

fn place(purpose: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tracer-{purpose}-{}", std::process::id()))
}

/// The state file of the mirror at a path.
fn state_file(dir: &Path) -> PathBuf {
    let name = dir.to_str().unwrap().replace('-', "%2d").replace('/', "-").replace('.', "%2e");
    Path::new("/run/tracer/state").join(name + ".json")
}

/// Files that must be equal in both daemons.
const FILES: &[&str] = &[
    "set_event",
    "trace_options",
    "trace_clock",
    "tracing_on",
    "buffer_size_kb",
    "per_cpu/cpu0/buffer_size_kb",
    "buffer_subbuf_size_kb",
    "buffer_percent",
    "tracing_cpumask",
    "set_event_pid",
    "set_event_notrace_pid",
    "events/sched/sched_switch/filter",
    "events/sched/sched_wakeup/filter",
    "events/sched/enable",
    "events/sched/sched_process_exit/trigger",
    "events/sched/sched_process_exit/enable",
    "events/sched/sched_process_free/enable",
    "events/ftrace/print/trigger",
];

#[test]
fn settings_survive_a_kill() {
    host::as_root(|| {
        let dir = place("restore");
        let mut first = Mounted::at(dir.clone())?;
        let below = first.instance("below")?;
        for (file, value) in [
            ("events/sched/sched_switch/filter", "prev_pid == 1 && next_comm ~ \"a*\""),
            ("events/sched/sched_switch/enable", "1"),
            ("trace_clock", "mono"),
            ("buffer_percent", "20"),
            ("options/raw", "1"),
            ("trace_options", "noirq-info"),
            ("set_event_pid", "1 2"),
        ] {
            set(&dir, file, value)?;
        }
        for (file, value) in [
            ("tracing_on", "0"),
            ("buffer_subbuf_size_kb", "8"),
            ("per_cpu/cpu0/buffer_size_kb", "100"),
            ("tracing_cpumask", "1"),
            ("set_event_notrace_pid", "77"),
            ("events/sched/sched_wakeup/filter", "pid > 5"),
            ("set_event", "sched:sched_wakeup"),
            ("events/sched/sched_process_exit/trigger", "traceoff:7 if pid == 1"),
            ("events/sched/sched_process_exit/trigger", "disable_event:sched:sched_process_free if prio < 0"),
            ("events/sched/sched_process_exit/trigger", "stacktrace:0"),
            ("events/ftrace/print/trigger", "snapshot if buf == \"x\""),
        ] {
            set(&below, file, value)?;
        }
        // An invalid filter has no effect, and the restarted daemon does not restore it.
        ensure!(mirror::write(&below, "events/sched/sched_switch/filter", b"nonsense", false).is_err());
        set(&below, "events/sched/sched_switch/filter", "0")?;
        let shown = |dir: &Path| FILES.iter().map(|file| text(dir, file)).collect::<Result<Vec<_>>>();
        let before = (shown(&dir)?, shown(&below)?);
        first.kill();
        let second = Mounted::with(dir.clone(), &["--restore"])?;
        let after = (shown(&dir)?, shown(&below)?);
        for (file, (old, new)) in FILES.iter().zip(before.0.iter().zip(&after.0)) {
            ensure!(old == new, "{file}: {old:?} became {new:?}");
        }
        for (file, (old, new)) in FILES.iter().zip(before.1.iter().zip(&after.1)) {
            ensure!(old == new, "below: {file}: {old:?} became {new:?}");
        }
        // A normal end leaves no state.
        ensure!(state_file(&dir).exists());
        second.stop()?;
        ensure!(!state_file(&dir).exists(), "{} is left", state_file(&dir).display());
        let third = Mounted::with(dir.clone(), &["--restore"])?;
        ensure!(text(&dir, "set_event")?.is_empty());
        ensure!(std::fs::read_dir(dir.join("instances"))?.count() == 0);
        third.stop()?;
        Ok(())
    });
}

/// Time within which a daemon with an invalid state file must serve. It usually takes 200 ms.
const SERVES_WITHIN: Duration = Duration::from_secs(10);

/// Starts a daemon with a state file, reads one of its files, and ends it; returns its output.
fn output_with(dir: &Path, state: &[u8]) -> Result<String> {
    fs::write(state_file(dir), state)?;
    let begun = Instant::now();
    let mounted = Mounted::with(dir.to_owned(), &["--restore"])?;
    ensure!(text(dir, "buffer_percent")? == "50\n");
    let took = begun.elapsed();
    ensure!(took < host::patience(SERVES_WITHIN), "served after {took:?}");
    Ok(mounted.stop()?.stderr)
}

#[test]
fn an_invalid_state_file_is_set_aside() {
    host::as_root(|| {
        let dir = place("restore-bad");
        let mut first = Mounted::at(dir.clone())?;
        let below = first.instance("below")?;
        set(&dir, "events/sched/sched_switch/filter", "prev_pid == 1")?;
        set(&below, "buffer_size_kb", "100")?;
        set(&below, "set_event", "sched:sched_wakeup")?;
        let good = fs::read(state_file(&dir))?;
        first.kill();
        let bad_file = state_file(&dir).with_extension("json.bad");
        let whole = String::from_utf8(good.clone())?;
        let changed = |from: &str, to: &str| {
            assert!(whole.contains(from), "{from} in {whole}");
            whole.replace(from, to).into_bytes()
        };
        let mut damaged: Vec<Vec<u8>> = vec![
            // The first of these states used to end every daemon that restored it.
            changed("\"page\":4096", "\"page\":16"),
            changed("\"page\":4096", "\"page\":18446744073709551615"),
            changed("\"percent\":50", "\"percent\":101"),
            changed("\"clock\":\"local\"", "\"clock\":\"\\u0000\""),
            changed("\"name\":\"below\"", "\"name\":\"../../escape\""),
            changed("\"traced\":[]", "\"traced\":[4294967295]"),
            changed("\"sizes\":[", "\"sizes\":[18446744073709551615,"),
            changed("\"names\":", "\"names\":1000000"),
            changed("\"names\":", "\"surnames\":"),
            [&b"{\"instances\":"[..], &vec![b'['; 1 << 20]].concat(),
            Vec::new(),
            vec![0; 4096],
            good[..good.len() / 2].to_vec(),
        ];
        // Bytes that are invalid in JSON, at several places.
        damaged.extend((1..4).map(|part| {
            let mut bytes = good.clone();
            bytes[good.len() * part / 4] = 0xff;
            bytes
        }));
        for state in &damaged {
            let shown = String::from_utf8_lossy(&state[..state.len().min(2000)]).into_owned();
            let said = output_with(&dir, state).with_context(|| shown.clone())?;
            ensure!(said.matches("is not restored").count() == 1, "{shown}: {said}");
            ensure!(fs::read(&bad_file)? == *state, "{shown}: the file that was set aside differs");
            ensure!(!state_file(&dir).exists(), "{shown}");
        }
        fs::remove_file(&bad_file)?;
        // An empty file, one that is too large, and a FIFO without a writer.
        let said = output_with(&dir, b"")?;
        ensure!(said.contains("is not restored"), "{said}");
        fs::File::create(state_file(&dir))?.set_len((64 << 20) + 1)?;
        let mounted = Mounted::with(dir.clone(), &["--restore"])?;
        ensure!(mounted.stop()?.stderr.contains("more than 67108864 bytes"));
        ensure!(Command::new("mkfifo").arg(state_file(&dir)).status()?.success());
        let begun = Instant::now();
        let mounted = Mounted::with(dir.clone(), &["--restore"])?;
        ensure!(begun.elapsed() < host::patience(SERVES_WITHIN), "served after {:?}", begun.elapsed());
        ensure!(mounted.stop()?.stderr.contains("not a regular file"));
        fs::remove_file(&bad_file)?;
        Ok(())
    });
}

#[test]
fn settings_that_no_longer_apply_are_omitted() {
    host::as_root(|| {
        let dir = place("restore-less");
        let mut first = Mounted::at(dir.clone())?;
        let below = first.instance("below")?;
        set(&below, "buffer_size_kb", "100")?;
        set(&below, "events/sched/sched_wakeup/filter", "pid > 5")?;
        let good = fs::read_to_string(state_file(&dir))?;
        first.kill();
        let sizes = good.rfind("\"sizes\":[").context("sizes")? + "\"sizes\":[".len();
        let end = good[sizes..].find(']').context("their end")? + sizes;
        // 32 TiB for the first CPU, and a nonexistent system.
        let state =
            format!("{}35184372088832{}", &good[..sizes], &good[end..]).replace("\"sched\"", "\"gone\"");
        let said = {
            fs::write(state_file(&dir), state)?;
            let begun = Instant::now();
            let mounted = Mounted::with(dir.clone(), &["--restore"])?;
            ensure!(begun.elapsed() < host::patience(SERVES_WITHIN), "served after {:?}", begun.elapsed());
            let usual = text(&mounted.instance("other")?, "per_cpu/cpu0/buffer_size_kb")?;
            ensure!(text(&below, "per_cpu/cpu0/buffer_size_kb")? == usual);
            mounted.stop()?.stderr
        };
        for part in ["buffer size of CPU 0 of below", "filter of gone:sched_wakeup of below"] {
            ensure!(said.contains(part), "{part}: {said}");
        }
        ensure!(!said.contains("is not restored"), "{said}");
        // The mirror's files have the same limit.
        let mounted = Mounted::at(dir.clone())?;
        let before = text(&dir, "buffer_size_kb")?;
        for huge in ["34359738368", "100000000000", "18014398509481985"] {
            let done = mirror::write(&dir, "buffer_size_kb", huge.as_bytes(), false);
            ensure!(done == Err(rustix::io::Errno::NOMEM.raw_os_error()), "{huge}: {done:?}");
        }
        ensure!(text(&dir, "buffer_size_kb")? == before);
        mounted.stop()?;
        Ok(())
    });
}

#[test]
fn histograms_survive_a_kill() {
    host::as_root(|| {
        let dir = place("restore-hist");
        let mut first = Mounted::at(dir.clone())?;
        let below = first.instance("below")?;
        let add = |dir: &Path, file: &str, line: &str| -> Result<()> {
            let done = mirror::write(dir, file, line.as_bytes(), true);
            ensure!(done.is_ok(), "{line:?} to {file}: {done:?}");
            Ok(())
        };
        let [waking, switch, made] = ["sched/sched_waking", "sched/sched_switch", "synthetic/lat"]
            .map(|name| format!("events/{name}/trigger"));
        add(&dir, "synthetic_events", "lat u64 lat; pid_t pid")?;
        // The order of the triggers differs from the order of the events' names, and each needs the previous one.
        for (file, line) in [
            (&waking, "hist:keys=pid:ts0=common_timestamp.usecs,who=prio if comm == \"nobody\""),
            (
                &switch,
                "hist:keys=next_pid:lat=common_timestamp.usecs-$ts0:\
                 onmatch(sched.sched_waking).lat($lat,next_pid) if next_comm == \"nobody\"",
            ),
            (&made, "hist:keys=pid:vals=lat:sort=lat.descending:pause"),
            (&made, "hist:keys=lat.log2"),
        ] {
            add(&dir, file, line)?;
        }
        for (file, line) in [
            (&switch, "hist:name=both:keys=prev_comm.descending:size=128 if prev_comm == \"x\""),
            (&switch, "hist:keys=next_pid.hex:nohitcount:vals=prev_prio if prev_prio == 7"),
            (&switch, "enable_hist:synthetic:lat:3"),
        ] {
            // The first has a modifier that keys do not support.
            let done = mirror::write(&below, file, line.as_bytes(), true);
            ensure!(done.is_ok() != line.contains("prev_comm.descending"), "{line}: {done:?}");
        }
        add(&below, &switch, "hist:name=both:keys=prev_comm:size=128 if prev_comm == \"x\"")?;
        add(&dir, &switch, "hist:name=both:keys=prev_comm:size=128 if prev_comm == \"y\"")?;
        add(&dir, &made, "hist:keys=lat.log2:pause")?;
        add(&dir, &made, "hist:keys=pid:vals=lat:sort=lat.descending:cont")?;
        let files = [&waking, &switch, &made];
        let shown = || -> Result<Vec<String>> {
            let all = [&dir, &below].into_iter().flat_map(|dir| files.map(|file| text(dir, file)));
            all.chain([text(&dir, "synthetic_events")]).collect()
        };
        let before = shown()?;
        ensure!(before[2].contains("[active]") && before[2].contains("[paused]"), "{before:?}");
        first.kill();
        let second = Mounted::with(dir.clone(), &["--restore"])?;
        let after = shown()?;
        ensure!(before == after, "{before:#?}\nbecame\n{after:#?}");
        second.stop()?;
        Ok(())
    });
}

#[test]
fn events_are_enabled_at_the_start() {
    host::as_root(|| {
        let dir = place("at-start");
        let list = "sched:sched_process_exit,alarmtimer,no:such";
        let mut mounted =
            Mounted::with(dir.clone(), &["--trace-event", list, "--trace-event", "irq:softirq_raise"])?;
        let on = text(&dir, "set_event")?;
        for event in ["sched:sched_process_exit", "alarmtimer:alarmtimer_fired", "irq:softirq_raise"] {
            ensure!(on.lines().any(|line| line == event), "{event} is off: {on}");
        }
        // The restored state takes precedence over the start options.
        set(&dir, "set_event", "alarmtimer:alarmtimer_start")?;
        mounted.kill();
        let again = Mounted::with(dir.clone(), &["--restore", "--trace-event", list])?;
        ensure!(text(&dir, "set_event")? == "alarmtimer:alarmtimer_start\n");
        again.stop()?;
        Ok(())
    });
}

#[test]
fn the_files_have_the_requested_owner() {
    use std::os::unix::fs::MetadataExt;
    host::as_root(|| {
        let mounted = Mounted::with(place("owner"), &["--uid", "12", "--gid=34", "--mode", "750"])?;
        let dir = mounted.dir();
        let root = std::fs::metadata(dir)?;
        ensure!((root.uid(), root.gid(), root.mode() & 0o7777) == (12, 34, 0o750), "{root:?}");
        let file = std::fs::metadata(dir.join("events/sched/sched_switch/enable"))?;
        ensure!((file.uid(), file.gid(), file.mode() & 0o7777) == (12, 34, 0o640), "{file:?}");
        Ok(())
    });
}

/// Shell script: serves a mirror that applies the kernel's command line. The unmount ends the daemon.
const BOOT: &str = r#"
mount --make-rprivate / && mount --bind "$2" /proc/cmdline && "$1" mount --boot --background "$3" && cd "$3" || exit 1
cat set_event; grep -o '\[.*\]' trace_clock; test $(cat buffer_size_kb) -ge 2048 && cat options/sym-offset options/verbose; ls instances
cat instances/foo/set_event instances/foo/tracing_on instances/bar/set_event instances/bar/tracing_on
cd / && umount "$3"
"#;

#[test]
fn the_kernels_command_line_is_applied_at_the_start() {
    host::as_root(|| {
        let dir = place("boot");
        let line = dir.with_extension("cmdline");
        std::fs::write(
            &line,
            "root=/dev/vda ro trace_event=sched:sched_process_exec,no:such trace_options=sym-offset,no_such trace_clock=global \
             trace_buf_size=2M trace_instance=foo,sched:sched_process_fork trace_instance=bar^traceoff quiet\n",
        )?;
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", BOOT, "sh"])
            .args([&host::binary("tracer", "TRACER_BIN")?, &line, &dir])
            .output()
            .context("unshare of util-linux")?;
        let said = String::from_utf8_lossy(&output.stderr);
        std::fs::remove_file(line)?;
        let _ = std::fs::remove_dir(dir);
        let seen = String::from_utf8(output.stdout)?;
        let expected = "sched:sched_process_exec\n[global]\n1\n0\nbar\nfoo\nsched:sched_process_fork\n1\n0\n";
        ensure!(output.status.success() && seen == expected, "{seen:?}: {said}");
        for failed in ["no:such", "trace_options=no_such"] {
            ensure!(said.contains(failed), "nothing is said of {failed}: {said}");
        }
        Ok(())
    });
}
