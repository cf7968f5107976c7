//! What the user names: `sys:event[ if FILTER]`, globs over the events there are.

use crate::{
    attach::FilePlace,
    event::{Catalogue, Format, FormatError},
    kernel::{Error, Tracefs},
    lang::{define::Probe, filter::FilterError},
    plan::{
        filter::{Filter, Pattern, Test, Text},
        resolve::{self, ResolveEnv},
    },
};

/// An event that is to be traced.
#[derive(Clone, Debug)]
pub struct Selected {
    /// The event.
    pub format: Format,
    /// The filter, resolved.
    pub filter: Option<Filter>,
    /// How its values are had, for a dynamic event.
    pub probe: Option<Box<Probe>>,
    /// Where it is handed over, for a program's event.
    pub place: Option<FilePlace>,
    /// The probe of the dynamic event that an event probe sits on.
    pub base: Option<Box<Probe>>,
}

/// Why a selection is not one.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// No event goes by this name.
    #[error("no event matches `{pattern}`{}", hint(.suggestion.as_deref()))]
    NoEvent {
        /// What the user wrote.
        pattern: String,
        /// The nearest event.
        suggestion: Option<String>,
    },
    /// The filter is wrong for an event.
    #[error("filter of {event}")]
    Filter {
        /// `system:name`.
        event: String,
        /// What is wrong.
        #[source]
        error: Box<FilterError>,
    },
    /// Nothing stands behind `if`.
    #[error("`{0}`: no filter behind `if`")]
    EmptyFilter(String),
    /// A format file makes no sense.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The kernel's files cannot be read.
    #[error(transparent)]
    Kernel(#[from] Error),
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(
        || "; `tracer list` shows what there is".to_owned(),
        |name| format!("; did you mean `{name}`?"),
    )
}

/// Splits `sys:event if FILTER`.
pub fn split(text: &str) -> (&str, Option<&str>) {
    let text = text.trim();
    match text.find(char::is_whitespace) {
        Some(at) => {
            let (event, rest) = text.split_at(at);
            let rest = rest.trim_start();
            match rest.strip_prefix("if") {
                Some(filter) if filter.is_empty() || filter.starts_with(char::is_whitespace) => {
                    (event, Some(filter.trim()))
                }
                // Not ours to guess: let the name fail as a whole.
                _ => (text, None),
            }
        }
        None => (text, None),
    }
}

/// The events that a selection names, each with the filter resolved against it.
///
/// # Errors
/// When nothing matches, or the filter is wrong for one of them: nothing is traced then.
pub fn select(text: &str, tracefs: &Tracefs, env: &dyn ResolveEnv) -> Result<Vec<Selected>, SelectError> {
    let (pattern, filter) = split(text);
    if filter.is_some_and(str::is_empty) {
        return Err(SelectError::EmptyFilter(text.to_owned()));
    }
    let mut selected = Vec::new();
    for (system, name) in names(pattern, tracefs)? {
        let Some(file) = tracefs.format(&system, &name)? else { continue };
        let format = Format::parse(&system, &file)?;
        let resolved = filter
            .map(|text| resolve::filter(text.as_bytes(), &format, env))
            .transpose()
            .map_err(|error| SelectError::Filter { event: format.full_name(), error: Box::new(error) })?;
        selected.push(Selected { format, filter: resolved, probe: None, place: None, base: None });
    }
    if selected.is_empty() {
        return Err(no_event(pattern, &Catalogue::parse(&tracefs.available_events()?)));
    }
    Ok(selected)
}

/// The names that a pattern stands for; a plain `sys:event` is looked up without listing all events.
fn names(pattern: &str, tracefs: &Tracefs) -> Result<Vec<(String, String)>, SelectError> {
    if let Some((system, name)) = pattern.split_once(':') {
        let plain = |part: &str| !part.is_empty() && !part.contains(['*', '?', '[', '/', '\\', '.']);
        if plain(system) && plain(name) {
            return Ok(vec![(system.to_owned(), name.to_owned())]);
        }
    }
    let catalogue = Catalogue::parse(&tracefs.available_events()?);
    let found: Vec<_> =
        catalogue.matching(pattern).into_iter().map(|(s, n)| (s.to_owned(), n.to_owned())).collect();
    if found.is_empty() {
        return Err(no_event(pattern, &catalogue));
    }
    Ok(found)
}

fn no_event(pattern: &str, catalogue: &Catalogue) -> SelectError {
    let wanted = pattern.rsplit(':').next().unwrap_or(pattern);
    let suggestion = catalogue
        .iter()
        .map(|(system, name)| (distance(wanted, name), system, name))
        .min()
        .filter(|(distance, ..)| *distance <= 1 + wanted.len() / 4)
        .map(|(_, system, name)| format!("{system}:{name}"));
    SelectError::NoEvent { pattern: pattern.to_owned(), suggestion }
}

/// How many letters must be put in, taken out or changed to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.bytes().enumerate() {
        let Some((first, rest)) = row.split_first_mut() else { break };
        // What it takes up to the letters before both, and up to the one before in this row.
        let mut corner = std::mem::replace(first, i + 1);
        let mut before = i + 1;
        for (place, right) in rest.iter_mut().zip(b) {
            let changed = corner + usize::from(left != *right);
            corner = *place;
            *place = changed.min(corner + 1).min(before + 1);
            before = *place;
        }
    }
    row.last().copied().unwrap_or_default()
}

/// Adds the condition that the current task has this name (at most 15 bytes count, as in the kernel).
pub fn and_comm(filter: Option<Filter>, comm: &str) -> Filter {
    let name = comm.as_bytes();
    let test = Filter::Test(Test::Text {
        text: Text::Comm,
        pattern: Pattern::Full(name.get(..15).unwrap_or(name).to_vec()),
        not: false,
    });
    match filter {
        None => test,
        Some(filter) => Filter::And(vec![test, filter]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_a_name_and_perhaps_a_filter() {
        assert_eq!(split(" sched:sched_switch "), ("sched:sched_switch", None));
        assert_eq!(split("a:b if x == 1 && y"), ("a:b", Some("x == 1 && y")));
        assert_eq!(split("a:b if"), ("a:b", Some("")));
        assert_eq!(split("a:b iffy"), ("a:b iffy", None));
    }

    #[test]
    fn distances() {
        assert_eq!(distance("sched_swich", "sched_switch"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
