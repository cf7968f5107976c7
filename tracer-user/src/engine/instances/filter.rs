//! Filters of events: `filter` files of events and systems, and filters of triggers.

use crate::{
    engine::{
        Cooperative,
        command::error::{CommandError, ErrorKind},
        instances::{
            change::InstanceChange,
            instance::{Filtering, Instance},
        },
    },
    event::{EventId, SystemId},
    lang::filter::{self, FilterError, Request},
    plan::{
        filter::Filter,
        resolve::{self, ResolveEnv},
    },
};

impl InstanceChange<'_> {
    pub(super) fn resolve_filter(
        &mut self,
        event: EventId,
        text: &[u8],
    ) -> Result<Result<Filter, FilterError>, CommandError> {
        let (facts, catalogue) = (self.engine.facts.clone(), self.engine.registry.events().clone());
        let resolve = || {
            let format = catalogue.try_format(event, &facts)?;
            Ok(resolve::filter(text, format, facts.as_ref()))
        };
        // A thread that reads facts may wait for the kernel, and a caller that needs the same facts waits for that
        // thread.
        if facts.is_warm() && catalogue.known_format(event).is_some() {
            resolve()
        } else {
            self.engine.run_off_thread(resolve)
        }
    }

    /// Replaces the filter of an event. If the kernel refuses the program, nothing changes.
    fn put_filter(&mut self, event: EventId, new: Option<Filtering>) -> Result<(), CommandError> {
        let put = |state: &mut Instance, filtering| match filtering {
            Some(filtering) => state.filters.insert(event, filtering),
            None => state.filters.remove(&event),
        };
        let old = put(self.state()?, new);
        let done = self.update_programs(&[event]);
        if done.is_err() {
            put(self.state()?, old);
        }
        done
    }

    pub(crate) fn set_filter(&mut self, event: EventId, written: &[u8]) -> Result<(), CommandError> {
        let text = match filter::request(written) {
            Request::TooLong => return Err(ErrorKind::Invalid.into()),
            Request::Clear => return self.put_filter(event, None),
            Request::Set(text) => text,
        };
        match self.resolve_filter(event, text)? {
            Ok(filter) => {
                let shown = filter::shown(text, &self.engine.facts.dialect());
                self.put_filter(event, Some(Filtering { shown, filter: Some(filter) }))
            }
            Err(error) => {
                // An invalid filter replaces the old one, and all hits pass.
                let failed = Filtering { shown: error.filter_file(), filter: None };
                self.put_filter(event, Some(failed))?;
                Err(error.into())
            }
        }
    }

    /// Sets the filter of each event of the system, or stores the error if the filter does not fit. The write itself
    /// succeeds (`process_system_preds()`).
    pub(crate) fn set_system_filter(&mut self, system: SystemId, written: &[u8]) -> Result<(), CommandError> {
        let catalogue = self.engine.registry.events().clone();
        let events = &catalogue.system(system).ok_or(ErrorKind::Gone)?.events;
        let text = match filter::request(written) {
            Request::TooLong => return Err(ErrorKind::Invalid.into()),
            Request::Clear => {
                let mut first = Ok(());
                for event in events {
                    self.engine.yield_to_readers();
                    first = first.and(self.put_filter(*event, None));
                }
                return first;
            }
            Request::Set(text) => text,
        };
        let mut first = Ok(());
        for event in events {
            self.engine.yield_to_readers();
            let new = match self.resolve_filter(*event, text)? {
                Ok(filter) => Filtering {
                    shown: filter::shown(text, &self.engine.facts.dialect()),
                    filter: Some(filter),
                },
                Err(error) => {
                    let error = error.for_subsystem();
                    let shown = error.filter_file();
                    self.engine.log_error(self.instance, error.into());
                    Filtering { shown, filter: None }
                }
            };
            first = first.and(self.put_filter(*event, Some(new)));
        }
        first
    }
}
