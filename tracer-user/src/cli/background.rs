//! A `tracer mount` that goes on by itself: started again as a process of its own, awaited until it serves.

use std::{
    ffi::OsString,
    fs::File,
    io::Read,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};

/// This program, however it was found and whatever became of its file.
const SELF: &str = "/proc/self/exe";

/// Runs `tracer mount --background` with these arguments: the daemon is nobody's child then.
pub(super) fn start(arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<()> {
    let status = Command::new(SELF)
        .args(["mount", "--background"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("cannot start the daemon")?;
    if !status.success() {
        bail!("the mirror does not come up");
    }
    Ok(())
}

/// Starts this very `tracer mount` as a daemon, and returns once it serves; what it has to say before that goes to
/// our standard error.
pub(super) fn become_parent() -> anyhow::Result<()> {
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--background");
    let mut daemon = Command::new(SELF)
        .args(arguments)
        .arg("--detached")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the daemon")?;
    let mut said = Vec::new();
    daemon.stdout.take().context("its output is a pipe")?.read_to_end(&mut said)?;
    if said.is_empty() {
        // It has told why.
        daemon.wait()?;
        bail!("the daemon ended");
    }
    Ok(())
}

/// In the daemon: a session of its own, so that no terminal's signals reach it.
pub(super) fn leave_terminal() -> anyhow::Result<()> {
    rustix::process::setsid().context("no session of its own")?;
    Ok(std::env::set_current_dir("/")?)
}

/// In the daemon: says that it serves, and lets go of what whoever started it may wait on. Messages go to `log` from then on, or
/// to the system's log.
pub(super) fn tell(log: Option<File>) -> std::io::Result<()> {
    std::io::Write::write_all(&mut std::io::stdout().lock(), b"\n")?;
    std::io::Write::flush(&mut std::io::stdout().lock())?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    // Where it dies of a panic, the last words go there.
    rustix::stdio::dup2_stderr(log.as_ref().unwrap_or(&null))?;
    super::log::leave_stderr(log);
    Ok(())
}
