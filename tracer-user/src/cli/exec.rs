//! `tracer exec`: replaces itself by a command that finds the mirror where tools look for tracefs.
//!
//! The mounts are in a new mount namespace, which ends with its last process. The daemon that serves them is not a
//! child of the command; it watches the command and ends with it. The command replaces this process, so its exit
//! status, signals and job control reach the caller unchanged.

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

/// Exit codes of a shell: the command cannot be run, and the command does not exist.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Where tools look for tracefs.
const TRACEFS: &str = "/sys/kernel/tracing";
/// Mount point of debugfs. Older tools look for tracefs in it.
const DEBUGFS: &str = "/sys/kernel/debug";
const BELOW_DEBUGFS: &str = "/sys/kernel/debug/tracing";

/// Returns only on failure.
pub(super) fn run(args: &ExecArgs) -> anyhow::Result<ExitCode> {
    let (program, rest) = args.command.split_first().context("no command")?;
    if let Some(dir) = &args.mirror {
        ensure!(fs::is_mirror(&std::path::absolute(dir)?), "there is no mirror at {}", dir.display());
    }
    private_namespace().context("cannot create a mount namespace (needs CAP_SYS_ADMIN)")?;
    mount_mirror(args)?;
    let error = Command::new(program).args(rest).exec();
    Ok(cannot_run(program, &error))
}

fn mount_mirror(args: &ExecArgs) -> anyhow::Result<()> {
    ensure!(Path::new(TRACEFS).is_dir(), "there is no {TRACEFS} to mount at");
    // Some tools look for tracefs in the list of mounts, and mount it over the mirror if they do not find it. So
    // tracefs is mounted below the mirror.
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
    // Not every kernel has debugfs, and most tools do not need it.
    if !Path::new(BELOW_DEBUGFS).is_dir()
        && let Err(error) = mount("debugfs", DEBUGFS, "debugfs", MountFlags::empty(), None)
    {
        tracing::info!("no debugfs at {DEBUGFS}: {error}");
        return Ok(());
    }
    mount_bind(TRACEFS, BELOW_DEBUGFS).with_context(|| format!("{TRACEFS} at {BELOW_DEBUGFS}"))
}

/// Reports that a command cannot be run, and returns the exit code of a shell for that.
pub(super) fn cannot_run(program: &OsStr, error: &std::io::Error) -> ExitCode {
    eprintln!("tracer: cannot run `{}`: {error}", program.display());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}
