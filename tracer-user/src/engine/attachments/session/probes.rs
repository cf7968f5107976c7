//! Attaches the probes of an instance's dynamic events.

use crate::{
    attach::{AttachError, Cause, FunctionLinks, Hooks, Job, LinkedFunctions, Planned, Request},
    engine::{
        attachments::session::{
            InstanceSession,
            event_config::EventConfig,
            table::{AttachedPart, AttachedParts, ProgramRole},
        },
        command::error::CommandError,
        facts::Facts,
        hooks::AttachPlan,
        probes::{self, Tried},
    },
    event::{EventId, Slot, dynamic::Target},
    lang::define::Probe,
    sys::Errno,
};

/// The probes of one event that are at files, complete except for their links.
pub(crate) type PlannedProbes = Vec<(Planned, AttachPlan)>;

/// The request for a probe. Triggers enable and disable the event through the slot of its first probe.
fn request<'a>(config: &EventConfig<'a>, candidate: &'a AttachPlan, first: Option<Slot>) -> Request<'a> {
    let mut request = config.request(&candidate.point, &candidate.context);
    request.irqs_off = candidate.irqs_off;
    request.other = None;
    request.hit_actions.soft_slot = first;
    request
}

impl InstanceSession {
    /// Attaches the probes of an event, all or none.
    pub(crate) fn attach_probes(
        &mut self,
        event: EventId,
        definitions: &[Probe],
        config: &EventConfig<'_>,
        facts: &Facts,
    ) -> Result<(), Tried> {
        if let Some(prepared) = self.prepared.remove(&event) {
            self.put_probes(event, prepared);
            return Ok(());
        }
        let mut attached = AttachedParts::default();
        for probe in definitions {
            // As in the kernel, the probe is registered when its module is loaded.
            if probes::waits(probe, facts) == Some(true) {
                attached.0.push(None);
                continue;
            }
            let first = attached.slots().next();
            match self.attach_probe(probe, config, first, facts) {
                Ok(one) => attached.0.push(Some(one)),
                Err(tried) => {
                    return Err(tried);
                }
            }
        }
        self.put_probes(event, attached);
        Ok(())
    }

    /// Plans the links of probes at files. Skips other probes.
    pub(crate) fn plan_probes(
        &mut self,
        definitions: &[Probe],
        config: &EventConfig<'_>,
        facts: &Facts,
    ) -> Result<(PlannedProbes, Vec<Job>), Tried> {
        let (mut planned, mut jobs) = (PlannedProbes::new(), Vec::new());
        for probe in definitions.iter().filter(|probe| matches!(probe.event.target, Target::File { .. })) {
            let probes::Candidates { usable, lacking: mut tried } = probes::candidates(probe, facts);
            let first = planned.first().and_then(|(planned, _)| planned.slot());
            let mut done = Err(());
            for candidate in usable {
                let dispatch = self.style.probe();
                match self.kernel_mut().plan(&request(config, &candidate, first), dispatch) {
                    Ok((one, job)) => {
                        planned.push((one, candidate));
                        jobs.push(job);
                        done = Ok(());
                        break;
                    }
                    Err(error) => {
                        tracing::debug!("{error}: {}", error.verifier_log().unwrap_or_default());
                        tried.refused(candidate.name(), &error);
                    }
                }
            }
            if done.is_err() {
                return Err(tried);
            }
        }
        Ok((planned, jobs))
    }

    /// Stores planned probes whose links were made, all or none. [`InstanceSession::attach_probes`] takes them.
    pub(crate) fn finish_probes(
        &mut self,
        event: EventId,
        planned: PlannedProbes,
        made: Result<Vec<Hooks>, CommandError>,
    ) -> Result<(), Tried> {
        let (made, missing) = match made {
            Ok(made) => (made, Errno::CANCELED),
            Err(error) => (Vec::new(), error.errno()),
        };
        let mut made = made.into_iter();
        let (mut attached, mut tried) = (AttachedParts::default(), None);
        for (planned, plan) in planned {
            let hooks = made.next().unwrap_or(Err(Cause::Hook(plan.name(), missing)));
            match self.kernel_mut().finish(planned, hooks) {
                Ok(gated) => attached.0.push(Some(AttachedPart::new(gated, plan))),
                Err(error) => {
                    tried.get_or_insert_with(Tried::default).refused(plan.name(), &error);
                }
            }
        }
        if let Some(tried) = tried {
            return Err(tried);
        }
        self.prepared.insert(event, attached);
        Ok(())
    }

    fn attach_probe(
        &mut self,
        probe: &Probe,
        config: &EventConfig<'_>,
        first: Option<Slot>,
        facts: &Facts,
    ) -> Result<AttachedPart, Tried> {
        let probes::Candidates { usable, lacking: mut tried } = probes::candidates(probe, facts);
        for candidate in usable {
            let dispatch = self.style.probe();
            match self.kernel_mut().attach(&request(config, &candidate, first), dispatch) {
                Ok(gated) => {
                    tracing::debug!(hook = candidate.name(), %tried, "{}", config.format.full_name());
                    return Ok(AttachedPart::new(gated, candidate));
                }
                Err(error) => {
                    tracing::debug!("{error}: {}", error.verifier_log().unwrap_or_default());
                    tried.refused(candidate.name(), &error);
                }
            }
        }
        Err(tried)
    }

    /// Replaces the programs of an attached dynamic event.
    pub(crate) fn change_probes(
        &mut self,
        event: EventId,
        config: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        let Some(mut parts) = self.table.take(event, ProgramRole::Probe) else { return Ok(()) };
        let first = parts.slots().next();
        let changed = parts.iter_mut().try_for_each(|part| {
            self.kernel_mut().replace(&mut part.attached, &request(config, &part.plan, first))
        });
        self.put_probes(event, parts);
        changed
    }

    /// Plans as few links as possible for function events.
    pub(crate) fn plan_shared(
        &mut self,
        events: &[(EventId, AttachPlan)],
        config: &[EventConfig<'_>],
    ) -> FunctionLinks {
        let requests: Vec<_> = events
            .iter()
            .zip(config)
            .map(|((_, candidate), config)| request(config, candidate, None))
            .collect();
        self.kernel_mut().plan_functions(&requests)
    }

    /// Stores function events whose links were made. [`InstanceSession::attach_probes`] takes them.
    pub(crate) fn finish_shared(&mut self, events: Vec<(EventId, AttachPlan)>, linked: LinkedFunctions) {
        let all = linked.finish();
        let linked = events
            .into_iter()
            .zip(all)
            .filter_map(|((event, plan), attached)| Some((event, AttachedPart::new(attached?, plan).into())));
        self.prepared.extend(linked);
    }

    /// Detaches the events that were linked and not enabled.
    pub(crate) fn drop_prepared(&mut self) {
        self.prepared.clear();
    }
}
