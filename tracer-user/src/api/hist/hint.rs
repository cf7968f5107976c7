//! Suggestions for an invalid histogram: the line after the caret. The kernel has no such suggestions.

use super::error::{Cause, HistError};
use crate::{
    event::Format,
    lang::{
        Span,
        hist::{Entry, ErrorKind, Refusal},
    },
    plan::resolve::nearest,
};

/// The error for an unknown event, with the nearest of `names`.
pub(super) fn no_event(event: &str, names: impl Iterator<Item = String>) -> HistError {
    let hint = match nearest(event, names) {
        Some(name) => format!("; did you mean `{name}`?"),
        None if event.contains('=') => "; each histogram follows its event".to_owned(),
        None => "; `tracer list` shows what there is".to_owned(),
    };
    Cause::NoEvent(event.to_owned(), hint).into()
}

/// Names that a command can use.
pub(super) struct Known<'a> {
    pub(super) format: Option<&'a Format>,
    pub(super) variables: Vec<String>,
    /// The content of `synthetic_events`.
    pub(super) synthetic: Vec<u8>,
}

/// Keys and values of every event.
const COMMON: [&str; 6] =
    ["common_timestamp", "common_cpu", "common_stacktrace", "common_comm", "common_pid", "hitcount"];

const MODIFIERS: [&str; 12] = [
    "hex",
    "sym",
    "sym-offset",
    "execname",
    "syscall",
    "log2",
    "buckets",
    "usecs",
    "percent",
    "graph",
    "stacktrace",
    "descending",
];

impl Known<'_> {
    /// A suggestion, on a line of its own after a newline; empty if no name is near.
    pub(super) fn hint(&self, refusal: &Refusal, command: &str) -> String {
        let found = refusal.log().entries().iter().find_map(|entry| match entry {
            Entry::Hist { kind, span, position } => {
                // The logged command begins with `hist:`.
                Some((*kind, span.unwrap_or(Span::empty(position.saturating_sub("hist:".len())))))
            }
            Entry::Filter(_) => None,
        });
        let Some((kind, span)) = found else { return String::new() };
        let culprit = word(command, span.start, span.end);
        self.meant(kind, culprit, command).map_or_else(String::new, |meant| format!("\n  {meant}"))
    }

    fn meant(&self, kind: ErrorKind, culprit: &str, command: &str) -> Option<String> {
        let did_you = |name: String| format!("did you mean `{name}`?");
        let name = culprit.trim_start_matches('$');
        let head = name.split(['.', '=']).next().unwrap_or_default();
        match kind {
            ErrorKind::FieldNotFound | ErrorKind::ParamNotFound | ErrorKind::FieldVarParseFailed => {
                let fields = self.format.into_iter().flat_map(|format| &format.fields);
                let fields = fields.map(|field| field.name.clone()).chain(COMMON.map(str::to_owned));
                nearest(head, fields).map(did_you)
            }
            ErrorKind::VarNotFound | ErrorKind::OnxVarNotFound => {
                match nearest(name, self.variables.iter().cloned()) {
                    Some(near) => Some(did_you(format!("${near}"))),
                    None if self.variables.is_empty() => {
                        Some("a variable must be defined by an earlier histogram".to_owned())
                    }
                    None => Some(format!("there are ${}", self.variables.join(", $"))),
                }
            }
            ErrorKind::BadFieldModifier | ErrorKind::InvalidSortModifier => {
                let modifier = name.rsplit('.').next().unwrap_or_default();
                let known = if kind == ErrorKind::InvalidSortModifier {
                    &["ascending", "descending"][..]
                } else {
                    &MODIFIERS[..]
                };
                nearest(modifier, known.iter().map(|name| (*name).to_owned()))
                    .map(|name| did_you(format!(".{name}")))
            }
            ErrorKind::SynthEventNotFound | ErrorKind::ActionNotFound => {
                let names = self.definitions().map(|(name, _)| name);
                let near = nearest(head, names.chain(["save", "snapshot", "trace"].map(str::to_owned)));
                near.map(did_you).or_else(|| Some(format!("--synth '{head} TYPE FIELD; ...' defines one")))
            }
            ErrorKind::SynthTypeMismatch | ErrorKind::SynthCountMismatch => {
                let named = |(name, _): &(String, String)| {
                    command.contains(&format!(".{name}(")) || command.contains(&format!("trace({name}"))
                };
                let mut found = self.definitions().filter(named);
                found.next().map(|(_, line)| format!("it is `{line}`"))
            }
            ErrorKind::InvalidSortField => Some("a table is sorted by its keys and values".to_owned()),
            _ => None,
        }
    }

    /// Synthetic events: name and definition.
    fn definitions(&self) -> impl Iterator<Item = (String, String)> {
        let text = String::from_utf8_lossy(&self.synthetic).into_owned();
        let lines: Vec<String> = text.lines().map(|line| line.replacen('\t', " ", 1)).collect();
        lines.into_iter().filter_map(|line| Some((line.split(' ').next()?.to_owned(), line)))
    }
}

/// The text at a place of a command; for an empty place, the word that begins there.
fn word(command: &str, start: usize, end: usize) -> &str {
    let behind = command.get(start..).unwrap_or_default();
    let length = end.saturating_sub(start);
    if length > 0 {
        return behind.get(..length).unwrap_or(behind);
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.');
    behind.split(|c| !is_word(c)).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lang::hist::{Fixed, Set, World};

    fn hint(command: &str) -> String {
        let world = Fixed::small();
        let event = world.event("test", "start").unwrap();
        let refusal = Set::default().apply(&event, Some(command.as_bytes()), false, &world).unwrap_err();
        let synthetic = b"latency\tu64 lat; pid_t pid\n".to_vec();
        let known = Known { format: Some(&event), variables: vec!["ts0".to_owned()], synthetic };
        known.hint(&refusal, command)
    }

    #[test]
    fn near_names_are_suggested() {
        for (command, expected) in [
            ("keys=pidd", "\n  did you mean `pid`?"),
            ("keys=pid.exename", "\n  did you mean `.execname`?"),
            ("keys=pid:x=$ts", "\n  did you mean `$ts0`?"),
            ("keys=pid:x=$quite_else", "\n  there are $ts0"),
            ("keys=pid:sort=pid.descnding", "\n  did you mean `.descending`?"),
            ("keys=pid:x=1:onmax($x).latenzy($x)", "\n  did you mean `latency`?"),
            ("keys=pid:x=1:onmax($x).other($x)", "\n  --synth 'other TYPE FIELD; ...' defines one"),
            ("keys=nothing_that_is_near", ""),
        ] {
            assert_eq!(hint(command), expected, "{command}");
        }
    }

    #[test]
    fn the_word_at_a_position_is_found() {
        assert_eq!(word("a:b_c(d)", 2, 2), "b_c");
        assert_eq!(word("a:b_c(d)", 2, 4), "b_");
        assert_eq!(word("a", 7, 9), "");
    }
}
