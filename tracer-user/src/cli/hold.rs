//! The process that a traced command starts as: it tells its thread id, waits until everything is attached, and
//! becomes the command.

use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

use anyhow::Context;

use super::args::HoldArgs;
use crate::attach::ids;

/// Exit codes of a shell for a command that cannot be run and for one that is not there.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Never comes back when all goes well.
pub(super) fn run(args: &HoldArgs) -> anyhow::Result<ExitCode> {
    // The descriptors are ours by inheritance; through /proc they become files without a claim on the numbers.
    let descriptor =
        |fd: i32, write: bool| File::options().read(!write).write(write).open(format!("/proc/self/fd/{fd}"));
    let own = ids::own().map_err(|cause| anyhow::anyhow!("{cause}"))?;
    descriptor(args.tell, true).context("cannot tell")?.write_all(&own.thread.to_ne_bytes())?;
    let mut go = [0];
    if descriptor(args.wait, false).context("cannot wait")?.read(&mut go)? == 0 {
        // The tracer gave up.
        return Ok(ExitCode::FAILURE);
    }
    let (program, rest) = args.command.split_first().context("no command")?;
    let error = Command::new(program).args(rest).exec();
    Ok(cannot_run(program, &error))
}

/// Says that a command cannot be run, and gives the exit code that a shell gives.
pub(super) fn cannot_run(program: &OsStr, error: &std::io::Error) -> ExitCode {
    eprintln!("tracer: cannot run `{}`: {error}", program.display());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}
