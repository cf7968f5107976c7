//! The command line: clap structures, one file per command, errors shown with their causes.

mod args;
mod background;
mod config;
mod doctor;
mod exec;
mod explain;
mod help;
mod hist;
mod list;
mod log;
mod mount;
mod notify;
mod record;
mod style;

use std::{
    os::unix::process::ExitStatusExt,
    process::{ExitCode, ExitStatus},
    time::Duration,
};

use clap::Parser;

use crate::api::{RecordError, RecordErrorKind};
use args::{Args, Command};
#[cfg(feature = "pages")]
pub use help::manual::write_pages;

/// Exit code of an invalid command line, the same as clap's.
const USAGE: u8 = 2;

/// Limit for removing probes of files at the end of a command.
const UNLINK: Duration = Duration::from_secs(5);

/// The exit code for the end of a command: its own, or 128 and the signal's number, as shells report it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| status.signal().unwrap_or(0).saturating_add(128));
    ExitCode::from(code as u8)
}

/// Runs the command line and returns the exit code: 0 for success, 1 for failure, 2 for wrong usage. `record`, `hist`
/// and `exec` with a command return the command's code.
pub fn main() -> ExitCode {
    let mut args = Args::parse();
    if let Command::Mount(given) = args.command {
        match mount::configured(given) {
            Ok(configured) => args.command = Command::Mount(configured),
            Err(error) => {
                eprintln!("{} {}", style::error("error:"), style::chain(&error));
                return ExitCode::FAILURE;
            }
        }
    }
    log::start(match &args.command {
        Command::Mount(args) if args.detached || args.log.is_some() => log::LogKind::Daemon,
        Command::Mount(_) => log::LogKind::Service,
        _ => log::LogKind::Command,
    });
    let is_daemon = matches!(&args.command, Command::Mount(_));
    let explains = matches!(&args.command, Command::Explain(_));
    let success = |()| ExitCode::SUCCESS;
    let result = match args.command {
        Command::Record(args) => record::run(&args),
        Command::Hist(args) => hist::run(&args),
        Command::List(args) => list::run(&args).map(success),
        Command::Explain(args) => explain::run(&args).map(success),
        Command::Doctor(args) => doctor::run(&args).map(success),
        Command::Mount(args) => mount::run(&args).map(success),
        Command::Exec(args) => exec::run(&args),
        Command::Help(args) => help::run(&args).map(success),
        Command::OpenFiles => crate::fs::open_files().map(success).map_err(Into::into),
        Command::WriteState { dir } => crate::fs::write_state(&dir).map(success).map_err(Into::into),
        Command::CloseEvents => crate::fs::close_events().map(success).map_err(Into::into),
        Command::ClientMemory => crate::engine::client_memory::run().map(success).map_err(Into::into),
    };
    // A daemon has done this already, and must end soon.
    if !is_daemon && !crate::attach::close_files(UNLINK) {
        tracing::warn!(
            "probes of files could not be removed because a process blocks it; they end with this process"
        );
    }
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{} {}", style::error("error:"), style::chain(&error));
            let is_usage = error
                .downcast_ref::<RecordError>()
                .is_some_and(|error| error.is_usage() || explains && error.kind() == RecordErrorKind::Probe);
            ExitCode::from(if is_usage { USAGE } else { 1 })
        }
    }
}

/// Whether the reader of the output closed it (`tracer list | head`), which is not an error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
