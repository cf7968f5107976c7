//! `tracer hist`.

use std::{
    fs::File,
    io::{IsTerminal, Write},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::Context;

use super::{args::HistArgs, record::Signals};
use crate::control::{
    facts::Facts,
    hist::{Histogram, Options},
};

/// How often it is looked whether the command has ended.
const TICK: Duration = Duration::from_millis(20);

/// Puts the cursor into the corner and takes away what is below it.
const FROM_THE_TOP: &[u8] = b"\x1b[H\x1b[J";

pub(super) fn run(args: &HistArgs) -> anyhow::Result<ExitCode> {
    let facts = Facts::running()?;
    let signals = Signals::install().context("cannot catch signals")?;
    let options = Options { tracepoint: args.tracepoints, own: args.own };
    let histogram = Histogram::start(&args.event, &args.histogram, options, &facts)?;
    tracing::info!(via = ?histogram.hook.via, why = %histogram.hook.reason, "counting");
    if let Some(fd) = args.ready_fd {
        File::options().write(true).open(format!("/proc/self/fd/{fd}"))?.write_all(b"\n")?;
    }
    let mut child = match args.command.split_first() {
        Some((program, rest)) => {
            Some(Command::new(program).args(rest).spawn().with_context(|| program.display().to_string())?)
        }
        None => None,
    };
    let (start, mut shown) = (Instant::now(), Instant::now());
    let mut code = ExitCode::SUCCESS;
    loop {
        let left = args.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(start.elapsed()));
        if left.is_zero() || signals.came() {
            break;
        }
        if let Some(status) = child.as_mut().map(std::process::Child::try_wait).transpose()?.flatten() {
            code = ExitCode::from(status.code().unwrap_or(1) as u8);
            break;
        }
        if args.watch.is_some_and(|every| shown.elapsed() >= every) {
            shown = Instant::now();
            print(&histogram, &facts, args.json, true)?;
        }
        std::thread::sleep(left.min(TICK));
    }
    print(&histogram, &facts, args.json, args.watch.is_some())?;
    if let Some(mut child) = child {
        // It ends by itself, as it would without us.
        let _ = child.try_wait();
    }
    Ok(code)
}

fn print(histogram: &Histogram, facts: &Facts, json: bool, again: bool) -> anyhow::Result<()> {
    let text = if json { histogram.json(facts)? } else { histogram.text(facts)? };
    let mut out = std::io::stdout().lock();
    if again && !json && out.is_terminal() {
        out.write_all(FROM_THE_TOP)?;
    }
    out.write_all(&text)?;
    out.flush()?;
    Ok(())
}
