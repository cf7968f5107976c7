//! The events that lists of the daemon's start enable. The lists can change while the daemon serves, and between two
//! daemons of one saved state.

use std::collections::BTreeSet;

use super::boot::{Boot, boot};
use crate::{
    engine::{
        Engine, InstanceCommand,
        command::error::{CommandError, ErrorKind},
        instances::select::Selector,
        registry::catalogue::Events,
    },
    event::{EventId, InstanceId},
};

/// What lists of words enable, in the order of their words.
#[derive(Debug, Default, PartialEq, Eq)]
struct Listed<'a> {
    events: BTreeSet<EventId>,
    /// Words that name a module, which may not be loaded.
    of_modules: Vec<&'a str>,
    /// Words that name no event.
    unknown: Vec<&'a str>,
}

impl<'a> Listed<'a> {
    fn of(lists: &'a [String], events: &Events) -> Self {
        let mut listed = Self::default();
        for word in lists.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            let Some((on, selector)) = Selector::read(word.as_bytes()) else { continue };
            if selector.module().is_some() {
                listed.of_modules.push(word);
                continue;
            }
            let found = selector.matching(events);
            if found.is_empty() {
                listed.unknown.push(word);
            } else if on {
                listed.events.extend(found);
            } else {
                listed.events.retain(|event| !found.contains(event));
            }
        }
        listed
    }
}

/// A change of the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedChange {
    /// The lists so far.
    pub old: Vec<String>,
    /// The new lists.
    pub new: Vec<String>,
}

impl ListedChange {
    /// Changes the enabled events of the top instance from those of the old lists to those of the new ones. What clients
    /// enabled or disabled stays, unless the lists differ in it. Words that fail are returned with their errors.
    pub fn apply(&self, engine: &mut Engine) -> Vec<(String, CommandError)> {
        let Self { old, new } = self;
        if old.is_empty() {
            return boot(engine, &Boot::events(new));
        }
        let events = engine.registry.events().clone();
        let (was, wanted) = (Listed::of(old, &events), Listed::of(new, &events));
        let mut failed: Vec<_> =
            wanted.unknown.iter().map(|word| (format!("event {word}"), ErrorKind::Invalid.into())).collect();
        let mut set = |engine: &mut Engine, word: &str, goal: Option<bool>| {
            let done = match Selector::read(word.as_bytes()) {
                Some((on, which)) => {
                    let command = InstanceCommand::Events { which, on: goal.unwrap_or(on) };
                    engine.apply(InstanceId::TOP, command)
                }
                None => Err(ErrorKind::Invalid.into()),
            };
            failed.extend(done.err().map(|error| (format!("event {word}"), error)));
        };
        let name = |event: &EventId| {
            let known = events.get(*event)?;
            Some(format!("{}:{}", events.system(known.system)?.name, known.name))
        };
        for word in was.of_modules.iter().filter(|word| !wanted.of_modules.contains(word)) {
            set(engine, word, Some(word.starts_with('!')));
        }
        for event in was.events.difference(&wanted.events).filter_map(name) {
            set(engine, &event, Some(false));
        }
        for event in wanted.events.difference(&was.events).filter_map(name) {
            set(engine, &event, Some(true));
        }
        for word in wanted.of_modules.iter().filter(|word| !was.of_modules.contains(word)) {
            set(engine, word, None);
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sets_of_events() {
        let names = [("sched", "switch"), ("sched", "wake"), ("irq", "entry"), ("irq", "exit")];
        let events = Events::of(names.map(|(system, name)| (system.to_owned(), name.to_owned())));
        let listed = |lists: &[&str]| {
            let lists: Vec<_> = lists.iter().map(|list| (*list).to_owned()).collect();
            let listed = Listed::of(&lists, &events);
            let numbers: Vec<_> =
                (0..4).filter(|number| listed.events.contains(&EventId::new(*number))).collect();
            (numbers, listed.of_modules.len(), listed.unknown.len())
        };
        assert_eq!(listed(&["sched,!sched:wake", "irq:exit"]), (vec![0, 3], 0, 0));
        assert_eq!(listed(&["!sched:wake,sched"]), (vec![0, 1], 0, 0), "in their order");
        assert_eq!(listed(&["irq,!irq:exit"]), (vec![2], 0, 0));
        assert_eq!(listed(&["sched:mod:m", "no:such", ""]), (vec![], 1, 1));
    }
}
