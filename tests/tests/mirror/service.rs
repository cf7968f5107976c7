//! The daemon as a service: its configuration file, SIGHUP, and settings that survive a restart.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tracer_tests::host;
use tracer_tests::mirror::{self, Mounted, set, text};
use tracer_tests::tracer::Tracer;

/// Limit for a message of the daemon, which usually takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A directory for the files of a test.
fn place(purpose: &str) -> Result<PathBuf> {
    let dir = std::env::temp_dir().join(format!("tracer-service-{purpose}-{}", std::process::id()));
    fs::create_dir(&dir)?;
    Ok(dir)
}

/// The lines of a text, in alphabetical order.
fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Sends SIGHUP to a process.
fn hang_up(process: u32) -> Result<()> {
    let pid = rustix::process::Pid::from_raw(process.cast_signed()).context("a process")?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::HUP)?)
}

/// The socket of a service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Result<Self> {
        let socket = UnixDatagram::bind(path)?;
        socket.set_read_timeout(Some(host::patience(PATIENCE)))?;
        Ok(Self(socket))
    }

    /// The daemon's next message.
    fn hear(&self) -> Result<String> {
        let mut said = [0; 128];
        let length = self.0.recv(&mut said).context("the daemon says nothing")?;
        Ok(String::from_utf8_lossy(&said[..length]).into_owned())
    }

    /// Makes the daemon read its configuration again, and waits until it is done.
    fn reload(&self, daemon: u32) -> Result<()> {
        hang_up(daemon)?;
        let (begin, end) = (self.hear()?, self.hear()?);
        ensure!(begin.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{begin}");
        ensure!(end == "READY=1", "{end}");
        Ok(())
    }
}

#[test]
fn the_configuration_is_read_again_after_sighup() {
    host::as_root(|| {
        let dir = place("reload")?;
        let (config, at) = (dir.join("tracer.toml"), dir.join("mirror"));
        let manager = Manager::at(&dir.join("notify"))?;
        fs::write(
            &config,
            "trace-event = [\"sched:sched_process_exit,sched:sched_process_free\"]\nmode = \"711\"\n",
        )?;
        let running =
            Tracer::new(["mount".as_ref(), at.as_os_str(), "--config".as_ref(), config.as_os_str()])?
                .env("NOTIFY_SOCKET", dir.join("notify"))
                .start()?;
        ensure!(manager.hear()? == "READY=1");
        ensure!(text(&at, "set_event")? == "sched:sched_process_exit\nsched:sched_process_free\n");
        // A client's event stays.
        mirror::write(&at, "set_event", b"sched:sched_process_exec", true)
            .map_err(std::io::Error::from_raw_os_error)?;
        fs::write(
            &config,
            "trace-event = [\"sched:sched_process_free\", \"sched:sched_process_fork\"]\nmode = \"700\"\n",
        )?;
        manager.reload(running.pid())?;
        let expected = "sched:sched_process_exec\nsched:sched_process_fork\nsched:sched_process_free\n";
        ensure!(sorted(&text(&at, "set_event")?) == sorted(expected), "{}", text(&at, "set_event")?);
        // Words that remain keep their events, and words that are removed enable none.
        fs::write(
            &config,
            "trace-event = [\"sched:sched_process_free,irq,!irq:irq_handler_entry\"]\nmode = \"700\"\n",
        )?;
        manager.reload(running.pid())?;
        fs::write(
            &config,
            "trace-event = [\"sched:sched_process_free\", \"sched:sched_process_fork\"]\nmode = \"700\"\n",
        )?;
        manager.reload(running.pid())?;
        ensure!(sorted(&text(&at, "set_event")?) == sorted(expected), "{}", text(&at, "set_event")?);
        // What cannot be used changes nothing, and a FIFO without a writer blocks nothing.
        fs::write(&config, "mode = \"700\"\ntrace-events = []\n")?;
        manager.reload(running.pid())?;
        fs::remove_file(&config)?;
        rustix::fs::mknodat(rustix::fs::CWD, &config, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)?;
        manager.reload(running.pid())?;
        fs::remove_file(&config)?;
        manager.reload(running.pid())?;
        ensure!(sorted(&text(&at, "set_event")?) == sorted(expected));
        ensure!(fs::metadata(&at)?.permissions().mode() & 0o777 == 0o711, "the mode needs a new start");
        let outcome = running.stop()?;
        ensure!(outcome.status.success(), "{outcome:?}");
        for said in [
            "not changed before the next start: mode\n",
            "line 2: unknown key; did you mean `trace-event`?",
            "is not a regular file",
            "cannot be read",
        ] {
            ensure!(outcome.stderr.contains(said), "no {said:?} in {}", outcome.stderr);
        }
        Ok(fs::remove_dir_all(dir)?)
    });
}

#[test]
fn a_wrong_configuration_is_refused_before_anything_is_done() {
    host::as_root(|| {
        let dir = place("check")?;
        let (config, at) = (dir.join("tracer.toml"), dir.join("mirror"));
        let mount = |more: &[&str]| {
            let words = ["mount".as_ref(), at.as_os_str(), "--config".as_ref(), config.as_os_str()];
            Tracer::new(words)?.args(more).run()
        };
        fs::write(&config, "# nothing\ngid = \"nobody\"\n")?;
        for more in [&[][..], &["--check"], &["--background"]] {
            let outcome = mount(more)?;
            ensure!(outcome.status.code() == Some(1), "{more:?}: {outcome:?}");
            let said = "line 2: invalid value 'nobody' for '--gid <GID>': invalid digit found in string\n  gid = \"nobody\"\n        ^";
            ensure!(outcome.stderr.contains(said), "{more:?}: {}", outcome.stderr);
            ensure!(!at.exists(), "{more:?}");
        }
        fs::write(&config, "gid = 1\n")?;
        let outcome = mount(&["--check"])?;
        ensure!(outcome.status.success() && outcome.stderr.is_empty() && !at.exists(), "{outcome:?}");
        Ok(fs::remove_dir_all(dir)?)
    });
}

#[test]
fn settings_survive_a_restart_where_they_are_kept() {
    host::as_root(|| {
        let dir = place("restart")?;
        let (at, state) = (dir.join("mirror"), dir.join("state"));
        let list = |events: &'static str| {
            let state = state.to_str().unwrap().to_owned();
            let words = ["--restore", "--keep-state", "--state-dir", &state, "--trace-event", events]
                .map(str::to_owned);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            Mounted::with(at.clone(), &words)
        };
        let first = list("sched:sched_process_free")?;
        set(&at, "events/sched/sched_switch/filter", "prev_pid == 1")?;
        set(&at, "events/sched/sched_switch/enable", "1")?;
        set(&first.instance("below")?, "set_event", "sched:sched_wakeup")?;
        // What changed without a client's write is saved at the end.
        set(&at, "events/sched/sched_process_fork/trigger", "traceoff:1")?;
        std::process::Command::new("true").status()?;
        ensure!(text(&at, "tracing_on")? == "0\n", "the trigger has not fired");
        set(&at, "tracing_on", "1")?;
        let outcome = first.stop()?;
        ensure!(outcome.status.success() && outcome.stderr.is_empty(), "{outcome:?}");
        // Another daemon has a directory of its own.
        let other = Mounted::with(dir.join("other"), &["--restore"])?;
        ensure!(text(other.dir(), "set_event")?.is_empty());
        other.stop()?;
        // An event with a trigger counts as enabled, as in the kernel.
        for (events, listed) in [
            ("sched:sched_process_free", "sched:sched_process_free"),
            ("sched:sched_process_exec", "sched:sched_process_exec"),
            ("sched:sched_process_exec", "sched:sched_process_exec"),
        ] {
            let next = list(events)?;
            ensure!(text(&at, "events/sched/sched_switch/filter")? == "prev_pid == 1\n");
            let on = sorted(&text(&at, "set_event")?);
            let expected = [listed, "sched:sched_process_fork", "sched:sched_switch"].join("\n");
            ensure!(on == sorted(&expected), "{events}: {on:?}");
            ensure!(text(&at.join("instances/below"), "set_event")? == "sched:sched_wakeup\n");
            let trigger = text(&at, "events/sched/sched_process_fork/trigger")?;
            ensure!(trigger == "traceoff:count=0\n", "{trigger}");
            std::process::Command::new("true").status()?;
            ensure!(text(&at, "tracing_on")? == "1\n", "the trigger fires again");
            next.stop()?;
        }
        // A daemon that keeps nothing removes them at its end.
        Mounted::with(at.clone(), &["--restore", "--state-dir", state.to_str().unwrap()])?.stop()?;
        ensure!(fs::read_dir(&state)?.count() == 0);
        let last = list("sched:sched_process_exec")?;
        ensure!(text(&at, "set_event")? == "sched:sched_process_exec\n");
        last.stop()?;
        Ok(fs::remove_dir_all(dir)?)
    });
}

/// The daemon that serves this mirror in the background.
fn daemon_of(at: &Path) -> Result<u32> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let Ok(line) = fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line);
        if line.contains("--detached") && line.contains(at.to_str().context("a path in UTF-8")?) {
            return Ok(pid);
        }
    }
    bail!("no daemon for {}", at.display())
}

#[test]
fn a_daemon_in_the_background_finds_its_configuration_again() {
    host::as_root(|| {
        let dir = place("background")?;
        let (at, log) = (dir.join("mirror"), dir.join("daemon.log"));
        let configure = |list: &str| {
            fs::write(
                dir.join("tracer.toml"),
                format!("trace-event = [\"{list}\"]\nlog = \"{}\"\n", log.display()),
            )
        };
        configure("sched:sched_process_exit")?;
        // The daemon leaves the directory to which the path is relative.
        let mount = Tracer::new(["mount".as_ref(), at.as_os_str()])?;
        let outcome = mount.args(["--background", "--config", "tracer.toml"]).current_dir(&dir).run()?;
        ensure!(outcome.status.success(), "{outcome:?}");
        ensure!(text(&at, "set_event")? == "sched:sched_process_exit\n");
        configure("no_such:event")?;
        hang_up(daemon_of(&at)?)?;
        let deadline = Instant::now() + host::patience(PATIENCE);
        while !text(&at, "set_event")?.is_empty() {
            ensure!(Instant::now() < deadline, "the configuration is not read again");
            std::thread::sleep(Duration::from_millis(10));
        }
        mirror::unmount_unused(&at)?;
        let said = fs::read_to_string(&log)?;
        ensure!(said.contains("event no_such:event") && !said.contains('\x1b'), "{said}");
        Ok(fs::remove_dir_all(dir)?)
    });
}

#[test]
fn helpers_survive_the_signal_that_reloads() {
    host::as_root(|| {
        let mounted = Mounted::start("service-helpers")?;
        let helpers = || -> Result<Vec<i32>> {
            let names = ["tracer-closer", "tracer-opener", "tracer-memory", "tracer-state"];
            Ok(names.iter().map(|name| mounted.helpers(name)).collect::<Result<Vec<_>>>()?.concat())
        };
        let before = helpers()?;
        ensure!(before.len() >= 4, "{before:?}");
        for helper in &before {
            hang_up(helper.cast_unsigned())?;
        }
        // Each of these writes needs a helper: one opens the file, one saves the state.
        set(mounted.dir(), "uprobe_events", "p:service/first /bin/true:0x1000")?;
        set(mounted.dir(), "uprobe_events", "p:service/second /bin/true:0x1000")?;
        ensure!(helpers()? == before, "a helper has ended");
        mounted.stop()?;
        Ok(())
    });
}
