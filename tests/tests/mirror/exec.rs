//! `tracer exec`: a command finds the mirror where tools look for tracefs. The tests run shell scripts and trace-cmd
//! in it.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted};

fn exec(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(host::binary("tracer", "TRACER_BIN")?);
    command.arg("exec").args(arguments);
    Ok(command)
}

/// The output of a shell script in `tracer exec`.
fn shell(script: &str) -> Result<Output> {
    let output = exec(&["--", "sh", "-c", script])?.output()?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

/// Waits until no daemon watches a process any more.
fn await_end(watched: &str) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    let wanted = format!("--until\0{watched}\0");
    loop {
        let mut left = Vec::new();
        for process in std::fs::read_dir("/proc")?.flatten() {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&wanted) {
                left.push(process.file_name());
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < end, "daemons are left: {left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn mounts() -> Result<String> {
    Ok(std::fs::read_to_string("/proc/self/mounts")?)
}

#[test]
fn the_command_finds_the_mirror_and_leaves_nothing() {
    host::as_root(|| {
        let before = mounts()?;
        let output = shell(
            "cd /sys/kernel/tracing && head -n 1 README && \
             head -n 1 /sys/kernel/debug/tracing/README; \
             echo 1 > events/sched/sched_switch/enable && cat set_event && \
             cat /sys/kernel/debug/tracing/events/sched/sched_switch/enable && \
             grep -c ' /sys/kernel/tracing fuse' /proc/self/mounts && echo $$; exit 7",
        )?;
        ensure!(output.status.code() == Some(7), "{}", output.status);
        let text = String::from_utf8(output.stdout)?;
        let lines: Vec<&str> = text.lines().collect();
        let [readme, same, event, enabled, mirrors, pid] = lines[..] else {
            anyhow::bail!("{text}");
        };
        ensure!(readme.starts_with("Linux event tracing with the semantics of tracefs"), "{readme}");
        ensure!((same, event, enabled, mirrors) == (readme, "sched:sched_switch", "1", "1"), "{text}");
        ensure!(output.stderr.is_empty());
        await_end(pid)?;
        ensure!(mounts()? == before, "mounts are left");
        Ok(())
    });
}

#[test]
fn status_and_signals_are_the_commands() {
    host::as_root(|| {
        let script = "trap 'exit 9' TERM; echo $$; while :; do sleep 0.1; done";
        let mut child = exec(&["sh", "-c", script])?.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("stdout")?).read_line(&mut line)?;
        let pid = i32::try_from(child.id())?;
        ensure!(line.trim() == pid.to_string(), "the command is our child itself");
        kill_process(Pid::from_raw(pid).context("pid")?, Signal::TERM)?;
        ensure!(child.wait()?.code() == Some(9));
        await_end(line.trim())?;
        // A killed command leaves no daemon either.
        let mut child = exec(&["sleep", "100"])?.spawn()?;
        let pid = child.id().to_string();
        std::thread::sleep(Duration::from_millis(300));
        child.kill()?;
        child.wait()?;
        await_end(&pid)?;
        let missing = exec(&["no-such-command"])?.output()?;
        ensure!(missing.status.code() == Some(127), "{}", missing.status);
        let directory = exec(&["/"])?.output()?;
        ensure!(directory.status.code() == Some(126), "{}", directory.status);
        Ok(())
    });
}

#[test]
fn an_existing_mirror_can_be_used() {
    host::as_root(|| {
        let mounted = Mounted::start("exec")?;
        let dir = mounted.dir().to_str().context("a path")?;
        let script = "mkdir /sys/kernel/tracing/instances/from-inside";
        let status = exec(&["--mirror", dir, "--", "sh", "-c", script])?.status()?;
        ensure!(status.success(), "{status}");
        ensure!(mirror::names(&mounted.dir().join("instances"))? == ["from-inside"]);
        let wrong = exec(&["--mirror", "/usr", "true"])?.output()?;
        ensure!(String::from_utf8_lossy(&wrong.stderr).contains("no mirror at /usr"), "{wrong:?}");
        ensure!(wrong.status.code() == Some(1));
        Ok(())
    });
}

/// Whether trace-cmd is installed, as it is in the virtual machines.
fn has_trace_cmd() -> bool {
    let found =
        Command::new("trace-cmd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        host::skip("trace-cmd", "no trace-cmd here");
    }
    found.is_ok()
}

#[test]
fn trace_cmd_lists_records_and_reports() {
    host::as_root(|| {
        if !has_trace_cmd() {
            return Ok(());
        }
        let events = exec(&["trace-cmd", "list", "-e", "sched:sched_switch", "-F"])?.output()?;
        let text = String::from_utf8_lossy(&events.stdout).into_owned();
        ensure!(text.contains("system: sched") && text.contains("field:pid_t next_pid;"), "{text}");
        let file = std::env::temp_dir().join(format!("tracer-exec-{}.dat", std::process::id()));
        let shown = file.to_str().context("a path")?;
        let recorded = exec(&[
            "trace-cmd",
            "record",
            "-o",
            shown,
            "-e",
            "sched:sched_switch",
            "-e",
            "sched:sched_process_exit",
            "sleep",
            "1",
        ])?
        .output()?;
        let said = String::from_utf8_lossy(&recorded.stderr).into_owned();
        if said.contains("Can't enable ftrace") {
            // trace-cmd always sets `/proc/sys/kernel/ftrace_enabled`, which security modules may refuse.
            host::skip("prog_tracing", format_args!("this machine does not let trace-cmd record: {said}"));
            return Ok(());
        }
        ensure!(recorded.status.success(), "{said}");
        let report = Command::new("trace-cmd").args(["report", "-i", shown]).output()?;
        std::fs::remove_file(&file)?;
        let text = String::from_utf8_lossy(&report.stdout).into_owned();
        let switches = text.lines().filter(|line| line.contains("sched_switch:")).count();
        let exit = text.lines().any(|line| line.contains("sched_process_exit:") && line.contains("sleep"));
        println!("{switches} switches\n{}", text.lines().take(12).collect::<Vec<_>>().join("\n"));
        ensure!(switches >= 2 && exit, "{}\n{text}", String::from_utf8_lossy(&report.stderr));
        Ok(())
    });
}

/// Records that trace-cmd reads from the pages by splice(2), with the kernel's page header.
/// The pages that can be spliced from files without waiting.
fn spliced(files: &[OwnedFd]) -> Result<Vec<u8>> {
    let (reading, writing) = rustix::pipe::pipe()?;
    let mut reading = std::fs::File::from(reading);
    let mut all = Vec::new();
    for file in files {
        loop {
            let flags = rustix::pipe::SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(file, None, &writing, None, 4096, flags) {
                Ok(0) | Err(rustix::io::Errno::AGAIN) => break,
                Ok(length) => {
                    ensure!(length == 4096, "a page is {length} bytes");
                    let mut page = vec![0; length];
                    reading.read_exact(&mut page)?;
                    all.extend(page);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(all)
}

#[test]
fn pages_are_spliced() {
    host::as_root(|| {
        let mounted = Mounted::start("splice")?;
        let dir = mounted.dir();
        mirror::set(dir, "trace_clock", "mono")?;
        for _ in 0..100 {
            mirror::write(dir, "trace_marker", b"spliced", true)
                .map_err(std::io::Error::from_raw_os_error)?;
        }
        let mut files = Vec::new();
        for cpu in mirror::names(&dir.join("per_cpu"))? {
            let path: PathBuf = dir.join("per_cpu").join(cpu).join("trace_pipe_raw");
            files.push(rustix::fs::open(
                &path,
                rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK,
                rustix::fs::Mode::empty(),
            )?);
        }
        let all = spliced(&files)?;
        let marks = |pages: &[u8]| pages.windows(7).filter(|window| window == b"spliced").count();
        ensure!(marks(&all) == 100, "{} of 100 marks", marks(&all));
        // A splice that found no record does not hide later ones.
        let mut without_records = 0;
        for round in 0..3 {
            mirror::write(dir, "trace_marker", b"spliced", true)
                .map_err(std::io::Error::from_raw_os_error)?;
            let start = Instant::now();
            loop {
                let more = spliced(&files)?;
                if marks(&more) == 1 {
                    break;
                }
                // From 6.19 on, the kernel may deliver a page of zeros where there is no record
                // (docs/reference/limits.md).
                if host::kernel() >= (6, 19) && more.iter().all(|byte| *byte == 0) {
                    without_records += more.len() / 4096;
                } else {
                    ensure!(more.is_empty(), "{} marks in round {round}", marks(&more));
                }
                ensure!(without_records <= 2, "{without_records} pages without records");
                ensure!(
                    start.elapsed() < host::patience(Duration::from_secs(30)),
                    "round {round} has no mark"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    });
}
