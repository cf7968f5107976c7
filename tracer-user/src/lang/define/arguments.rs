//! Parses the arguments of a probe, from the third word on.

use rustix::io::Errno;

use super::super::Span;
use super::super::facts::{Facts, Feature};
use super::super::fetch::{ARGS_MAX, Checked, Checker, ErrorKind, Stop};
use super::error::{Log, Refusal};
use super::expand::{self, Word};
use super::words::Line;

/// Expands meta arguments, then parses the arguments.
pub(super) fn expanded(
    line: &Line<'_>,
    log: &mut Log,
    checker: &mut Checker<'_>,
    facts: &dyn Facts,
) -> Result<Vec<Checked>, Refusal> {
    let plain = expand::plain(line, 2);
    let made = if facts.language().has(Feature::BtfArgs) {
        expand::arguments(&plain, checker).map_err(|(word, stop)| Refusal::in_word(line, log, word, &stop))?
    } else {
        None
    };
    let in_place = made.is_none();
    let mut words = made.unwrap_or(plain);
    count(words.len(), line, log, facts)?;
    let replaced = expand::dentries(&mut words, facts)
        .map_err(|stop| Refusal::in_expanded_word(line, log, 2, 2, false, &stop))?;
    if replaced && in_place {
        // The kernel writes into the words that its log shows.
        for word in &words {
            if let Some(shown) = log.words.get_mut(word.origin) {
                shown.clone_from(&word.text);
            }
        }
    }
    each(&words, line, log, checker)
}

/// Parses words without expansion.
pub(super) fn each(
    words: &[Word],
    line: &Line<'_>,
    log: &Log,
    checker: &mut Checker<'_>,
) -> Result<Vec<Checked>, Refusal> {
    let check = |(at, word): (usize, &Word)| {
        let refused = |stop| Refusal::in_expanded_word(line, log, at + 2, word.origin, word.own, &stop);
        checker.add(&word.text).map_err(refused)
    };
    words.iter().enumerate().map(check).collect()
}

pub(super) fn count(count: usize, line: &Line<'_>, log: &Log, facts: &dyn Facts) -> Result<(), Refusal> {
    if count <= ARGS_MAX {
        return Ok(());
    }
    let is_logged = facts.language().has(Feature::ArgumentCountError);
    let kind = if is_logged { ErrorKind::TooManyArguments } else { ErrorKind::ArgumentsUnlogged };
    Err(Refusal::in_word(line, log, 2, &Stop::at(Errno::TOOBIG, kind, Span::empty(0))))
}
