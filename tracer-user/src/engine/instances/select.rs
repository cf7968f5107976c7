//! Selection of events by a word of `set_event` (`ftrace_set_clr_event()`).

use crate::{engine::registry::catalogue::Events, event::EventId};

/// A parsed word of `set_event`. Names match literally: the kernel has no globs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector<'a> {
    /// Name of a system or an event.
    either: Option<&'a str>,
    system: Option<&'a str>,
    event: Option<&'a str>,
    /// Only events of this module (`:mod:NAME`, 6.14 and later).
    module: Option<&'a str>,
}

impl<'a> Selector<'a> {
    /// Parses a word: whether to enable, and the selected events. `None` for a word that is not valid text.
    pub fn read(word: &'a [u8]) -> Option<(bool, Self)> {
        let (on, rest) = match word.strip_prefix(b"!") {
            Some(rest) => (false, rest),
            None => (true, word),
        };
        let text = std::str::from_utf8(rest).ok()?;
        let (text, module) = match text.split_once(":mod:") {
            Some((text, module)) => (text, Some(module)),
            None => (text, None),
        };
        let named = |text: &'a str| (!text.is_empty() && text != "*").then_some(text);
        let selector = match text.split_once(':') {
            Some((system, event)) => {
                Self { either: None, system: named(system), event: named(event), module }
            }
            None if module.is_some() => Self { either: named(text), system: None, event: None, module },
            None => Self { either: Some(text), system: None, event: None, module },
        };
        Some((on, selector))
    }

    /// All events of one system, or of all.
    pub fn system(name: Option<&'a str>) -> Self {
        Self { either: None, system: name, event: None, module: None }
    }

    /// Events by literal names; `None` means all.
    #[cfg(any(test, feature = "internals"))]
    pub fn of(system: Option<&'a str>, event: Option<&'a str>) -> Self {
        Self { either: None, system, event, module: None }
    }

    /// One event.
    pub fn named(system: &'a str, event: &'a str) -> Self {
        Self { either: None, system: Some(system), event: Some(event), module: None }
    }

    /// The module of the selected events.
    pub fn module(&self) -> Option<&'a str> {
        self.module
    }

    /// The names, as far as they are given: of a system or an event, of a system, of an event.
    pub(crate) fn names(&self) -> [Option<&'a str>; 3] {
        [self.either, self.system, self.event]
    }

    /// The selected events of all modules.
    pub fn matching(&self, events: &Events) -> Vec<EventId> {
        events
            .ordinary()
            .filter(|event| {
                let Some(event) = events.get(*event) else { return false };
                let Some(system) = events.system(event.system) else { return false };
                self.either.is_none_or(|name| name == event.name || name == system.name)
                    && self.system.is_none_or(|name| name == system.name)
                    && self.event.is_none_or(|name| name == event.name)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_select_events() {
        let names =
            [("sched", "switch"), ("sched", "wake"), ("irq", "sched"), ("irq", "wake"), ("ftrace", "print")];
        let events = Events::of(names.map(|(system, name)| (system.to_owned(), name.to_owned())));
        for (word, on, expected) in [
            ("sched:switch", true, vec![0]),
            ("!sched:switch", false, vec![0]),
            ("sched", true, vec![0, 1, 2]),
            ("sched:", true, vec![0, 1]),
            ("sched:*", true, vec![0, 1]),
            (":wake", true, vec![1, 3]),
            ("*:wake", true, vec![1, 3]),
            ("*:*", true, vec![0, 1, 2, 3]),
            (":", true, vec![0, 1, 2, 3]),
            ("*", true, vec![]),
            ("sched:s*", true, vec![]),
            (":mod:m", true, vec![0, 1, 2, 3]),
            ("sched:mod:m", true, vec![0, 1, 2]),
            ("!sched:*:mod:m", false, vec![0, 1]),
            ("sched:mod", true, vec![]),
            ("a:b:c", true, vec![]),
            ("print", true, vec![]),
            ("!", false, vec![]),
            ("", true, vec![]),
        ] {
            let (seen, selector) = Selector::read(word.as_bytes()).unwrap();
            let expected: Vec<EventId> = expected.into_iter().map(EventId::new).collect();
            assert_eq!((seen, selector.matching(&events)), (on, expected), "{word}");
        }
    }
}
