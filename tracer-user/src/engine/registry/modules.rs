//! Events of modules: they come and go with them, and `:mod:` in `set_event` means them, even before they are there.

use std::collections::HashSet;

use rustix::io::Errno;

use crate::{
    engine::{Command, Cooperative, Engine, instances::select::Selector, registry::catalogue::Events},
    event::{Catalogue, EventId, InstanceId},
    kernel::modules,
};

/// Events that are to be turned on when a module brings them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Awaited {
    module: String,
    either: Option<String>,
    system: Option<String>,
    event: Option<String>,
}

impl Awaited {
    fn of(module: &str, which: &Selector<'_>) -> Self {
        let [either, system, event] = which.names().map(|name| name.map(str::to_owned));
        Self { module: module.to_owned(), either, system, event }
    }

    /// As `set_event` shows it, and takes it.
    pub(in crate::engine) fn text(&self) -> String {
        let any = |name: &Option<String>| name.clone().unwrap_or_else(|| "*".to_owned());
        match &self.either {
            Some(name) => format!("{name}:mod:{}", self.module),
            None => format!("{}:{}:mod:{}", any(&self.system), any(&self.event), self.module),
        }
    }

    /// Whether a word that takes away means this one (`remove_cache_mod()`, kernel/trace/trace_events.c).
    fn is_meant(&self, module: &str, which: &Selector<'_>) -> bool {
        let [either, system, event] = which.names();
        let meant = |wanted: Option<&str>, own: &Option<String>| {
            wanted.is_none_or(|name| own.as_deref() == Some(name))
        };
        self.module == module
            && meant(either, &self.either)
            && meant(system, &self.system)
            && meant(event, &self.event)
    }
}

/// Of some events those that a module brought.
fn of_module(events: &Events, found: Vec<EventId>, module: &str) -> Vec<EventId> {
    let own = modules::tracepoints(module).unwrap_or_default();
    let is_own = |event: &EventId| events.get(*event).is_some_and(|known| own.contains(&known.name));
    found.into_iter().filter(|event| is_own(event) && !events.is_made(*event)).collect()
}

impl Engine {
    /// The events that a word means; none of a module that is not loaded, which then are awaited, or no more.
    pub(in crate::engine) fn meant(
        &mut self,
        instance: InstanceId,
        which: &Selector<'_>,
        on: bool,
    ) -> Result<Vec<EventId>, Errno> {
        let found = which.matching(&self.events);
        let Some(module) = which.module().filter(|_| modules::supported()) else {
            return if found.is_empty() || which.module().is_some() { Err(Errno::INVAL) } else { Ok(found) };
        };
        let module = modules::plain(module);
        let found = of_module(&self.events, found, &module);
        if !found.is_empty() {
            return Ok(found);
        }
        if modules::is_loaded(&module) {
            return Err(Errno::INVAL);
        }
        let awaited = &mut self.state(instance)?.awaited;
        if on {
            awaited.insert(0, Awaited::of(&module, which));
            return Ok(Vec::new());
        }
        let before = awaited.len();
        awaited.retain(|one| !one.is_meant(&module, which));
        if awaited.len() < before { Ok(Vec::new()) } else { Err(Errno::INVAL) }
    }

    /// Where modules came or went, learns their events, and turns those on that were awaited.
    pub fn learn_modules(&mut self) {
        if self.modules.as_ref().is_some_and(modules::Changes::pending) {
            match self.facts.anew() {
                Ok(facts) => {
                    self.facts = facts.into();
                    let facts = self.facts.clone();
                    let warmed =
                        std::thread::Builder::new().name("facts".to_owned()).spawn(move || facts.warm());
                    if let Err(error) = warmed {
                        tracing::debug!("facts are read when they are needed: {error}");
                    }
                }
                Err(error) => tracing::warn!("symbols of modules: {error}"),
            }
            // Lookups and opens wait until the events and probes are those of the modules that are loaded now.
            self.scheduler.set_lookups_wait(true);
            let facts = self.facts.clone();
            let listed = self.run_off_thread(|| facts.tracefs.available_events());
            if let Ok(listed) = listed {
                self.look_at_events(&listed);
            }
            self.look_at_probes();
            self.scheduler.set_lookups_wait(false);
        }
    }

    fn look_at_events(&mut self, listed: &str) {
        let listed = Catalogue::parse(listed);
        let there: HashSet<(&str, &str)> = listed.iter().collect();
        let gone: Vec<EventId> = self
            .events
            .ordinary()
            .filter(|event| {
                let Some(known) = self.events.get(*event) else { return false };
                let system = self.events.system(known.system).map_or("", |system| system.name.as_str());
                !there.contains(&(system, known.name.as_str())) && !self.events.is_made(*event)
            })
            .collect();
        for event in gone {
            self.remove_event(event);
        }
        // The kernel lists the youngest first, and so do we.
        let mut new: Vec<(&str, &str)> = listed
            .iter()
            .filter(|(system, name)| {
                self.events.find_system(system).is_none_or(|number| self.events.find(number, name).is_none())
            })
            .collect();
        new.reverse();
        for (system, name) in new {
            if let Err(error) = self.add_known_event(system, name) {
                tracing::warn!("{system}:{name}: {error}");
            }
        }
        self.turn_on_awaited();
    }

    /// Those of words that wait whose modules came. One that brings no events at all leaves them (`trace_module_add_events()`).
    fn turn_on_awaited(&mut self) {
        let came = |one: &Awaited, mirror: &Self| {
            modules::is_loaded(&one.module)
                && !of_module(&mirror.events, mirror.events.ordinary().collect(), &one.module).is_empty()
        };
        for instance in self.numbers().collect::<Vec<_>>() {
            let Ok(state) = self.state(instance) else { continue };
            let awaited = std::mem::take(&mut state.awaited);
            let (now, later): (Vec<_>, Vec<_>) = awaited.into_iter().partition(|one| came(one, self));
            if let Ok(state) = self.state(instance) {
                state.awaited = later;
            }
            for one in now {
                let text = one.text();
                let Some((on, which)) = Selector::read(text.as_bytes()) else { continue };
                // One that has no such event was asked for in vain.
                if let Err(error) = self.apply(instance, &Command::Events { which, on }) {
                    tracing::info!("{text}: {error}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awaited_events_are_shown_and_taken_away() {
        let awaited = |word: &str| {
            let (_, which) = Selector::read(word.as_bytes()).unwrap();
            Awaited::of(which.module().unwrap(), &which)
        };
        for (word, shown) in [
            (":mod:m", "*:*:mod:m"),
            ("*:mod:m", "*:*:mod:m"),
            ("sched:mod:m", "sched:mod:m"),
            ("sched:*:mod:m", "sched:*:mod:m"),
            (":a:mod:m", "*:a:mod:m"),
        ] {
            assert_eq!(awaited(word).text(), shown, "{word}");
        }
        let meant = |one: &str, word: &str| {
            let (_, which) = Selector::read(word.as_bytes()).unwrap();
            awaited(one).is_meant("m", &which)
        };
        assert!(
            meant("a:b:mod:m", "!:mod:m") && meant("a:b:mod:m", "!a::mod:m") && meant("x:mod:m", "!x:mod:m")
        );
        assert!(
            !meant("a:b:mod:m", "!b::mod:m")
                && !meant(":mod:m", "!a::mod:m")
                && !meant("a::mod:n", "!:mod:m")
        );
    }
}
