//! Parser of the trigger language: one line written to the `trigger` file of an event.
//!
//! A line has a command, an argument and a filter, as in `traceoff:3 if pid == 1` or
//! `enable_event:sched:sched_switch:5`. A leading `!` removes the trigger.
//!
//! The kernel (`trigger_process_regex()`, `kernel/trace/trace_events_trigger.c`) reads the line piece by piece and
//! looks up events in between. The order of its errors therefore depends on the existing events. [`read`] only splits
//! the line into pieces. The accessors check each piece on demand, so that the caller can follow the kernel's order.
//!
//! The `hist` module parses histograms: [`Command::Hist`] holds their text unchanged.

use rustix::io::Errno;

use super::{ctype, number};

/// A line must be shorter than this many bytes (`event_trigger_regex_write()`; 4 KiB pages).
pub const WRITE_MAX: usize = 4096;

/// Count of a trigger without a limit, as in the kernel.
pub const UNLIMITED: u64 = u64::MAX;

/// The action of a trigger that has no object of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SimpleAction {
    /// Enables recording.
    TraceOn,
    /// Disables recording after the event is recorded.
    TraceOff,
    /// Takes a snapshot.
    Snapshot,
    /// Records the kernel stack after the event.
    StackTrace,
}

impl SimpleAction {
    /// All actions, in the order of the kernel's list.
    pub const ALL: [Self; 4] = [Self::TraceOn, Self::TraceOff, Self::Snapshot, Self::StackTrace];

    /// Name of the command.
    pub fn name(self) -> &'static str {
        match self {
            Self::TraceOn => "traceon",
            Self::TraceOff => "traceoff",
            Self::Snapshot => "snapshot",
            Self::StackTrace => "stacktrace",
        }
    }

    /// Whether an event can have only one trigger of the two (`ETT_TRACE_ONOFF` and similar types).
    pub fn excludes(self, other: Self) -> bool {
        let class = |act| if act == Self::TraceOn { Self::TraceOff } else { act };
        class(self) == class(other)
    }
}

/// A trigger that enables or disables another event or its histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Switch {
    /// Whether the trigger enables.
    pub enable: bool,
    /// Whether the target is the histograms of the event.
    pub hist: bool,
}

impl Switch {
    /// All switches, in the order of the kernel's list.
    pub const ALL: [Self; 4] = [
        Self { enable: true, hist: false },
        Self { enable: false, hist: false },
        Self { enable: true, hist: true },
        Self { enable: false, hist: true },
    ];

    /// Name of the command.
    pub fn name(self) -> &'static str {
        match (self.enable, self.hist) {
            (true, false) => "enable_event",
            (false, false) => "disable_event",
            (true, true) => "enable_hist",
            (false, true) => "disable_hist",
        }
    }
}

/// Name of the histogram command.
pub const HIST: &str = "hist";

/// A parsed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Whether the line removes the trigger.
    pub remove: bool,
    /// The command.
    pub command: Command<'a>,
}

/// The command of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `traceon` and similar commands.
    Simple(SimpleAction, Argument<'a>),
    /// `enable_event` and similar commands.
    Switch(Switch, Target<'a>, Argument<'a>),
    /// A histogram: the text after `hist` without leading white space, or `None` if it is empty.
    Hist(Option<&'a [u8]>),
}

/// The event that a trigger enables or disables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The system.
    pub system: &'a [u8],
    /// Name of the event.
    pub event: &'a [u8],
}

/// The argument of a command: its count and its filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Argument<'a> {
    number: Option<&'a [u8]>,
    condition: Option<&'a [u8]>,
}

impl<'a> Argument<'a> {
    /// Parses the number of times that the trigger acts; [`UNLIMITED`] without a limit.
    ///
    /// # Errors
    /// `EINVAL` if the text is not a number, `ERANGE` if the number does not fit.
    pub fn count(&self) -> Result<u64, Errno> {
        let Some(text) = self.number else { return Ok(UNLIMITED) };
        // The kernel ignores the text after a second colon.
        let text = text.split(|byte| *byte == b':').next().unwrap_or_default();
        number::read_unsigned(text, 0)
    }

    /// Returns the text of the filter with its leading blanks.
    ///
    /// # Errors
    /// `EINVAL` if the text does not begin with `if`, or ends there.
    pub fn filter(&self) -> Result<Option<&'a [u8]>, Errno> {
        let Some(text) = self.condition else { return Ok(None) };
        match split(text, is_blank) {
            (b"if", Some(filter)) => Ok(Some(filter)),
            _ => Err(Errno::INVAL),
        }
    }
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// `strsep()`: returns the text before the first delimiter, and the text after it if there is a delimiter.
fn split(text: &[u8], delimits: impl Fn(u8) -> bool) -> (&[u8], Option<&[u8]>) {
    ctype::split_once(text, delimits).map_or((text, None), |(front, behind)| (front, Some(behind)))
}

/// Removes leading white space. Returns `None` if the text is empty.
fn trimmed(text: &[u8]) -> Option<&[u8]> {
    let text = ctype::trim_start(text);
    (!text.is_empty()).then_some(text)
}

/// Parses a write to a `trigger` file.
///
/// # Errors
/// `EINVAL` if the line is too long, the command is unknown or its object is missing.
pub fn read(written: &[u8]) -> Result<Line<'_>, Errno> {
    if written.len() >= WRITE_MAX {
        return Err(Errno::INVAL);
    }
    let text = ctype::trim_start(ctype::trim_end(written));
    let (word, rest) = split(text, |byte| byte == b':' || is_blank(byte));
    let rest = rest.and_then(trimmed);
    let (remove, word) = word.strip_prefix(b"!").map_or((false, word), |word| (true, word));
    let command = if let Some(act) = SimpleAction::ALL.into_iter().find(|act| act.name().as_bytes() == word) {
        Command::Simple(act, optional(rest))
    } else if let Some(switch) = Switch::ALL.into_iter().find(|switch| switch.name().as_bytes() == word) {
        let (target, argument) = required(rest.ok_or(Errno::INVAL)?)?;
        Command::Switch(switch, target, argument)
    } else if word == HIST.as_bytes() {
        Command::Hist(rest)
    } else {
        return Err(Errno::INVAL);
    };
    Ok(Line { remove, command })
}

/// `[N] [if FILTER]`: a text that does not begin with a digit is the filter.
fn optional(rest: Option<&[u8]>) -> Argument<'_> {
    match rest {
        Some(text) if text.first().is_some_and(u8::is_ascii_digit) => {
            let (number, behind) = split(text, is_blank);
            Argument { number: Some(number), condition: behind.and_then(trimmed) }
        }
        condition => Argument { number: None, condition },
    }
}

/// `SYSTEM:EVENT[:N] [if FILTER]`
fn required(text: &[u8]) -> Result<(Target<'_>, Argument<'_>), Errno> {
    let (parameter, behind) = split(text, is_blank);
    let (system, event) = split(parameter, |byte| byte == b':');
    let (event, number) = split(event.ok_or(Errno::INVAL)?, |byte| byte == b':');
    Ok((Target { system, event }, Argument { number, condition: behind.and_then(trimmed) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats the command, count and filter of a line.
    fn shown(text: &str) -> String {
        let number = |errno| if errno == Errno::RANGE { "RANGE" } else { "INVAL" }.to_owned();
        let line = match read(text.as_bytes()) {
            Ok(line) => line,
            Err(errno) => return number(errno),
        };
        let utf8 = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let count = |argument: Argument<'_>| match argument.count() {
            Ok(UNLIMITED) => "*".to_owned(),
            Ok(count) => count.to_string(),
            Err(errno) => number(errno),
        };
        let filter = |argument: Argument<'_>| match argument.filter() {
            Ok(filter) => filter.map_or("-".to_owned(), |text| format!("[{}]", utf8(text))),
            Err(errno) => number(errno),
        };
        let sign = if line.remove { "!" } else { "" };
        match line.command {
            Command::Simple(act, argument) => {
                format!("{sign}{} {} {}", act.name(), count(argument), filter(argument))
            }
            Command::Switch(switch, target, argument) => format!(
                "{sign}{} {}/{} {} {}",
                switch.name(),
                utf8(target.system),
                utf8(target.event),
                count(argument),
                filter(argument)
            ),
            Command::Hist(text) => format!("{sign}hist {}", text.map_or("-".to_owned(), utf8)),
        }
    }

    #[test]
    fn lines() {
        for (text, expected) in [
            ("traceoff", "traceoff * -"),
            (" traceoff:3\n", "traceoff 3 -"),
            ("traceoff 0x10", "traceoff 16 -"),
            ("traceoff: \t 010", "traceoff 8 -"),
            ("traceoff:", "traceoff * -"),
            ("traceon:3 if pid == 1", "traceon 3 [pid == 1]"),
            ("traceon if  pid == 1", "traceon * [ pid == 1]"),
            ("traceon:if\tx", "traceon * [x]"),
            ("traceon:3:4", "traceon 3 -"),
            ("traceon:3x", "traceon INVAL -"),
            ("traceon:99999999999999999999", "traceon RANGE -"),
            ("traceon:18446744073709551615", "traceon * -"),
            ("traceon:-1", "traceon * INVAL"),
            ("traceon:3 pid == 1", "traceon 3 INVAL"),
            ("traceon if", "traceon * INVAL"),
            ("traceon iff x", "traceon * INVAL"),
            ("!snapshot", "!snapshot * -"),
            ("!!snapshot", "INVAL"),
            ("! snapshot", "INVAL"),
            ("", "INVAL"),
            ("\n", "INVAL"),
            ("tracenow", "INVAL"),
            ("stacktrace\0:3", "stacktrace * -"),
            ("enable_event", "INVAL"),
            ("enable_event:", "INVAL"),
            ("enable_event:sched", "INVAL"),
            ("enable_event:sched:", "enable_event sched/ * -"),
            ("enable_event:a:b", "enable_event a/b * -"),
            ("enable_event:a:b:", "enable_event a/b INVAL -"),
            ("enable_event a:b:2:x if c", "enable_event a/b 2 [c]"),
            ("!disable_event:a:b:2", "!disable_event a/b 2 -"),
            ("enable_hist:a:b", "enable_hist a/b * -"),
            ("hist:keys=a if b", "hist keys=a if b"),
            ("!hist", "!hist -"),
        ] {
            assert_eq!(shown(text), expected, "{text:?}");
        }
        assert_eq!(shown(&" ".repeat(4096)), "INVAL");
        assert_eq!(shown(&format!("traceon{}", " ".repeat(4088))), "traceon * -");
    }

    #[test]
    fn triggers_of_one_class() {
        assert!(
            SimpleAction::TraceOn.excludes(SimpleAction::TraceOff)
                && SimpleAction::Snapshot.excludes(SimpleAction::Snapshot)
        );
        assert!(!SimpleAction::Snapshot.excludes(SimpleAction::StackTrace));
    }
}
