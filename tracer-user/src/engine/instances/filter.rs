//! Filters of events: `filter` files of events and systems, and filters of triggers.

use crate::{
    engine::{
        Cooperative, Engine,
        attachments::reconcile::{Goal, reconcile},
        command::error::{CommandError, ErrorKind},
        instances::instance::{Filtering, Instance},
    },
    event::{EventId, InstanceId, SystemId},
    lang::filter::{self, FilterError, Request},
    plan::{
        filter::Filter,
        resolve::{self, ResolveEnv},
    },
};

pub(crate) fn resolve(
    engine: &mut Engine,
    event: EventId,
    text: &[u8],
) -> Result<Result<Filter, FilterError>, CommandError> {
    let (facts, catalogue) = (engine.facts.clone(), engine.registry.events().clone());
    let resolve = || {
        let format = catalogue.try_format(event, &facts)?;
        Ok(resolve::filter(text, format, facts.as_ref()))
    };
    // A thread that reads facts may wait for the kernel, and a caller that needs the same facts waits for that
    // thread.
    if facts.is_warm() && catalogue.known_format(event).is_some() {
        resolve()
    } else {
        engine.run_off_thread(resolve)
    }
}

/// Replaces the filter of an event. If the kernel refuses the program, nothing changes.
fn put_filter(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    new: Option<Filtering>,
) -> Result<(), CommandError> {
    let put = |state: &mut Instance, filtering| match filtering {
        Some(filtering) => state.filters.insert(event, filtering),
        None => state.filters.remove(&event),
    };
    let old = put(engine.instances.state(instance)?, new);
    let done = reconcile(engine, instance, &[event], Goal::Unchanged);
    if done.is_err() {
        put(engine.instances.state(instance)?, old);
    }
    done
}

pub(crate) fn set_filter(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    written: &[u8],
) -> Result<(), CommandError> {
    let text = match filter::request(written) {
        Request::TooLong => return Err(ErrorKind::Invalid.into()),
        Request::Clear => return put_filter(engine, instance, event, None),
        Request::Set(text) => text,
    };
    match resolve(engine, event, text)? {
        Ok(filter) => {
            let shown = filter::shown(text, &engine.facts.dialect());
            put_filter(engine, instance, event, Some(Filtering { shown, filter: Some(filter) }))
        }
        Err(error) => {
            // An invalid filter replaces the old one, and all hits pass.
            let failed = Filtering { shown: error.filter_file(), filter: None };
            put_filter(engine, instance, event, Some(failed))?;
            Err(error.into())
        }
    }
}

/// Sets the filter of each event of the system, or stores the error if the filter does not fit. The write itself
/// succeeds (`process_system_preds()`).
pub(crate) fn set_system_filter(
    engine: &mut Engine,
    instance: InstanceId,
    system: SystemId,
    written: &[u8],
) -> Result<(), CommandError> {
    let catalogue = engine.registry.events().clone();
    let events = &catalogue.system(system).ok_or(ErrorKind::Gone)?.events;
    let text = match filter::request(written) {
        Request::TooLong => return Err(ErrorKind::Invalid.into()),
        Request::Clear => {
            let mut first = Ok(());
            for event in events {
                engine.yield_to_readers();
                first = first.and(put_filter(engine, instance, *event, None));
            }
            return first;
        }
        Request::Set(text) => text,
    };
    let mut first = Ok(());
    for event in events {
        engine.yield_to_readers();
        let new = match resolve(engine, *event, text)? {
            Ok(filter) => {
                Filtering { shown: filter::shown(text, &engine.facts.dialect()), filter: Some(filter) }
            }
            Err(error) => {
                let error = error.for_subsystem();
                let shown = error.filter_file();
                engine.log_error(instance, error.into());
                Filtering { shown, filter: None }
            }
        };
        first = first.and(put_filter(engine, instance, *event, Some(new)));
    }
    first
}
