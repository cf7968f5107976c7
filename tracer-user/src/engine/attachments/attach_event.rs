//! Attaching one event: from its definition to a program on its hook.
//!
//! Work that makes the kernel wait is done off the owner's thread before the session takes the result over
//! ([`super::off_thread`]).

use crate::{
    engine::{
        Engine,
        attachments::{
            desired,
            off_thread::{self, Refused},
            reconcile::link_eprobe,
            session::event_config::EventConfig,
        },
        command::error::{CommandError, ErrorKind},
        dependents,
        probes::Tried,
    },
    event::{EventId, Format, InstanceId},
    plan::source::ProgramContext,
};

/// Attaches an event to its hook. With `begins_off` the event begins soft-disabled, as a trigger would leave it. If
/// anything is refused, the event is detached again.
///
/// # Errors
/// The kernel's errors, and `ENODEV` when the instance is gone.
pub(super) fn attach_event(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    begins_off: bool,
) -> Result<(), CommandError> {
    off_thread::read_format(engine, event)?;
    let (facts, catalogue) = (engine.facts.clone(), engine.registry.events().clone());
    let format = catalogue.try_format(event, &facts)?;
    let probes = engine.registry.dynamic().probes_of(event);
    let user = engine.user.has(event);
    // A record of such an event never fits, so nothing is attached for it.
    let too_long = user && format.fixed_size() > tracer_abi::MAX_PAYLOAD / 2;
    let without_hook = if user || engine.registry.synthetic().contains(event) {
        Some(ProgramContext::Inject)
    } else {
        probes
            .as_ref()
            .and_then(|probes| dependents::eprobe_target(engine, probes.first()?))
            .map(|(_, context)| context)
    };
    let chosen = engine
        .registry
        .programs()
        .chosen(event, format)
        .unwrap_or_else(|| engine.attachments.hooks().of(format));
    let settings = desired::settings(engine, instance, event)?;
    let config = EventConfig { format, settings: &settings, begins_off };
    // An event may be recorded even if a part of it is refused later. Events of modules count only when they are
    // attached: their modules' end empties the buffers of instances that recorded them.
    if engine.registry.events().is_made(event) {
        engine.instances.state(instance)?.recorded.insert(event);
    }
    let linked = match (&without_hook, &probes) {
        (Some(_), _) => Ok(()),
        (None, Some(probes)) => {
            off_thread::open_for_probes(engine, instance, event, probes);
            off_thread::link_probes(engine, instance, event, probes, &config)
        }
        (None, None) => {
            off_thread::link_file(engine, instance, event, &chosen, &config)?;
            off_thread::open_perf_event(engine, instance, event, &chosen.point);
            Ok(())
        }
    };
    // Events that this one's program refers to may have been attached or detached while other requests ran.
    let settings = desired::settings(engine, instance, event)?;
    let config = EventConfig { format, settings: &settings, begins_off };
    let mut refused = Refused::default();
    let session = engine.attachments.session_mut(instance).ok_or(ErrorKind::Gone)?;
    let attached = match (without_hook, &probes) {
        _ if too_long => Ok(()),
        (Some(context), _) => session.attach_emitted(event, context, &config).map_err(CommandError::from),
        (None, Some(probes)) => {
            let attach = |()| Ok(session.attach_probes(event, probes, &config, &facts)?);
            linked.and_then(attach).map_err(|error| no_hook(format, error))
        }
        (None, None) => {
            session.attach_hook(event, &chosen, &config).or_else(|error| refused.keep(&chosen, error))
        }
    };
    let attached = match refused.0 {
        // A filter may need a value that only the kernel's own record has.
        Some(why) => off_thread::attach_tracepoint(engine, instance, event, why, &config),
        None => attached,
    };
    off_thread::forget_opened(engine, instance);
    attached?;
    let state = engine.instances.state(instance)?;
    state.recorded.insert(event);
    let newly = state.enabled.insert(event);
    if probes.is_some() {
        engine.registry.dynamic_mut().profile_mut().begin(event, instance);
    }
    let is_counted = newly && probes.is_some();
    let mut done = if is_counted { link_eprobe(engine, instance, event, true) } else { Ok(()) };
    if done.is_ok() {
        done = dependents::propagate_enabled(engine, instance, event);
        if done.is_err() && is_counted {
            let _ = link_eprobe(engine, instance, event, false);
        }
    }
    if done.is_err() {
        engine.instances.state(instance)?.enabled.remove(&event);
        if let Some(session) = engine.attachments.session_mut(instance) {
            session.detach([event]);
        }
        let _ = dependents::propagate_enabled(engine, instance, event);
    }
    done
}

/// Adds an entry in tracer's own words for `error_log` to the error of an event whose probes have no hook.
fn no_hook(format: &Format, error: CommandError) -> CommandError {
    let Some(tried) = error.cause::<Tried>() else { return error };
    let name = format.full_name();
    let entry = format!("tracer: error: no hook: {tried}\n  Command: {name}\n           ^\n");
    error.worded(entry.into_bytes())
}
