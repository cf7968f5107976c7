//! The dependents of events without a tracepoint: the event probes on such an event, and its histograms.
//!
//! The records of a synthetic event come from the programs that emit it. The records of an event probe on such an
//! event are made from the records of its target. The records of a dynamic event come from relays on the hooks of its
//! probes, which are attached as long as the event has dependents. Each instance has its own relays.

pub(crate) mod emission;
pub(crate) mod hist_programs;
pub(crate) mod sources;
pub(crate) mod writer_stack;

use self::sources::{RecordSources, Source};
use crate::{
    attach::{self, AttachPoint, Block, Relayed},
    code::lower::hist::Entry,
    engine::{
        Engine,
        attachments::{
            desired, off_thread,
            plan::ProbeState,
            session::{
                InstanceSession,
                table::{AttachedPart, AttachedParts, ProbePart, ProbeProgram, ProgramRole},
            },
        },
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        hooks::AttachPlan,
        probes,
        records::mark::Writer,
    },
    event::{EventId, Format, InstanceId},
    lang::define::{Defined, Probe},
    plan::source::ProgramContext,
};

/// The hook of a relay.
enum Hooked {
    /// The best hook of a probe.
    Probe(Box<Defined>),
    /// This hook.
    At(AttachPlan),
}

impl Hooked {
    fn probe(&self) -> Option<&Probe> {
        match self {
            Self::Probe(defined) => Some(&defined.probe),
            Self::At(_) => None,
        }
    }

    /// As [`ProbePart::serial`].
    fn serial(&self) -> u64 {
        match self {
            Self::Probe(defined) => defined.serial,
            Self::At(_) => 0,
        }
    }
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
    let irqs_off = RecordSources::of(engine).irqs_off(event);
    let (catalogue, facts) = (engine.registry.events().clone(), engine.facts.clone());
    for (probe, context) in RecordSources::of(engine).probes_on(event) {
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
    for (probe, _) in RecordSources::of(engine).probes_on(event) {
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
    let sources = RecordSources::of(engine);
    let hooks = probes.iter().filter_map(|defined| Some(sources.eprobe_target(&defined.probe)?.1));
    let hooks: Vec<ProgramContext> = hooks.collect();
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
        let part = attach_relay(session, &Hooked::At(place), format, &parts, &facts)?;
        relays.probes.push(ProbePart::attached(0, part));
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
    match RecordSources::of(engine).source(event) {
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
    match RecordSources::of(engine).source(event) {
        None | Some(Source::Writers) => Ok(()),
        Some(Source::Emission) => {
            emission::relink(engine, event);
            Ok(())
        }
        Some(Source::Event(target)) => {
            if matches!(RecordSources::of(engine).source(target), Some(Source::Emission | Source::Writers)) {
                relay_writers(engine, instance, event)?;
            }
            rebuild_dependents(engine, instance, target)
        }
        Some(source @ (Source::Hooks(_) | Source::Place(_))) => {
            let probes = match source {
                Source::Hooks(probes) => probes.into_iter().map(Box::new).map(Hooked::Probe).collect(),
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
            let session = engine.attachments.session(instance);
            let known: Vec<u64> = session
                .and_then(|session| session.table.get(event, ProgramRole::Relay))
                .map(|relays| relays.states().filter(|(_, state)| *state == ProbeState::Attached))
                .map(|attached| attached.map(|(serial, _)| serial).collect())
                .unwrap_or_default();
            let new = each.iter().map(|(hooked, _)| hooked).filter(|one| !known.contains(&one.serial()));
            off_thread::open_for_probes(engine, instance, event, new.filter_map(Hooked::probe));
            let session = engine.attachments.session_mut(instance).ok_or(ErrorKind::Gone)?;
            let done = attach_relays(session, event, format, each, &facts);
            engine.attachments.forget_opened(instance);
            done
        }
    }
}

/// Passes the records of a dynamic event, probe by probe, to parts. Relays of probes that stay keep their hooks. A relay
/// whose program is refused keeps the old one, and a new one that is refused is missing.
fn attach_relays(
    session: &mut InstanceSession,
    event: EventId,
    format: &Format,
    probes: Vec<(Hooked, Vec<Block>)>,
    facts: &Facts,
) -> Result<(), CommandError> {
    let known = session.table.take(event, ProgramRole::Relay);
    let is_new = known.is_none();
    let mut known = known.unwrap_or_default();
    let mut relays = AttachedParts::default();
    let mut first = Ok(());
    for (hooked, parts) in probes {
        let serial = hooked.serial();
        if hooked.probe().is_some_and(|probe| probes::waits(probe, facts) == Some(true)) {
            relays.probes.push(ProbePart { serial, program: ProbeProgram::Waits });
            continue;
        }
        let before = known.take_serial(serial).map(|probe| probe.program);
        let was_refused = matches!(before, Some(ProbeProgram::Refused));
        let program = match before {
            Some(ProbeProgram::Attached(mut part)) => {
                let AttachedPart { attached, plan } = &mut *part;
                let replaced = session.kernel().replace_relay(attached, format, &plan.context, &parts);
                first = first.and(replaced.map_err(CommandError::from));
                ProbeProgram::Attached(part)
            }
            _ => match attach_relay(session, &hooked, format, &parts, facts) {
                Ok(part) => part.into(),
                Err(error) if is_new => return Err(error),
                Err(error) => {
                    // The error of a relay is returned once.
                    first = if was_refused { first } else { first.and(Err(error)) };
                    ProbeProgram::Refused
                }
            },
        };
        relays.probes.push(ProbePart { serial, program });
    }
    session.table.insert(event, ProgramRole::Relay, relays);
    first
}

fn attach_relay(
    session: &mut InstanceSession,
    hooked: &Hooked,
    format: &Format,
    parts: &[Block],
    facts: &Facts,
) -> Result<AttachedPart, CommandError> {
    let candidates = match hooked {
        Hooked::Probe(defined) => probes::candidates(&defined.probe, facts),
        Hooked::At(place) => {
            probes::Candidates { usable: vec![place.clone()], lacking: probes::Tried::default() }
        }
    };
    let (relay, plan) = candidates.first(|candidate| {
        session.kernel_mut().attach_relay(format, &candidate.context, &candidate.point, parts)
    })?;
    Ok(AttachedPart::new(relay, plan))
}
