//! `tracer exec`: becomes a command that finds the mirror where tools look for tracefs.
//!
//! The mounts are made in a namespace of our own, which goes when its last process does. The daemon that serves them is
//! no child of the command: it watches it, and ends when it does. As the command takes our place, exit status, signals
//! and job control are its own.

use std::{
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, ensure};
use rustix::mount::{MountFlags, mount, mount_bind};

use super::{args::ExecArgs, background};
use crate::{fs, kernel::Tracefs, sys::mount::private_namespace};

/// Exit codes of a shell for a command that cannot be run and for one that is not there.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Where tools look for tracefs.
const TRACEFS: &str = "/sys/kernel/tracing";
/// Where debugfs belongs, and where tools looked for tracefs before it had a place of its own.
const DEBUGFS: &str = "/sys/kernel/debug";
const BELOW_DEBUGFS: &str = "/sys/kernel/debug/tracing";

/// Comes back only when something is wrong.
pub(super) fn run(args: &ExecArgs) -> anyhow::Result<ExitCode> {
    let (program, rest) = args.command.split_first().context("no command")?;
    if let Some(dir) = &args.mirror {
        ensure!(fs::is_mirror(&std::path::absolute(dir)?), "there is no mirror at {}", dir.display());
    }
    private_namespace().context("no mounts of our own (CAP_SYS_ADMIN)")?;
    lay_out(args)?;
    let error = Command::new(program).args(rest).exec();
    Ok(cannot_run(program, &error))
}

/// Puts the mirror in the places of tracefs.
fn lay_out(args: &ExecArgs) -> anyhow::Result<()> {
    ensure!(Path::new(TRACEFS).is_dir(), "there is no {TRACEFS} to mount at");
    // Tools that go by the list of mounts want to find tracefs there, and mount it themselves where they do not: over
    // the mirror. So it is there, below.
    if !Tracefs::is_at(Path::new(TRACEFS)) {
        mount("tracefs", TRACEFS, "tracefs", MountFlags::empty(), None)
            .with_context(|| format!("tracefs at {TRACEFS}"))?;
    }
    if let Some(dir) = &args.mirror {
        mount_bind(dir, TRACEFS).with_context(|| format!("{} at {TRACEFS}", dir.display()))?;
    } else {
        let own = rustix::process::getpid().as_raw_nonzero().to_string();
        let mut mount: Vec<OsString> = [TRACEFS, "--over", "--until", &own].map(OsString::from).into();
        mount.extend(args.serving.arguments());
        background::start(mount)?;
    }
    if !Path::new(BELOW_DEBUGFS).is_dir() {
        // Not every kernel has it, and most tools do not want it.
        if let Err(error) = mount("debugfs", DEBUGFS, "debugfs", MountFlags::empty(), None) {
            tracing::info!("no debugfs at {DEBUGFS}: {error}");
            return Ok(());
        }
    }
    mount_bind(TRACEFS, BELOW_DEBUGFS).with_context(|| format!("{TRACEFS} at {BELOW_DEBUGFS}"))
}

/// Says that a command cannot be run, and gives the exit code that a shell gives.
pub(super) fn cannot_run(program: &OsStr, error: &std::io::Error) -> ExitCode {
    eprintln!("tracer: cannot run `{}`: {error}", program.display());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}
