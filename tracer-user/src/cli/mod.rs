//! The command line: clap's structures, one file a command, errors shown with their causes.

mod args;
mod background;
mod doctor;
mod exec;
mod explain;
mod hist;
mod list;
mod log;
mod mount;
mod notify;
mod record;
mod style;

use std::{io::IsTerminal, process::ExitCode, time::Duration};

use clap::Parser;

use args::{Args, Command};

/// Exit code of a command line that makes no sense, as clap's own.
const USAGE: u8 = 2;

/// How long probes of files may take to be taken off at the end of a command.
const UNLINK: Duration = Duration::from_secs(5);

/// Runs the command line and gives the exit code: 0 done, 1 failed, 2 wrong usage; `record -- COMMAND` gives the
/// command's own.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("TRACER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // A daemon's messages end up in a file or a log.
    let stays = !matches!(&args.command, Command::Mount(args) if args.detached || args.log.is_some());
    let ansi = stays && std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(|| log::Log).init();
    let is_daemon = matches!(&args.command, Command::Mount(_));
    let result = match args.command {
        Command::Record(args) => record::run(&args),
        Command::Hist(args) => hist::run(&args),
        Command::List(args) => list::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Explain(args) => explain::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Mount(args) => mount::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Exec(args) => exec::run(&args),
        Command::OpenFiles => crate::fs::open_files().map(|()| ExitCode::SUCCESS).map_err(Into::into),
        Command::CloseEvents => crate::fs::close_events().map(|()| ExitCode::SUCCESS).map_err(Into::into),
        Command::ClientMemory => {
            crate::engine::client_memory::run().map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
    };
    // A daemon has done so, and must not take longer.
    if !is_daemon && !crate::attach::close_files(UNLINK) {
        tracing::warn!("a process keeps probes of its files from being taken off; they go with this process");
    }
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{} {}", style::error("error:"), style::chain(&error));
            let usage = error.downcast_ref::<crate::engine::selection::SelectError>().is_some()
                || error
                    .downcast_ref::<crate::api::RecordError>()
                    .is_some_and(crate::api::RecordError::is_usage);
            ExitCode::from(if usage { USAGE } else { 1 })
        }
    }
}

/// Whoever reads our output went away (`tracer list | head`): that is not an error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
