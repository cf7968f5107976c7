//! Dynamic events of an instance on their hooks.

use crate::{
    attach::{
        AttachError, Attached, Cause, Dispatch, FunctionLinks, Hooks, Job, LinkedFunctions, Planned, Request,
    },
    engine::{
        attachments::session::{InstanceSession, event_config::EventConfig},
        facts::Facts,
        probes::{self, Candidate, Tried},
    },
    event::{EventId, Slot, dynamic::Target},
    lang::define::Probe,
    sys::Errno,
};

/// The probes of one event that are at files, and have everything but their links.
pub(in crate::engine) type PlannedProbes = Vec<(Planned, Candidate)>;

/// The probes of one event, each with the hook that it was given.
#[derive(Debug, Default)]
pub(in crate::engine) struct AttachedProbes {
    /// None for what waits for its module.
    probes: Vec<Option<(Attached, Candidate)>>,
}

/// What is asked of the session for a probe; triggers turn the event on and off at the slot of its first one.
fn request<'a>(wanted: &EventConfig<'a>, candidate: &'a Candidate, first: Option<Slot>) -> Request<'a> {
    let mut request = wanted.request(&candidate.via, &candidate.hook);
    request.irqs_off = candidate.irqs_off;
    request.other = None;
    request.extras.soft_slot = first;
    request
}

impl AttachedProbes {
    /// Hits and misses of each probe since it was hung up. Those that share a link count none: no file shows it of an `f`.
    pub(in crate::engine) fn counts(&self) -> Vec<(u64, u64)> {
        let count = |(attached, _): &(Attached, Candidate)| (attached.hits(), attached.missed());
        self.probes.iter().map(|probe| probe.as_ref().map_or((0, 0), count)).collect()
    }

    /// Rows of the counters.
    pub(in crate::engine) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.probes.iter().flatten().filter_map(|(attached, _)| attached.slot())
    }

    /// Of each probe whether it waits for its module.
    pub(in crate::engine) fn waiting(&self) -> impl Iterator<Item = bool> {
        self.probes.iter().map(Option::is_none)
    }
}

impl InstanceSession {
    /// Hangs the probes of an event up; all or none.
    pub(in crate::engine) fn attach_probes(
        &mut self,
        event: EventId,
        definitions: &[Probe],
        wanted: &EventConfig<'_>,
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
            // As the kernel's, which are registered when the module comes.
            if probes::waits(probe, facts) == Some(true) {
                attached.probes.push(None);
                continue;
            }
            let first = attached.slots().next();
            match self.attach_probe(probe, wanted, first, facts) {
                Ok(one) => attached.probes.push(Some(one)),
                Err(tried) => {
                    return Err(tried);
                }
            }
        }
        self.put_probes(event, attached);
        Ok(())
    }

    /// Plans how probes at files hang; nothing for others.
    pub(in crate::engine) fn plan_probes(
        &mut self,
        definitions: &[Probe],
        wanted: &EventConfig<'_>,
        facts: &Facts,
    ) -> Result<(PlannedProbes, Vec<Job>), Tried> {
        let (mut planned, mut jobs) = (PlannedProbes::new(), Vec::new());
        for probe in definitions.iter().filter(|probe| matches!(probe.event.target, Target::File { .. })) {
            let probes::Candidates { usable, lacking: mut tried } = probes::candidates(probe, None, facts);
            let first = planned.first().and_then(|(planned, _)| planned.slot());
            let mut done = Err(());
            for candidate in usable {
                match self.kernel_mut().plan(&request(wanted, &candidate, first), Dispatch::Gate) {
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

    /// Takes them up once their links are made, all or none; [`InstanceSession::attach_probes`] finds them there.
    pub(in crate::engine) fn finish_probes(
        &mut self,
        event: EventId,
        planned: PlannedProbes,
        made: Result<Vec<Hooks>, Errno>,
    ) -> Result<(), Tried> {
        let (made, missing) = match made {
            Ok(made) => (made, Errno::CANCELED),
            Err(errno) => (Vec::new(), errno),
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
        wanted: &EventConfig<'_>,
        first: Option<Slot>,
        facts: &Facts,
    ) -> Result<(Attached, Candidate), Tried> {
        let probes::Candidates { usable, lacking: mut tried } = probes::candidates(probe, None, facts);
        for candidate in usable {
            match self.kernel_mut().attach(&request(wanted, &candidate, first), Dispatch::Gate) {
                Ok(gated) => {
                    tracing::debug!(hook = candidate.name(), %tried, "{}", wanted.format.full_name());
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

    /// Changes what becomes of the hits of a dynamic event that hangs on its hooks.
    pub(in crate::engine) fn change_probes(
        &mut self,
        event: EventId,
        wanted: &EventConfig<'_>,
    ) -> Result<(), AttachError> {
        let Some(mut attached) = self.probes.remove(&event) else { return Ok(()) };
        let first = attached.slots().next();
        let changed = attached.probes.iter_mut().flatten().try_for_each(|(attached, candidate)| {
            self.kernel_mut().replace(attached, &request(wanted, candidate, first))
        });
        self.put_probes(event, attached);
        changed
    }

    /// Plans how functions' events hang through as few links as can be.
    pub(in crate::engine) fn plan_shared(
        &mut self,
        events: &[(EventId, Candidate)],
        wanted: &[EventConfig<'_>],
    ) -> FunctionLinks {
        let requests: Vec<_> = events
            .iter()
            .zip(wanted)
            .map(|((_, candidate), wanted)| request(wanted, candidate, None))
            .collect();
        self.kernel_mut().plan_functions(&requests)
    }

    /// Takes them up once the links are made; [`InstanceSession::attach_probes`] finds them there.
    pub(in crate::engine) fn finish_shared(
        &mut self,
        events: Vec<(EventId, Candidate)>,
        linked: LinkedFunctions,
    ) {
        let all = linked.finish();
        let attached = events.into_iter().zip(all);
        self.shared.extend(
            attached.filter_map(|((event, candidate), attached)| Some((event, (attached?, candidate)))),
        );
    }

    /// Detaches the events that were planned together and not turned on.
    pub(in crate::engine) fn drop_unused_shared(&mut self) {
        self.shared.clear();
    }
}
