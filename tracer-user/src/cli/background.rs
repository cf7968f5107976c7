//! `tracer mount --background`: starts the daemon as a separate process and waits until it serves.

use std::{
    ffi::OsString,
    fs::File,
    io::Read,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};

/// The running program, even if its file was moved or deleted.
const SELF: &str = "/proc/self/exe";

/// Runs `tracer mount --background` with these arguments. The daemon is then not a child of this process.
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

/// Starts the same `tracer mount` command as a daemon, and returns once it serves. Until then the daemon's messages
/// go to standard error.
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
        // The daemon has printed the reason.
        daemon.wait()?;
        bail!("the daemon ended");
    }
    Ok(())
}

/// In the daemon: starts a session, so that signals of the terminal do not reach it.
pub(super) fn leave_terminal() -> anyhow::Result<()> {
    rustix::process::setsid().context("no session of its own")?;
    Ok(std::env::set_current_dir("/")?)
}

/// In the daemon: opens the file that replaces standard output and error. A daemon that serves opens no file for
/// writing.
pub(super) fn open_null() -> std::io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// In the daemon: reports to the parent that it serves. Then replaces standard output and error, because the caller may
/// wait for their end. From then on, messages go to `log` or to the system's log.
pub(super) fn report_ready(null: &File, log: Option<File>) -> std::io::Result<()> {
    std::io::Write::write_all(&mut std::io::stdout().lock(), b"\n")?;
    std::io::Write::flush(&mut std::io::stdout().lock())?;
    rustix::stdio::dup2_stdout(null)?;
    // A panic writes its message there.
    rustix::stdio::dup2_stderr(log.as_ref().unwrap_or(null))?;
    super::log::leave_stderr(log);
    Ok(())
}
