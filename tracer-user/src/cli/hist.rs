//! `tracer hist`.

use std::{
    fs::File,
    io::{IsTerminal, Write},
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::{args::HistArgs, record::Signals};
use crate::engine::{
    confine::{self, Role},
    facts::Facts,
    hist::{
        HistError, Histogram, Options,
        several::{HistRequest, Histograms},
    },
};

/// How often it is looked whether the command has ended.
const TICK: Duration = Duration::from_millis(20);

/// Puts the cursor into the corner; takes away what is right of it in a line, or below.
const TO_THE_TOP: &[u8] = b"\x1b[H";
const REST_OF_LINE: &[u8] = b"\x1b[K";
const REST: &[u8] = b"\x1b[J";

/// What counts.
enum Counting {
    /// A histogram that needs nothing but its event.
    One(Box<Histogram>),
    /// Others.
    Several(Box<Histograms>),
}

pub(super) fn run(args: &HistArgs) -> anyhow::Result<ExitCode> {
    let facts = Arc::new(Facts::running()?);
    let signals = Signals::install().context("cannot catch signals")?;
    let mut counting = start(args, &facts)?;
    let ready = args.ready_fd.map(|fd| File::options().write(true).open(format!("/proc/self/fd/{fd}")));
    // The command has the caller's privileges, so it comes first.
    let mut child = match args.command.split_first() {
        Some((program, rest)) => {
            Some(Command::new(program).args(rest).spawn().with_context(|| program.display().to_string())?)
        }
        None => None,
    };
    match &counting {
        Counting::One(histogram) => histogram.prepare(&facts),
        Counting::Several(histograms) => histograms.prepare(),
    }
    confine::confine(Role::Histogram);
    if let Some(ready) = ready {
        ready?.write_all(b"\n")?;
    }
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
            print(&counting.table(args, &facts)?, args, true)?;
        }
        std::thread::sleep(left.min(TICK));
    }
    print(&counting.table(args, &facts)?, args, false)?;
    if let Some(mut child) = child {
        // It ends by itself, as it would without us.
        let _ = child.try_wait();
    }
    Ok(code)
}

fn start(args: &HistArgs, facts: &Arc<Facts>) -> anyhow::Result<Counting> {
    let wanted = HistRequest {
        synthetic: args.synthetic.clone(),
        dynamic: args.probes.clone(),
        histograms: pairs(&args.histograms)?,
    };
    if let ([(event, histogram)], true) =
        (&wanted.histograms[..], wanted.synthetic.is_empty() && wanted.dynamic.is_empty())
    {
        let options = Options { tracepoint: args.tracepoints, own: args.own };
        match Histogram::start(event, histogram, options, facts) {
            Ok(histogram) => {
                tracing::info!(via = ?histogram.hook.via, why = %histogram.hook.reason, "counting");
                return Ok(Counting::One(Box::new(histogram)));
            }
            // Snapshots, and histograms on other events for their fields.
            Err(HistError::NotYet(_)) if !args.own => {}
            Err(error) => return Err(error.into()),
        }
    }
    if args.own {
        bail!("--own wants one event that is defined nowhere");
    }
    Ok(Counting::Several(Box::new(Histograms::start(&wanted, Arc::clone(facts))?)))
}

/// Takes `EVENT HISTOGRAM [if FILTER]` apart, as often as it is there.
fn pairs(words: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let filter = match word.as_str() {
            "if" => Some(words.next().context("no filter behind `if`")?.as_str()),
            word => word.strip_prefix("if ").map(str::trim_start),
        };
        match (filter, pairs.last_mut()) {
            (Some(filter), Some((_, histogram))) => histogram.extend([" if ", filter]),
            (Some(_), None) => bail!("`if` stands behind a histogram"),
            (None, _) => {
                let histogram = words.next().with_context(|| format!("no histogram behind `{word}`"))?;
                pairs.push((word.clone(), histogram.clone()));
            }
        }
    }
    Ok(pairs)
}

impl Counting {
    fn table(&mut self, args: &HistArgs, facts: &Facts) -> Result<Vec<u8>, HistError> {
        match self {
            Self::One(histogram) if args.json => histogram.json(facts),
            Self::One(histogram) => histogram.text(facts),
            Self::Several(histograms) if args.json => histograms.json(args.all),
            Self::Several(histograms) => histograms.text(args.all),
        }
    }
}

/// Prints a table: over the one before where somebody watches, and then no more of it than there are lines.
fn print(text: &[u8], args: &HistArgs, goes_on: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if args.watch.is_none() || args.json || !out.is_terminal() {
        out.write_all(text)?;
        out.flush()?;
        return Ok(());
    }
    let height = rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_row));
    let shown = if goes_on { fitting(text, height) } else { text.to_vec() };
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

/// As many lines as a screen of this height has, the last of which says how many are left out.
fn fitting(text: &[u8], height: usize) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n').count();
    // Below the last one the cursor stands.
    let room = height.saturating_sub(1);
    if height == 0 || lines <= room {
        return text.to_vec();
    }
    let kept = room.saturating_sub(1);
    let mut shown: Vec<u8> =
        text.split_inclusive(|byte| *byte == b'\n').take(kept).flatten().copied().collect();
    shown.extend(format!("... {} lines more\n", lines - kept).bytes());
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
    fn words_come_in_pairs() {
        let pair = |event: &str, histogram: &str| (event.to_owned(), histogram.to_owned());
        assert_eq!(
            parsed(&["a:b", "keys=x", "if", "x > 1", "c:d", "keys=y:vals=z", "if z", "e:f", "keys=w if w"]),
            Ok(vec![
                pair("a:b", "keys=x if x > 1"),
                pair("c:d", "keys=y:vals=z if z"),
                pair("e:f", "keys=w if w")
            ])
        );
        assert_eq!(parsed(&["a:b"]), Err("no histogram behind `a:b`".to_owned()));
        assert_eq!(parsed(&["if", "x"]), Err("`if` stands behind a histogram".to_owned()));
        assert_eq!(parsed(&["a:b", "keys=x", "if"]), Err("no filter behind `if`".to_owned()));
    }

    #[test]
    fn a_screen_is_filled_and_not_scrolled() {
        let text = b"1\n2\n3\n4\n";
        assert_eq!(fitting(text, 0), text);
        assert_eq!(fitting(text, 5), text);
        assert_eq!(fitting(text, 4), b"1\n2\n... 2 lines more\n");
        assert_eq!(fitting(text, 1), b"... 4 lines more\n");
    }
}
