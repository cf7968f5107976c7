//! Attaching one event: from its definition to a program on its hook.
//!
//! Work that makes the kernel wait is done off the owner's thread before the session takes the result over
//! ([`super::aside`]).

use rustix::io::Errno;

use crate::{
    buffer::clock::monotonic,
    engine::{
        Engine,
        attachments::{
            aside::Refused, desired, reconcile::link_eprobe, session::event_config::EventConfig,
            session::log_to_errno,
        },
    },
    event::{EventId, InstanceId},
    plan::source::ProgramContext,
};

/// Attaches an event to its hook. With `begins_off` it is turned off as a trigger would do it. When anything is refused, the
/// event is detached again.
///
/// # Errors
/// The kernel's for what it refuses, and `ENODEV` when the instance is gone.
pub(super) fn attach_event(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    begins_off: bool,
) -> Result<(), Errno> {
    engine.read_format(event)?;
    let (facts, catalogue) = (engine.facts.clone(), engine.registry.events().clone());
    let format = catalogue.try_format(event, &facts)?;
    let probes = engine.registry.dynamic().probes_of(event);
    let user = engine.user.has(event);
    // No record of it could be recorded.
    let too_long = user && format.fixed_size() > tracer_abi::MAX_PAYLOAD / 2;
    let without_hook = if user || engine.registry.synthetic().contains(event) {
        Some(ProgramContext::Inject)
    } else {
        probes.as_ref().and_then(|probes| engine.eprobe_target(probes.first()?)).map(|(_, hook)| hook)
    };
    let chosen = engine
        .registry
        .programs()
        .chosen(event, format)
        .unwrap_or_else(|| engine.attachments.hooks().of(format));
    let settings = desired::settings(engine, instance, event)?;
    let config = EventConfig { format, settings: &settings, begins_off };
    let linked = match (&without_hook, &probes) {
        (Some(_), _) => Ok(()),
        (None, Some(probes)) => {
            engine.open_for_probes(instance, event, probes);
            engine.link_probes(instance, event, probes, &config)?
        }
        (None, None) => {
            engine.link_file(instance, event, &chosen, &config)?;
            engine.open_perf_event(instance, event, &chosen.via);
            Ok(())
        }
    };
    // Events whose programs this one refers to may have come or gone while others had turns.
    let settings = desired::settings(engine, instance, event)?;
    let config = EventConfig { format, settings: &settings, begins_off };
    let (mut no_hook, mut refused) = (None, Refused::default());
    let session = engine.attachments.session_mut(instance).ok_or(Errno::NODEV)?;
    let attached = match (without_hook, &probes) {
        _ if too_long => Ok(()),
        (Some(hook), _) => session.attach_emitted(event, hook, &config).map_err(|error| log_to_errno(&error)),
        (None, Some(probes)) => {
            linked.and_then(|()| session.attach_probes(event, probes, &config, &facts)).map_err(|tried| {
                tracing::warn!("{}: {tried}", format.full_name());
                no_hook = Some(tried.to_string());
                tried.errno()
            })
        }
        (None, None) => {
            session.attach_hook(event, &chosen, &config).or_else(|error| refused.keep(&chosen, &error))
        }
    };
    let attached = match refused.0 {
        // A filter may want a value that only the kernel's own record has.
        Some(why) => engine.attach_tracepoint(instance, event, why, &config),
        None => attached,
    };
    engine.forget_opened(instance);
    if let Some(why) = no_hook {
        let entry =
            format!("tracer: error: no hook: {why}\n  Command: {}\n           ^\n", format.full_name());
        engine.state(instance)?.errors.push(monotonic(), entry.into_bytes());
    }
    attached?;
    let state = engine.state(instance)?;
    let newly = state.enabled.insert(event);
    state.recorded.insert(event);
    if probes.is_some() {
        engine.registry.dynamic_mut().profile_mut().begin(event, instance);
    }
    let is_counted = newly && probes.is_some();
    let mut done = if is_counted { link_eprobe(engine, instance, event, true) } else { Ok(()) };
    if done.is_ok() {
        done = engine.changed(instance, event);
        if done.is_err() && is_counted {
            let _ = link_eprobe(engine, instance, event, false);
        }
    }
    if done.is_err() {
        engine.state(instance)?.enabled.remove(&event);
        if let Some(session) = engine.attachments.session_mut(instance) {
            session.detach([event]);
        }
        let _ = engine.changed(instance, event);
    }
    done
}
