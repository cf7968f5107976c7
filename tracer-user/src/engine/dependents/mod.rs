//! The dependents of events without a tracepoint: the event probes on such an event, and its histograms.
//!
//! The records of a synthetic event come from the programs that emit it. The records of an event probe on such an
//! event are made from the records of its target. The records of a dynamic event come from relays on the hooks of its
//! probes, which are attached as long as the event has dependents. Each instance has its own relays.

pub(crate) mod emission;
pub(crate) mod hist_programs;
pub(crate) mod writer_stack;

use crate::{
    attach::{self, AttachPoint, Block, Relayed},
    code::lower::hist::Entry,
    engine::{
        Engine,
        attachments::{
            desired, off_thread,
            session::{
                InstanceSession,
                table::{AttachedPart, AttachedParts, ProgramRole},
            },
        },
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        hooks::{self, AttachPlan},
        probes,
        records::mark::Writer,
    },
    event::{EventId, Format, InstanceId, dynamic::Target},
    lang::define::Probe,
    plan::source::ProgramContext,
};

/// The source of the records of an event without a tracepoint.
enum Source {
    /// Programs that emit it.
    Emission,
    /// The target event of an event probe.
    Event(EventId),
    /// Its own hooks.
    Hooks(Vec<Probe>),
    /// The place of a program's event.
    Place(AttachPlan),
    /// Clients that write records.
    Writers,
}

/// The hook of a relay.
enum Hooked {
    /// The best hook of a probe.
    Probe(Probe),
    /// This hook.
    At(AttachPlan),
}

impl Hooked {
    fn probe(&self) -> Option<&Probe> {
        match self {
            Self::Probe(probe) => Some(probe),
            Self::At(_) => None,
        }
    }
}

/// The source of an event's records; `None` for the kernel's own events.
fn source(engine: &Engine, event: EventId) -> Option<Source> {
    if engine.registry.synthetic().contains(event) {
        return Some(Source::Emission);
    }
    if engine.user.has(event) {
        return Some(Source::Writers);
    }
    let chosen = |format: &Format| engine.registry.programs().chosen(event, format);
    if let Some(place) = engine.registry.events().known_format(event).and_then(chosen) {
        return Some(Source::Place(place));
    }
    let probes = engine.registry.dynamic().probes_of(event)?;
    if let Some((target, _)) = probes.first().and_then(|probe| eprobe_target(engine, probe)) {
        return Some(Source::Event(target));
    }
    Some(Source::Hooks(probes))
}

/// Whether an event only ever happens with interrupts off. An event probe happens where its target does.
fn irqs_off(engine: &Engine, event: EventId) -> bool {
    match source(engine, event) {
        Some(Source::Hooks(probes)) => probes.iter().all(hooks::probe_irqs_off),
        Some(Source::Event(target)) => irqs_off(engine, target),
        Some(Source::Emission | Source::Writers | Source::Place(_)) | None => false,
    }
}

/// Whether the dependents of an event get its records from relays.
pub(crate) fn is_relayed(engine: &Engine, event: EventId) -> bool {
    matches!(source(engine, event), Some(Source::Hooks(_) | Source::Event(_) | Source::Place(_)))
}

/// The target event of an event probe, if the kernel does not know it, and the sources of values in its records.
pub(crate) fn eprobe_target(engine: &Engine, probe: &Probe) -> Option<(EventId, ProgramContext)> {
    let Target::Event { system, name, filter } = &probe.event.target else { return None };
    let event = engine.registry.events().find(engine.registry.events().find_system(system)?, name)?;
    let format =
        engine.registry.events().known_format(event).filter(|_| engine.registry.events().is_made(event))?;
    let context = probes::on_record(probe, filter.as_deref(), format, &engine.facts);
    context.map_err(|why| tracing::warn!("{}: {why}", probe.event.name)).ok().map(|context| (event, context))
}

/// The event probes on an event that the kernel does not know.
fn probes_on(engine: &Engine, event: EventId) -> Vec<(EventId, ProgramContext)> {
    let name = engine.registry.events().full_name(event);
    let Some((system, name)) = name.split_once(':') else { return Vec::new() };
    let all = engine.registry.dynamic().eprobes_on(system, name);
    all.into_iter().filter_map(|(event, probe)| Some((event, eprobe_target(engine, &probe)?.1))).collect()
}

/// The dependents of an event in an instance, as parts of a program that has the event's records. `outer` are the
/// events whose records contain it.
pub(crate) fn dependent_parts(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    outer: &mut Vec<EventId>,
) -> Result<Vec<Block>, CommandError> {
    if outer.contains(&event) {
        return Ok(Vec::new());
    }
    outer.push(event);
    let parts = parts_after(engine, instance, event, outer);
    outer.pop();
    parts
}

fn parts_after(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    outer: &mut Vec<EventId>,
) -> Result<Vec<Block>, CommandError> {
    let mut parts = hist_programs::hist_parts(engine, instance, event, Entry::Record, outer)?;
    let irqs_off = irqs_off(engine, event);
    let (catalogue, facts) = (engine.registry.events().clone(), engine.facts.clone());
    for (probe, context) in probes_on(engine, event) {
        let format = catalogue.try_format(probe, &facts)?;
        if engine.attachments.session(instance).is_none() {
            break;
        }
        parts.extend(desired::with_config(engine, instance, probe, format, |session, config| {
            session.emitted_block(probe, config, irqs_off).map_err(CommandError::from)
        })?);
        let further = dependent_parts(engine, instance, probe, outer)?;
        if !further.is_empty() {
            let relay = Relayed {
                format,
                context: &context,
                nests: false,
                is_part: true,
                but_process: None,
                is_injected: false,
            };
            let relay = attach::relayed(&relay, facts.cpus(), &further);
            parts.push(relay?);
        }
    }
    Ok(parts)
}

/// Passes a record from user space to an event, if it is enabled in an instance, and to the dependents there, and
/// performs the actions that their triggers request.
pub(crate) fn pass_record(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    record: &[u8],
    writer: Writer,
) {
    let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
    hist_programs::count_record(engine, instance, event, record, &hit);
    emit_one(engine, instance, event, record, writer);
    pass_to_eprobes(engine, instance, event, record, writer);
}

/// Passes a record from user space to the event probes on its event, and to their histograms.
pub(crate) fn pass_to_eprobes(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    record: &[u8],
    writer: Writer,
) {
    let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
    for (probe, _) in probes_on(engine, event) {
        emit_one(engine, instance, probe, record, writer);
        let Some(session) = engine.attachments.session(instance) else { continue };
        for relay in session.table.get(probe, ProgramRole::Relay).into_iter().flat_map(AttachedParts::iter) {
            if let Err(error) = relay.attached.run(record, &hit) {
                tracing::warn!("{error}");
            }
        }
    }
}

/// Records a record from user space, and performs the actions that the event's triggers request.
fn emit_one(engine: &mut Engine, instance: InstanceId, event: EventId, record: &[u8], writer: Writer) {
    let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
    let session = engine.attachments.session(instance);
    match session.map_or(Ok(0), |session| session.run(event, ProgramRole::Emitted, record, &hit)) {
        Ok(actions) => writer_stack::perform(engine, instance, actions, record, writer),
        Err(error) => tracing::warn!("{error}"),
    }
}

/// Runs the dependents of an event probe for records from user space.
fn relay_writers(engine: &mut Engine, instance: InstanceId, event: EventId) -> Result<(), CommandError> {
    let parts = hist_programs::hist_parts(engine, instance, event, Entry::Injected, &mut vec![event])?;
    let probes = engine.registry.dynamic().probes_of(event).unwrap_or_default();
    let hooks: Vec<ProgramContext> =
        probes.iter().filter_map(|probe| Some(eprobe_target(engine, probe)?.1)).collect();
    let (catalogue, facts) = (engine.registry.events().clone(), engine.facts.clone());
    let format = catalogue.try_format(event, &facts)?;
    let Some(session) = engine.attachments.session_mut(instance) else { return Ok(()) };
    session.table.take(event, ProgramRole::Relay);
    if parts.is_empty() {
        return Ok(());
    }
    let mut relays = AttachedParts::default();
    for context in hooks {
        let place = AttachPlan::new(context, AttachPoint::Inject);
        relays.0.push(Some(attach_relay(session, &Hooked::At(place), format, &parts, &facts)?));
    }
    session.table.insert(event, ProgramRole::Relay, relays);
    Ok(())
}

/// Updates dependents after an event was enabled, disabled or changed in an instance.
pub(crate) fn propagate_enabled(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
) -> Result<(), CommandError> {
    match source(engine, event) {
        Some(Source::Emission) => {
            emission::relink(engine, event);
            Ok(())
        }
        Some(Source::Event(target)) => rebuild_dependents(engine, instance, target),
        Some(Source::Hooks(_) | Source::Place(_) | Source::Writers) | None => Ok(()),
    }
}

/// Updates the programs that pass an event's records to its dependents in an instance. To be called after a change of
/// the dependents.
pub(crate) fn rebuild_dependents(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
) -> Result<(), CommandError> {
    match source(engine, event) {
        None | Some(Source::Writers) => Ok(()),
        Some(Source::Emission) => {
            emission::relink(engine, event);
            Ok(())
        }
        Some(Source::Event(target)) => {
            if matches!(source(engine, target), Some(Source::Emission | Source::Writers)) {
                relay_writers(engine, instance, event)?;
            }
            rebuild_dependents(engine, instance, target)
        }
        Some(source @ (Source::Hooks(_) | Source::Place(_))) => {
            let probes = match source {
                Source::Hooks(probes) => probes.into_iter().map(Hooked::Probe).collect(),
                Source::Place(place) => vec![Hooked::At(place)],
                Source::Emission | Source::Event(_) | Source::Writers => Vec::new(),
            };
            let mut each = Vec::new();
            for probe in probes {
                let parts = dependent_parts(engine, instance, event, &mut Vec::new())?;
                if parts.is_empty() {
                    if let Some(session) = engine.attachments.session_mut(instance) {
                        session.table.take(event, ProgramRole::Relay);
                    }
                    return Ok(());
                }
                each.push((probe, parts));
            }
            let (catalogue, facts) = (engine.registry.events().clone(), engine.facts.clone());
            let format = catalogue.try_format(event, &facts)?;
            let probes: Vec<Probe> = each.iter().filter_map(|(hooked, _)| hooked.probe().cloned()).collect();
            let is_new = engine.attachments.session(instance);
            if is_new.is_some_and(|session| !session.table.has(event, ProgramRole::Relay)) {
                off_thread::open_for_probes(engine, instance, event, &probes);
            }
            let session = engine.attachments.session_mut(instance).ok_or(ErrorKind::Gone)?;
            let done = attach_relays(session, event, format, each, &facts);
            off_thread::forget_opened(engine, instance);
            done
        }
    }
}

/// Passes the records of a dynamic event, probe by probe, to parts.
fn attach_relays(
    session: &mut InstanceSession,
    event: EventId,
    format: &Format,
    probes: Vec<(Hooked, Vec<Block>)>,
    facts: &Facts,
) -> Result<(), CommandError> {
    let known = session.table.take(event, ProgramRole::Relay).filter(|known| known.0.len() == probes.len());
    let Some(mut known) = known else {
        let attach = |(probe, parts): (Hooked, Vec<Block>)| {
            attach_relay(session, &probe, format, &parts, facts).map(Some)
        };
        let relays = probes.into_iter().map(attach).collect::<Result<_, _>>()?;
        session.table.insert(event, ProgramRole::Relay, AttachedParts(relays));
        return Ok(());
    };
    // A relay whose program is refused keeps the old one.
    let mut first = Ok(());
    for (relay, (_, parts)) in known.iter_mut().zip(&probes) {
        let AttachedPart { attached, plan } = relay;
        first = first.and(session.kernel().replace_relay(attached, format, &plan.context, parts));
    }
    session.table.insert(event, ProgramRole::Relay, known);
    Ok(first?)
}

fn attach_relay(
    session: &mut InstanceSession,
    hooked: &Hooked,
    format: &Format,
    parts: &[Block],
    facts: &Facts,
) -> Result<AttachedPart, CommandError> {
    let probes::Candidates { usable, lacking: mut tried } = match hooked {
        Hooked::Probe(probe) => probes::candidates(probe, facts),
        Hooked::At(place) => {
            probes::Candidates { usable: vec![place.clone()], lacking: probes::Tried::default() }
        }
    };
    for candidate in usable {
        match session.kernel_mut().attach_relay(format, &candidate.context, &candidate.point, parts) {
            Ok(relay) => return Ok(AttachedPart::new(relay, candidate)),
            Err(error) => {
                tracing::debug!("{error}: {}", error.verifier_log().unwrap_or_default());
                tried.refused(candidate.name(), &error);
            }
        }
    }
    Err(tried.into())
}
