//! Attaches the probes of an instance's dynamic events.

use crate::{
    attach::{AttachError, Attached, Cause, FunctionLinks, Hooks, Job, LinkedFunctions, Planned, Request},
    engine::{
        attachments::session::{InstanceSession, event_config::EventConfig},
        command::error::CommandError,
        facts::Facts,
        probes::{self, Candidate, Tried},
    },
    event::{EventId, Slot, dynamic::Target},
    lang::define::Probe,
    sys::Errno,
};

/// The probes of one event that are at files, complete except for their links.
pub(crate) type PlannedProbes = Vec<(Planned, Candidate)>;

/// The probes of one event, each with its hook.
#[derive(Debug, Default)]
pub(crate) struct AttachedProbes {
    /// `None` for a probe that waits for its module.
    probes: Vec<Option<(Attached, Candidate)>>,
}

/// The request for a probe. Triggers enable and disable the event through the slot of its first probe.
fn request<'a>(config: &EventConfig<'a>, candidate: &'a Candidate, first: Option<Slot>) -> Request<'a> {
    let mut request = config.request(&candidate.point, &candidate.context);
    request.irqs_off = candidate.irqs_off;
    request.other = None;
    request.hit_actions.soft_slot = first;
    request
}

impl AttachedProbes {
    /// Hits and misses of each probe since it was attached. Probes that share a link count none, because no file
    /// shows the counts of function events (`f`).
    pub(crate) fn counts(&self) -> Vec<(u64, u64)> {
        let count = |(attached, _): &(Attached, Candidate)| (attached.hits(), attached.missed());
        self.probes.iter().map(|probe| probe.as_ref().map_or((0, 0), count)).collect()
    }

    /// The slots of the attached probes.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.probes.iter().flatten().filter_map(|(attached, _)| attached.slot())
    }

    /// The probes that are attached, each with its hook.
    pub(super) fn all(&self) -> impl Iterator<Item = &(Attached, Candidate)> {
        self.probes.iter().flatten()
    }

    /// For each probe, whether it waits for its module.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = bool> {
        self.probes.iter().map(Option::is_none)
    }
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
        let mut attached = AttachedProbes::default();
        if let Some((shared, candidate)) = self.shared.remove(&event) {
            attached.probes.push(Some((shared, candidate)));
            self.put_probes(event, attached);
            return Ok(());
        }
        if let Some(linked) = self.linked.remove(&event) {
            self.put_probes(event, linked);
            return Ok(());
        }
        for probe in definitions {
            // As in the kernel, the probe is registered when its module is loaded.
            if probes::waits(probe, facts) == Some(true) {
                attached.probes.push(None);
                continue;
            }
            let first = attached.slots().next();
            match self.attach_probe(probe, config, first, facts) {
                Ok(one) => attached.probes.push(Some(one)),
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
        let (mut attached, mut tried) = (AttachedProbes::default(), None);
        for (planned, candidate) in planned {
            let hooks = made.next().unwrap_or(Err(Cause::Hook(candidate.name(), missing)));
            match self.kernel_mut().finish(planned, hooks) {
                Ok(gated) => attached.probes.push(Some((gated, candidate))),
                Err(error) => {
                    tried.get_or_insert_with(Tried::default).refused(candidate.name(), &error);
                }
            }
        }
        if let Some(tried) = tried {
            return Err(tried);
        }
        self.linked.insert(event, attached);
        Ok(())
    }

    fn attach_probe(
        &mut self,
        probe: &Probe,
        config: &EventConfig<'_>,
        first: Option<Slot>,
        facts: &Facts,
    ) -> Result<(Attached, Candidate), Tried> {
        let probes::Candidates { usable, lacking: mut tried } = probes::candidates(probe, facts);
        for candidate in usable {
            let dispatch = self.style.probe();
            match self.kernel_mut().attach(&request(config, &candidate, first), dispatch) {
                Ok(gated) => {
                    tracing::debug!(hook = candidate.name(), %tried, "{}", config.format.full_name());
                    return Ok((gated, candidate));
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
        let Some(mut attached) = self.probes.remove(&event) else { return Ok(()) };
        let first = attached.slots().next();
        let changed = attached.probes.iter_mut().flatten().try_for_each(|(attached, candidate)| {
            self.kernel_mut().replace(attached, &request(config, candidate, first))
        });
        self.put_probes(event, attached);
        changed
    }

    /// Plans as few links as possible for function events.
    pub(crate) fn plan_shared(
        &mut self,
        events: &[(EventId, Candidate)],
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
    pub(crate) fn finish_shared(&mut self, events: Vec<(EventId, Candidate)>, linked: LinkedFunctions) {
        let all = linked.finish();
        let attached = events.into_iter().zip(all);
        self.shared.extend(
            attached.filter_map(|((event, candidate), attached)| Some((event, (attached?, candidate)))),
        );
    }

    /// Detaches the function events that were linked and not enabled.
    pub(crate) fn drop_unused_shared(&mut self) {
        self.shared.clear();
    }
}
