//! `tracer hist`: counts hits in the kernel and prints the tables.

use std::{
    fs::File,
    io::{IsTerminal, Write},
    path::PathBuf,
    process::{Command, ExitCode},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::args::HistArgs;
use crate::{
    api::{HistError, Histograms, HistogramsBuilder},
    engine::confine::{self, Role},
};

/// How often to check whether the command has ended.
const TICK: Duration = Duration::from_millis(20);

/// Control sequences: move the cursor to the top left, clear the rest of the line, clear the rest of the screen.
const TO_THE_TOP: &[u8] = b"\x1b[H";
const REST_OF_LINE: &[u8] = b"\x1b[K";
const REST: &[u8] = b"\x1b[J";

pub(super) fn run(args: &HistArgs) -> anyhow::Result<ExitCode> {
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stopped)).context("cannot catch signals")?;
    }
    let mut histograms = start(args)?;
    let ready = args.ready_fd.map(|fd| File::options().write(true).open(format!("/proc/self/fd/{fd}")));
    // The command needs the caller's privileges, so it starts before they are dropped.
    let spawn = |(program, rest): (&PathBuf, &[PathBuf])| {
        Command::new(program).args(rest).spawn().with_context(|| program.display().to_string())
    };
    let mut child = args.command.split_first().map(spawn).transpose()?;
    histograms.prepare();
    confine::confine(Role::Histogram);
    if let Some(ready) = ready {
        ready?.write_all(b"\n")?;
    }
    let (start, mut shown) = (Instant::now(), Instant::now());
    let mut code = ExitCode::SUCCESS;
    loop {
        let left = args.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(start.elapsed()));
        if left.is_zero() || stopped.load(Ordering::Relaxed) {
            break;
        }
        if let Some(status) = child.as_mut().map(std::process::Child::try_wait).transpose()?.flatten() {
            code = super::exit_code(status);
            break;
        }
        if args.watch.is_some_and(|every| shown.elapsed() >= every) {
            shown = Instant::now();
            print(&table(&mut histograms, args)?, args, true)?;
        }
        std::thread::sleep(left.min(TICK));
    }
    print(&table(&mut histograms, args)?, args, false)?;
    let missed = histograms.missed();
    if missed > 0 {
        eprintln!("missed={missed}: the kernel ran no program for so many hits, before filters");
    }
    // The command continues if it has not ended.
    Ok(code)
}

fn start(args: &HistArgs) -> anyhow::Result<Histograms> {
    let mut builder = Histograms::builder().own(args.own).perf_tracepoints_only(args.tracepoints);
    builder = args.synthetic.iter().fold(builder, HistogramsBuilder::synthetic);
    builder = args.probes.iter().fold(builder, HistogramsBuilder::probe);
    for (event, histogram) in pairs(&args.histograms)? {
        builder = builder.histogram(event, histogram);
    }
    let histograms = builder.start()?;
    for (event, hook) in histograms.hooks() {
        tracing::info!(event, ?hook, "counting");
    }
    Ok(histograms)
}

/// Splits the words into pairs of event and histogram. A filter after `if` becomes a part of its histogram.
fn pairs(words: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let filter = match word.as_str() {
            "if" => Some(words.next().context("no filter after `if`")?.as_str()),
            word => word.strip_prefix("if ").map(str::trim_start),
        };
        match (filter, pairs.last_mut()) {
            (Some(filter), Some((_, histogram))) => histogram.extend([" if ", filter]),
            (Some(_), None) => bail!("`if` must follow a histogram"),
            (None, _) => {
                let histogram = words.next().with_context(|| format!("no histogram after `{word}`"))?;
                pairs.push((word.clone(), histogram.clone()));
            }
        }
    }
    Ok(pairs)
}

fn table(histograms: &mut Histograms, args: &HistArgs) -> Result<Vec<u8>, HistError> {
    if args.json { histograms.json(args.all) } else { histograms.text(args.all) }
}

/// Prints a table. With `--watch` on a terminal it replaces the previous one, and is cut to the height of the screen.
fn print(text: &[u8], args: &HistArgs, continues: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.watch.is_none() || args.json || !out.is_terminal() {
        out.write_all(text)?;
        out.flush()?;
        return Ok(());
    }
    let height = rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_row));
    let shown = if continues { fitting(text, height) } else { text.to_vec() };
    let mut screen = TO_THE_TOP.to_vec();
    for line in shown.split_inclusive(|byte| *byte == b'\n') {
        let end = line.strip_suffix(b"\n");
        screen.extend(end.unwrap_or(line));
        screen.extend(REST_OF_LINE);
        screen.extend(end.map(|_| b'\n'));
    }
    screen.extend(REST);
    out.write_all(&screen)?;
    out.flush()?;
    Ok(())
}

/// The lines that fit a screen of this height. If some do not fit, the last line counts them.
fn fitting(text: &[u8], height: usize) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n').count();
    // The cursor needs the line after the last.
    let available = height.saturating_sub(1);
    if height == 0 || lines <= available {
        return text.to_vec();
    }
    let shown_lines = available.saturating_sub(1);
    let mut shown: Vec<u8> =
        text.split_inclusive(|byte| *byte == b'\n').take(shown_lines).flatten().copied().collect();
    shown.extend(format!("... {} lines more\n", lines - shown_lines).bytes());
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Vec<(String, String)>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        pairs(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn words_are_split_into_pairs_of_event_and_histogram() {
        let pair = |event: &str, histogram: &str| (event.to_owned(), histogram.to_owned());
        assert_eq!(
            parsed(&["a:b", "keys=x", "if", "x > 1", "c:d", "keys=y:vals=z", "if z", "e:f", "keys=w if w"]),
            Ok(vec![
                pair("a:b", "keys=x if x > 1"),
                pair("c:d", "keys=y:vals=z if z"),
                pair("e:f", "keys=w if w")
            ])
        );
        assert_eq!(parsed(&["a:b"]), Err("no histogram after `a:b`".to_owned()));
        assert_eq!(parsed(&["if", "x"]), Err("`if` must follow a histogram".to_owned()));
        assert_eq!(parsed(&["a:b", "keys=x", "if"]), Err("no filter after `if`".to_owned()));
    }

    #[test]
    fn a_table_is_cut_to_the_height_of_the_screen() {
        let text = b"1\n2\n3\n4\n";
        assert_eq!(fitting(text, 0), text);
        assert_eq!(fitting(text, 5), text);
        assert_eq!(fitting(text, 4), b"1\n2\n... 2 lines more\n");
        assert_eq!(fitting(text, 1), b"... 4 lines more\n");
    }
}
