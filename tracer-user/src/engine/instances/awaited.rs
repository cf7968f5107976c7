//! Events of modules that are not loaded: `:mod:` in `set_event` names them, and they are enabled when the module is
//! loaded.

use crate::{
    engine::{
        command::error::{CommandError, ErrorKind},
        instances::select::Selector,
        registry::catalogue::Events,
    },
    event::EventId,
    kernel::modules,
};

/// A word that waits for its module.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AwaitedEvents {
    module: String,
    either: Option<String>,
    system: Option<String>,
    event: Option<String>,
}

impl AwaitedEvents {
    fn of(module: &str, which: &Selector<'_>) -> Self {
        let [either, system, event] = which.names().map(|name| name.map(str::to_owned));
        Self { module: module.to_owned(), either, system, event }
    }

    /// The word in the form of `set_event`.
    fn text(&self) -> String {
        let any = |name: &Option<String>| name.clone().unwrap_or_else(|| "*".to_owned());
        match &self.either {
            Some(name) => format!("{name}:mod:{}", self.module),
            None => format!("{}:{}:mod:{}", any(&self.system), any(&self.event), self.module),
        }
    }

    /// Whether a removal selects this word (`remove_cache_mod()`, kernel/trace/trace_events.c).
    fn is_selected(&self, module: &str, which: &Selector<'_>) -> bool {
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

/// The events of a module among `found`.
fn of_module(events: &Events, found: Vec<EventId>, module: &str) -> Vec<EventId> {
    let own = modules::tracepoints(module).unwrap_or_default();
    let is_own = |event: &EventId| events.get(*event).is_some_and(|known| own.contains(&known.name));
    found.into_iter().filter(|event| is_own(event) && !events.is_made(*event)).collect()
}

/// The words that wait for modules, the last one first.
#[derive(Debug, Default)]
pub(crate) struct AwaitedModules {
    all: Vec<AwaitedEvents>,
}

impl AwaitedModules {
    /// The words, as `set_event` shows and accepts them.
    pub(crate) fn texts(&self) -> impl Iterator<Item = String> {
        self.all.iter().map(AwaitedEvents::text)
    }

    pub(crate) fn clear(&mut self) {
        self.all.clear();
    }

    /// The events to enable or disable for a word. For a module that is not loaded the result is empty: the word is
    /// stored, or removes a stored one.
    ///
    /// # Errors
    /// `EINVAL` for a word that selects nothing.
    pub(crate) fn select(
        &mut self,
        events: &Events,
        which: &Selector<'_>,
        on: bool,
    ) -> Result<Vec<EventId>, CommandError> {
        let found = which.matching(events);
        let Some(module) = which.module().filter(|_| modules::supported()) else {
            return if found.is_empty() || which.module().is_some() {
                Err(ErrorKind::Invalid.into())
            } else {
                Ok(found)
            };
        };
        let module = modules::plain(module);
        let found = of_module(events, found, &module);
        if !found.is_empty() {
            return Ok(found);
        }
        if modules::is_loaded(&module) {
            return Err(ErrorKind::Invalid.into());
        }
        if on {
            self.all.insert(0, AwaitedEvents::of(&module, which));
            return Ok(Vec::new());
        }
        let before = self.all.len();
        self.all.retain(|one| !one.is_selected(&module, which));
        if self.all.len() < before { Ok(Vec::new()) } else { Err(ErrorKind::Invalid.into()) }
    }

    /// Removes and returns the words whose modules were loaded. A module without events leaves its words
    /// (`trace_module_add_events()`).
    pub(crate) fn take_loaded(&mut self, events: &Events) -> Vec<String> {
        let is_loaded = |one: &AwaitedEvents| {
            modules::is_loaded(&one.module)
                && !of_module(events, events.ordinary().collect(), &one.module).is_empty()
        };
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.all).into_iter().partition(is_loaded);
        self.all = later;
        now.iter().map(AwaitedEvents::text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awaited_events_are_shown_and_removed() {
        let awaited = |word: &str| {
            let (_, which) = Selector::read(word.as_bytes()).unwrap();
            AwaitedEvents::of(which.module().unwrap(), &which)
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
            awaited(one).is_selected("m", &which)
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
