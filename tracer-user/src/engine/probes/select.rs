//! Dynamic events that are named on the command line: a definition, perhaps ` if FILTER`.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use super::{hint::hint, is_probed_by_events};
use crate::{
    engine::{facts::Facts, selection::Selected},
    event::{Format, dynamic::Target},
    lang::{
        define::{Change, File, Line, Probe, Refusal, Set},
        facts::Machine,
        filter::FilterError,
    },
    plan::resolve,
};

/// The first id of events that the kernel does not know: far above those that it has.
const FIRST_ID: u16 = 0x8000;

/// Why a definition is none.
#[derive(Debug)]
pub enum DefineError {
    /// It is refused.
    Refused {
        /// Why.
        refusal: Box<Refusal>,
        /// What helps.
        hint: Option<String>,
    },
    /// Its filter is.
    Filter {
        /// The event.
        event: String,
        /// Why.
        error: Box<FilterError>,
    },
    /// It defines nothing.
    Nothing(String),
    /// There are no more ids.
    TooMany,
}

/// The id of an event that the kernel does not know, by how many there were before; none when all are used.
pub fn id(before: usize) -> Option<u16> {
    FIRST_ID.checked_add(u16::try_from(before).ok()?).filter(|id| *id < tracer_abi::control::FIRST)
}

impl fmt::Display for DefineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { refusal, hint } => {
                write!(f, "{refusal}")?;
                hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n{hint}"))
            }
            Self::Filter { event, error } => write!(f, "filter of {event}: {error}"),
            Self::TooMany => f.write_str("there are more events than ids for them"),
            Self::Nothing(text) => write!(
                f,
                "`{text}` defines nothing: a definition is `p|r|f|t|e[:[GROUP/]EVENT] WHERE [ARGS][ if FILTER]`"
            ),
        }
    }
}

impl std::error::Error for DefineError {}

/// Splits the filter off a definition: what stands behind the first word `if`, which in an event probe's is its own.
fn split(text: &str) -> (&str, Option<&str>) {
    let is_event_probe = text.trim_start().starts_with('e');
    let mut at = 0;
    for word in text.split_inclusive(char::is_whitespace) {
        if word.trim_end() == "if"
            && at > 0
            && !is_event_probe
            && let Some((definition, rest)) = text.split_at_checked(at)
        {
            return (definition, rest.strip_prefix(word).map(str::trim));
        }
        at += word.len();
    }
    (text, None)
}

/// The events that definitions make.
///
/// # Errors
/// The first that is refused; nothing is traced then.
pub fn select(texts: &[String], facts: &Facts) -> Result<Vec<Selected>, DefineError> {
    // The kernel takes 100 ms to show its symbols.
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    // The events that event probes further on may sit on.
    let made: Arc<Mutex<Vec<Format>>> = Arc::default();
    let known = Arc::clone(&made);
    let machine = Machine::running(facts.btf(), Some(&facts.tracefs))
        .with_symbols(facts.symbols())
        .with_made(Box::new(move |system, name| {
            let made = known.lock().unwrap_or_else(PoisonError::into_inner);
            made.iter().find(|format| format.system == system && format.name == name).cloned()
        }))
        .with_probe_check(Box::new(super::may_probe));
    let mut set = Set::default();
    let mut selected: Vec<Selected> = Vec::new();
    for text in texts {
        let (definition, filter) = split(text);
        let line = Line::split(definition.as_bytes());
        let change = set.apply(&line, File::Dynamic, &machine).map_err(|refusal| {
            let hint = hint(&line, &refusal, &machine, facts);
            DefineError::Refused { refusal: Box::new(refusal), hint }
        })?;
        let (Change::Added { new_event }, Some(defined)) = (change, set.probes().last()) else {
            return Err(DefineError::Nothing(text.clone()));
        };
        let event = &defined.probe.event;
        let known = selected.iter().find(|other| {
            !new_event && other.format.system == event.group && other.format.name == event.name
        });
        let id = known.map_or_else(|| id(selected.len()), |other| Some(other.format.id));
        let id = id.ok_or(DefineError::TooMany)?;
        let format = event.format(id);
        let resolved = filter
            .map(|text| resolve::filter(text.as_bytes(), &format, facts))
            .transpose()
            .map_err(|error| DefineError::Filter { event: format.full_name(), error: Box::new(error) })?;
        if is_probed_by_events(&defined.probe) {
            made.lock().unwrap_or_else(PoisonError::into_inner).push(format.clone());
        }
        let one = Selected {
            format,
            filter: resolved,
            probe: Some(Box::new(defined.probe.clone())),
            place: None,
            base: None,
        };
        let bases: Vec<&Probe> = bases(&defined.probe, &set).collect();
        selected.extend(
            bases.iter().map(|base| Selected { base: Some(Box::new((*base).clone())), ..one.clone() }),
        );
        if bases.is_empty() {
            selected.push(one);
        }
    }
    Ok(selected)
}

/// The probes of the dynamic event that an event probe sits on; none where it sits on an event of the kernel's.
pub fn bases<'a>(probe: &'a Probe, set: &'a Set) -> impl Iterator<Item = &'a Probe> {
    let on = match &probe.event.target {
        Target::Event { system, name, .. } => Some((system, name)),
        _ => None,
    };
    let all = set.probes().iter().map(|defined| &defined.probe);
    all.filter(move |base| on == Some((&base.event.group, &base.event.name)) && is_probed_by_events(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_split_off() {
        for (text, definition, filter) in [
            ("f vfs_read if count > 1", "f vfs_read ", Some("count > 1")),
            ("p:x f a=1", "p:x f a=1", None),
            ("t sched_switch  if  a == \"if b\"", "t sched_switch  ", Some("a == \"if b\"")),
            ("e:x sched.sched_switch if a", "e:x sched.sched_switch if a", None),
            ("f iffy notif=x", "f iffy notif=x", None),
        ] {
            assert_eq!(split(text), (definition, filter), "{text}");
        }
    }
}
