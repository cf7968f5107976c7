//! Attaches the probes of an instance's dynamic events.

use std::collections::HashMap;

use crate::{
    attach::{AttachError, Cause, FunctionLinks, Hooks, Job, LinkedFunctions, Planned, Request},
    engine::{
        attachments::{
            plan::ProbeState,
            session::{
                InstanceSession,
                event_config::{EventConfig, EventSettings},
                table::{AttachedPart, AttachedParts, ProbePart, ProbeProgram, ProgramRole},
            },
        },
        command::error::CommandError,
        facts::Facts,
        hooks::AttachPlan,
        probes::{self, Tried},
    },
    event::{EventId, Slot, dynamic::Target},
    lang::define::Defined,
    sys::Errno,
};

/// A probe that is complete except for its link.
type PlannedProbe = (Planned, AttachPlan);

/// Probes of an event that are at files, by serial number; some may be refused.
#[derive(Debug)]
pub(crate) struct PlannedProbes(Vec<(u64, Result<PlannedProbe, Tried>)>);

/// Probes of an event whose links were made or refused, by serial number, and the settings of their programs.
#[derive(Debug)]
pub(super) struct Prepared {
    probes: HashMap<u64, Result<AttachedPart, Tried>>,
    settings: EventSettings,
}

/// The refusal of one hook.
fn refused(plan: &AttachPlan, error: &AttachError) -> Tried {
    let mut tried = Tried::default();
    tried.refused(plan.name(), error);
    tried
}

/// The request for a probe. Triggers enable and disable the event through the slot of its first probe.
pub(super) fn request<'a>(
    config: &EventConfig<'a>,
    candidate: &'a AttachPlan,
    first: Option<Slot>,
) -> Request<'a> {
    let mut request = config.request(&candidate.point, &candidate.context);
    request.irqs_off = candidate.irqs_off;
    request.other = None;
    request.hit_actions.soft_slot = first;
    request
}

impl InstanceSession {
    /// Attaches the probes of an event. If one is refused, none is attached.
    ///
    /// If the event is attached already, probes that stay keep their hooks, new ones are attached before the others are
    /// detached, and the event stays enabled or disabled. A refused probe is then missing. Returns the serial numbers
    /// of the new probes, and the first error of a probe that was not refused before.
    pub(crate) fn attach_probes(
        &mut self,
        event: EventId,
        definitions: &[Defined],
        config: &EventConfig<'_>,
        facts: &Facts,
    ) -> (Vec<u64>, Result<(), Tried>) {
        let is_off = self.is_off(event).unwrap_or(config.begins_off);
        let config = EventConfig { begins_off: is_off, ..*config };
        let before = self.table.get(event, ProgramRole::Probe);
        let is_attached = before.is_some();
        let (mut ready, settings) = match self.prepared.remove(&event) {
            // The programs may read the word of a probe that was refused.
            Some(ready) if ready.probes.values().any(Result::is_err) => (ready.probes, None),
            Some(ready) => (ready.probes, Some(ready.settings)),
            None => (HashMap::new(), Some(config.settings.clone())),
        };
        let mut first: Option<Slot> = None;
        let (mut probes, mut new, mut done) = (Vec::new(), Vec::new(), Ok(()));
        for Defined { probe, serial, .. } in definitions {
            // As in the kernel, the probe is registered when its module is loaded.
            if probes::waits(probe, facts) == Some(true) {
                probes.push((*serial, Some(ProbeProgram::Waits)));
                continue;
            }
            if let Some(part) = before.and_then(|parts| parts.of_serial(*serial)) {
                first = first.or(part.attached.slot());
                probes.push((*serial, None));
                continue;
            }
            let dispatch = self.style.probe();
            let mut attach =
                |candidate: &AttachPlan| self.session.attach(&request(&config, candidate, first), dispatch);
            let attached = ready.remove(serial).unwrap_or_else(|| {
                let (attached, plan) = probes::candidates(probe, facts).first(&mut attach)?;
                Ok(AttachedPart::new(attached, plan))
            });
            match attached {
                Ok(part) => {
                    first = first.or(part.attached.slot());
                    new.push(*serial);
                    probes.push((*serial, Some(part.into())));
                }
                Err(tried) => {
                    probes.push((*serial, Some(ProbeProgram::Refused)));
                    let mut states = before.into_iter().flat_map(AttachedParts::states);
                    if !states.any(|known| known == (*serial, ProbeState::Refused)) {
                        done = done.and(Err(tried));
                    }
                }
            }
        }
        if done.is_err() && !is_attached {
            let own = |(serial, program): (u64, Option<ProbeProgram>)| {
                Some(ProbePart { serial, program: program? })
            };
            self.release(AttachedParts::new(probes.into_iter().filter_map(own).collect(), &config), drop);
            return (Vec::new(), done);
        }
        let arranged = self.arrange(event, probes, settings, &config);
        (new, done.and(arranged))
    }

    /// Stores the probes of an event in the order of their definition, and detaches those that are not among them. A
    /// probe without a program stays as it is. `settings` are what the new programs do; `None` if they read the word of
    /// a probe that was refused.
    fn arrange(
        &mut self,
        event: EventId,
        probes: Vec<(u64, Option<ProbeProgram>)>,
        settings: Option<EventSettings>,
        config: &EventConfig<'_>,
    ) -> Result<(), Tried> {
        self.drop_injected(event);
        let old = self.table.take(event, ProgramRole::Probe);
        let is_new = old.is_none();
        let is_same = old.as_ref().is_none_or(|old| old.settings == settings);
        let mut old = old.unwrap_or_default();
        let before = old.slot();
        let stored = probes.into_iter().filter_map(|(serial, program)| match program {
            Some(program) => Some(ProbePart { serial, program }),
            None => old.take_serial(serial),
        });
        let mut parts = AttachedParts::new(stored.collect(), config);
        parts.settings = settings.filter(|_| is_same);
        let is_moved = before.is_some() && parts.slot() != before;
        if let (true, Some(before), Some(first)) = (is_moved, before, parts.slot()) {
            // A trigger may have changed the word since the event's state was read.
            self.session.switches().set_soft(first, self.session.switches().soft(before));
        }
        // Programs that stay read the word of the slot that was the first before.
        let mut done = Ok(());
        let mut is_stale = is_moved || parts.settings.as_ref() != Some(config.settings);
        while is_stale {
            is_stale = false;
            let first = parts.slot();
            for probe in &mut parts.probes {
                let ProbeProgram::Attached(part) = &mut probe.program else { continue };
                let AttachedPart { attached, plan } = &mut **part;
                if let Err(error) = self.session.replace(attached, &request(config, plan, first)) {
                    done = done.and(Err(refused(plan, &error)));
                    let program = std::mem::replace(&mut probe.program, ProbeProgram::Refused);
                    old.probes.push(ProbePart { serial: probe.serial, program });
                    // The others may read the word of this one.
                    is_stale = true;
                }
            }
        }
        parts.settings = Some(config.settings.clone());
        self.release(old, drop);
        if is_new && done.is_err() {
            self.release(parts, drop);
        } else {
            self.table.insert(event, ProgramRole::Probe, parts);
        }
        done
    }

    /// Plans the links of probes at files that are not attached yet. Skips other probes.
    pub(crate) fn plan_probes(
        &mut self,
        event: EventId,
        definitions: &[Defined],
        config: &EventConfig<'_>,
        facts: &Facts,
    ) -> (PlannedProbes, Vec<Job>) {
        let (mut all, mut jobs) = (Vec::new(), Vec::new());
        let mut first = None;
        let before = self.table.get(event, ProgramRole::Probe);
        let at_files = |defined: &&Defined| matches!(defined.probe.event.target, Target::File { .. });
        for Defined { probe, serial, .. } in definitions.iter().filter(at_files) {
            if let Some(part) = before.and_then(|parts| parts.of_serial(*serial)) {
                first = first.or(part.attached.slot());
                continue;
            }
            let dispatch = self.style.probe();
            let plan =
                |candidate: &AttachPlan| self.session.plan(&request(config, candidate, first), dispatch);
            let planned = probes::candidates(probe, facts).first(plan).map(|((planned, job), plan)| {
                first = first.or(planned.slot());
                jobs.push(job);
                (planned, plan)
            });
            all.push((*serial, planned));
        }
        (PlannedProbes(all), jobs)
    }

    /// Stores planned probes whose links were made or refused. [`InstanceSession::attach_probes`] takes them.
    pub(crate) fn finish_probes(
        &mut self,
        event: EventId,
        PlannedProbes(planned): PlannedProbes,
        made: Result<Vec<Hooks>, CommandError>,
        config: &EventConfig<'_>,
    ) {
        let (made, missing) = match made {
            Ok(made) => (made, Errno::CANCELED),
            Err(error) => (Vec::new(), error.errno()),
        };
        let mut made = made.into_iter();
        let mut finish = |(planned, plan): PlannedProbe| {
            let hooks = made.next().unwrap_or(Err(Cause::Hook(plan.name(), missing)));
            match self.session.finish(planned, hooks) {
                Ok(attached) => Ok(AttachedPart::new(attached, plan)),
                Err(error) => Err(refused(&plan, &error)),
            }
        };
        let probes: HashMap<_, _> =
            planned.into_iter().map(|(serial, planned)| (serial, planned.and_then(&mut finish))).collect();
        if !probes.is_empty() {
            self.prepared.insert(event, Prepared { probes, settings: config.settings.clone() });
        }
    }

    /// Plans as few links as possible for function events.
    pub(crate) fn plan_shared(
        &mut self,
        events: &[SharedProbe],
        config: &[EventConfig<'_>],
    ) -> FunctionLinks {
        let requests: Vec<_> =
            events.iter().zip(config).map(|(probe, config)| request(config, &probe.plan, None)).collect();
        self.session.plan_functions(&requests)
    }

    /// Stores function events whose links were made with these settings. [`InstanceSession::attach_probes`] takes them.
    pub(crate) fn finish_shared(
        &mut self,
        events: Vec<SharedProbe>,
        settings: Vec<EventSettings>,
        linked: LinkedFunctions,
    ) {
        for ((probe, settings), attached) in events.into_iter().zip(settings).zip(linked.finish()) {
            let Some(attached) = attached else { continue };
            let probes = HashMap::from([(probe.serial, Ok(AttachedPart::new(attached, probe.plan)))]);
            self.prepared.insert(probe.event, Prepared { probes, settings });
        }
    }
}

/// The only probe of an event, at a function.
#[derive(Debug)]
pub(crate) struct SharedProbe {
    pub(crate) event: EventId,
    pub(crate) serial: u64,
    pub(crate) plan: AttachPlan,
}
