//! Attaches the probes of an instance's dynamic events.

use crate::{
    attach::{Cause, FunctionLinks, Hooks, Job, LinkedFunctions, Planned, Request},
    engine::{
        attachments::{
            plan::ProbeState,
            session::{
                InstanceSession,
                event_config::{EventConfig, EventSettings},
                note_dropped,
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

/// Probes of an event that are at files, by serial number: complete except for their links, or refused.
#[derive(Debug, Default)]
pub(crate) struct PlannedProbes {
    probes: Vec<(u64, Planned, AttachPlan)>,
    refused: Vec<(u64, Tried)>,
}

/// Probes of an event whose links were made or refused, and the settings of their programs.
#[derive(Debug)]
pub(super) struct Prepared {
    probes: Vec<(u64, Result<AttachedPart, Tried>)>,
    settings: EventSettings,
    /// Whether a link was refused.
    is_refused: bool,
}

impl Prepared {
    fn take(&mut self, serial: u64) -> Option<Result<AttachedPart, Tried>> {
        let at = self.probes.iter().position(|(own, _)| *own == serial)?;
        Some(self.probes.remove(at).1)
    }
}

/// The probes of an event that are about to be stored.
struct Arrangement {
    /// All probes, in the order of their definition. `None` for one that stays as it is.
    probes: Vec<(u64, Option<ProbeProgram>)>,
    /// What the new programs do. `None` if they read the word of a probe that was refused.
    settings: Option<EventSettings>,
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
        let is_attached = self.table.has(event, ProgramRole::Probe);
        let mut ready = self.prepared.remove(&event);
        let mut first: Option<Slot> = None;
        let (mut probes, mut new, mut done) = (Vec::new(), Vec::new(), Ok(()));
        for Defined { probe, serial, .. } in definitions {
            // As in the kernel, the probe is registered when its module is loaded.
            if probes::waits(probe, facts) == Some(true) {
                probes.push((*serial, Some(ProbeProgram::Waits)));
                continue;
            }
            let known = self.table.get(event, ProgramRole::Probe).and_then(|parts| parts.of_serial(*serial));
            if let Some(part) = known {
                first = first.or(part.attached.slot());
                probes.push((*serial, None));
                continue;
            }
            let prepared = ready.as_mut().and_then(|ready| ready.take(*serial));
            let dispatch = self.style.probe();
            let mut attach =
                |candidate: &AttachPlan| self.session.attach(&request(&config, candidate, first), dispatch);
            let attached = prepared.unwrap_or_else(|| {
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
                    let mut states =
                        self.table.get(event, ProgramRole::Probe).into_iter().flat_map(AttachedParts::states);
                    if !states.any(|known| known == (*serial, ProbeState::Refused)) {
                        done = done.and(Err(tried));
                    }
                }
            }
        }
        let settings = match ready {
            Some(ready) => Some(ready.settings).filter(|_| !ready.is_refused),
            None => Some(config.settings.clone()),
        };
        if done.is_err() && !is_attached {
            let own = |(serial, program): (u64, Option<ProbeProgram>)| {
                Some(ProbePart { serial, program: program? })
            };
            self.drop_parts(AttachedParts::new(probes.into_iter().filter_map(own).collect(), &config));
            return (Vec::new(), done);
        }
        let arranged = self.arrange(event, Arrangement { probes, settings }, &config);
        (new, done.and(arranged))
    }

    /// Stores the probes of an event, and detaches those that are not among them.
    fn arrange(
        &mut self,
        event: EventId,
        Arrangement { probes, settings }: Arrangement,
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
                    let mut tried = Tried::default();
                    tried.refused(plan.name(), &error);
                    done = done.and(Err(tried));
                    let refused = std::mem::replace(&mut probe.program, ProbeProgram::Refused);
                    old.probes.push(ProbePart { serial: probe.serial, program: refused });
                    // The others may read the word of this one.
                    is_stale = true;
                }
            }
        }
        parts.settings = Some(config.settings.clone());
        self.drop_parts(old);
        if is_new && done.is_err() {
            self.drop_parts(parts);
        } else {
            self.table.insert(event, ProgramRole::Probe, parts);
        }
        done
    }

    /// Detaches programs, and keeps their counts.
    fn drop_parts(&mut self, parts: AttachedParts) {
        let slots: Vec<Slot> = parts.slots().collect();
        drop(parts);
        note_dropped(&self.session, &mut self.ledger, slots);
    }

    /// Plans the links of probes at files that are not attached yet. Skips other probes.
    pub(crate) fn plan_probes(
        &mut self,
        event: EventId,
        definitions: &[Defined],
        config: &EventConfig<'_>,
        facts: &Facts,
    ) -> (PlannedProbes, Vec<Job>) {
        let (mut planned, mut jobs) = (PlannedProbes::default(), Vec::new());
        let mut first = None;
        let at_files = |defined: &&Defined| matches!(defined.probe.event.target, Target::File { .. });
        for Defined { probe, serial, .. } in definitions.iter().filter(at_files) {
            let known = self.table.get(event, ProgramRole::Probe).and_then(|parts| parts.of_serial(*serial));
            if let Some(part) = known {
                first = first.or(part.attached.slot());
                continue;
            }
            let dispatch = self.style.probe();
            let plan =
                |candidate: &AttachPlan| self.session.plan(&request(config, candidate, first), dispatch);
            match probes::candidates(probe, facts).first(plan) {
                Ok(((one, job), plan)) => {
                    first = first.or(one.slot());
                    planned.probes.push((*serial, one, plan));
                    jobs.push(job);
                }
                Err(tried) => planned.refused.push((*serial, tried)),
            }
        }
        (planned, jobs)
    }

    /// Stores planned probes whose links were made or refused. [`InstanceSession::attach_probes`] takes them.
    pub(crate) fn finish_probes(
        &mut self,
        event: EventId,
        planned: PlannedProbes,
        made: Result<Vec<Hooks>, CommandError>,
        config: &EventConfig<'_>,
    ) {
        let (made, missing) = match made {
            Ok(made) => (made, Errno::CANCELED),
            Err(error) => (Vec::new(), error.errno()),
        };
        let mut made = made.into_iter();
        let mut probes: Vec<_> =
            planned.refused.into_iter().map(|(serial, tried)| (serial, Err(tried))).collect();
        for (serial, planned, plan) in planned.probes {
            let hooks = made.next().unwrap_or(Err(Cause::Hook(plan.name(), missing)));
            let finished = self.kernel_mut().finish(planned, hooks);
            probes.push((
                serial,
                match finished {
                    Ok(attached) => Ok(AttachedPart::new(attached, plan)),
                    Err(error) => {
                        let mut tried = Tried::default();
                        tried.refused(plan.name(), &error);
                        Err(tried)
                    }
                },
            ));
        }
        let is_refused = probes.iter().any(|(_, attached)| attached.is_err());
        if !probes.is_empty() {
            self.prepared.insert(event, Prepared { probes, settings: config.settings.clone(), is_refused });
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
        self.kernel_mut().plan_functions(&requests)
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
            let probes = vec![(probe.serial, Ok(AttachedPart::new(attached, probe.plan)))];
            self.prepared.insert(probe.event, Prepared { probes, settings, is_refused: false });
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
