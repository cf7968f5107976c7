//! Events at files: they are linked by a thread that nobody has to wait for, as the kernel waits for every process that has the file
//! mapped.

use rustix::io::Errno;

use super::{mirror::Mirror, session, state::EventInputs, turns::ASIDE};
use crate::{
    attach::{Cause, Job},
    engine::{hooks::AttachPlan, probes::Tried},
    lang::define::Probe,
};

impl Mirror {
    /// Links an event's probes where they are at files.
    pub(super) fn link_probes(
        &mut self,
        instance: u32,
        event: u32,
        probes: &[Probe],
        wants: EventInputs<'_>,
    ) -> Result<Result<(), Tried>, Errno> {
        let facts = self.facts.clone();
        let state = self.state(instance)?;
        let planned =
            state.with_wanted(event, wants, |live, wanted| Ok(live.plan_probes(probes, wanted, &facts)))?;
        let (planned, jobs) = match planned {
            Ok((planned, _)) if planned.is_empty() => return Ok(Ok(())),
            Ok(planned) => planned,
            Err(tried) => return Ok(Err(tried)),
        };
        let made = self.aside_for(ASIDE, move || jobs.into_iter().map(Job::run).collect());
        let live = self.state(instance)?.live.as_mut().ok_or(Errno::NODEV)?;
        Ok(live.finish_probes(event, planned, made, wants.format))
    }

    /// Links an event of a program.
    pub(super) fn link_file(
        &mut self,
        instance: u32,
        event: u32,
        chosen: &AttachPlan,
        wants: EventInputs<'_>,
    ) -> Result<(), Errno> {
        let state = self.state(instance)?;
        let planned = state.with_wanted(event, wants, |live, wanted| {
            live.plan_attach(event, chosen, wanted).map_err(|error| session::told(&error))
        })?;
        let Some((planned, job)) = planned else { return Ok(()) };
        let made = self.aside_for(ASIDE, move || job.run());
        let made = made.unwrap_or_else(|errno| Err(Cause::Hook("uprobe", errno)));
        let live = self.state(instance)?.live.as_mut().ok_or(Errno::NODEV)?;
        live.finish_attach(event, chosen, planned, made, wants.format).map_err(|error| session::told(&error))
    }
}
