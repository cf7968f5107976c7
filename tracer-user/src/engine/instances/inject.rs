//! `events/SYSTEM/EVENT/inject`: a record of any event, made in user space. It passes the event's filter. It also
//! passes the triggers that read the record, even if the event is disabled (`trace_inject_entry()`).

use std::sync::Arc;

use tracer_abi::COMMON_SIZE;

use crate::{
    attach,
    engine::{
        Engine,
        attachments::{desired, off_thread, session::event_config::EventConfig},
        command::error::{CommandError, ErrorKind},
        dependents::{self, hist_programs, writer_stack},
        records::mark::Writer,
    },
    event::{EventId, InstanceId},
    lang,
};

/// A write must be shorter than a page.
const LIMIT: usize = 4096;

/// Records a write to an event's `inject`.
///
/// # Errors
/// The errors of [`lang::inject::record`]; `EINVAL` for a text as long as a page; the kernel's error for the program.
pub(crate) fn inject(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    text: &[u8],
    writer: Writer,
) -> Result<(), CommandError> {
    if text.len() >= LIMIT {
        return Err(ErrorKind::Invalid.into());
    }
    off_thread::read_format(engine, event)?;
    let (catalogue, facts) = (engine.registry.events().clone(), engine.facts.clone());
    let format = catalogue.try_format(event, &facts)?;
    let mut common = [0; COMMON_SIZE];
    common[..2].copy_from_slice(&format.id.to_ne_bytes());
    common[4..].copy_from_slice(&writer.pid.to_ne_bytes());
    let record = lang::inject::record(text, format, common)?;
    engine.make_session(instance)?;
    Arc::make_mut(&mut engine.tasks).look_up(writer.pid.cast_signed(), true);
    let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
    if engine.histograms.counts_event(instance, event) {
        hist_programs::count_record(engine, instance, event, &record, &hit);
    }
    engine.instances.state(instance)?.recorded.insert(event);
    let settings = desired::settings(engine, instance, event)?;
    let config = EventConfig { format, settings: &settings, begins_off: false };
    let session = engine.attachments.session_mut(instance).ok_or(ErrorKind::Gone)?;
    let actions = session.inject(event, &config, &record, &hit)?;
    writer_stack::perform(engine, instance, actions, &record, writer);
    dependents::pass_to_eprobes(engine, instance, event, &record, writer);
    Ok(())
}
