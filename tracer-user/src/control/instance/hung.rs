//! Dynamic events of an instance on their hooks.

use super::live::Live;
use crate::{
    attach::{Gated, Request, Threads},
    control::{
        facts::Facts,
        probes::{self, Candidate, Tried},
    },
    event::Format,
    lang::define::Probe,
    plan::filter::Filter,
};

/// The probes of one event, each with the hook that it was given.
#[derive(Debug, Default)]
pub(super) struct HungProbes {
    probes: Vec<(Gated, Candidate)>,
}

/// What is asked of the session for a probe.
fn request<'a>(format: &'a Format, candidate: &'a Candidate, filter: Option<&'a Filter>) -> Request<'a> {
    Request {
        format,
        hook: &candidate.hook,
        via: &candidate.via,
        filter,
        irqs_off: false,
        kind: format.id,
        threads: Threads::Traced,
        other: None,
    }
}

impl HungProbes {
    /// Hits and misses of each probe since it was hung up.
    pub(super) fn counts(&self, live: &Live) -> Vec<(u64, u64)> {
        let count = |(gated, _): &(Gated, Candidate)| {
            let missed = gated.info().map_or(0, |info| info.misses);
            (live.hits(gated.slot), missed)
        };
        self.probes.iter().map(count).collect()
    }

    /// Rows of the counters.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.probes.iter().map(|(gated, _)| gated.slot)
    }
}

impl Live {
    /// Hangs the probes of an event up; all or none.
    pub(super) fn hang_probes(
        &mut self,
        event: u32,
        format: &Format,
        probes: &[Probe],
        filter: Option<&Filter>,
        facts: &Facts,
    ) -> Result<(), Tried> {
        let mut hung = HungProbes::default();
        for probe in probes {
            match self.hang_probe(format, probe, filter, facts) {
                Ok(one) => hung.probes.push(one),
                Err(tried) => {
                    self.take_off(hung);
                    return Err(tried);
                }
            }
        }
        self.put_probes(event, hung);
        Ok(())
    }

    fn hang_probe(
        &mut self,
        format: &Format,
        probe: &Probe,
        filter: Option<&Filter>,
        facts: &Facts,
    ) -> Result<(Gated, Candidate), Tried> {
        let probes::Candidates { usable, lacking: mut tried } = probes::candidates(probe, facts);
        for candidate in usable {
            match self.session().hang_gated(&request(format, &candidate, filter)) {
                Ok(gated) => {
                    tracing::debug!(hook = candidate.name(), %tried, "{}", format.full_name());
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

    /// Changes the filter of a dynamic event that is on.
    pub(super) fn change_probes(
        &mut self,
        event: u32,
        format: &Format,
        filter: Option<&Filter>,
    ) -> Result<(), crate::attach::AttachError> {
        let Some(mut hung) = self.take_probes(event) else { return Ok(()) };
        let changed = hung.probes.iter_mut().try_for_each(|(gated, candidate)| {
            self.session().change_gated(gated, &request(format, candidate, filter))
        });
        self.put_probes(event, hung);
        changed
    }

    /// Takes probes off their hooks.
    pub(super) fn take_off(&mut self, hung: HungProbes) {
        for (gated, _) in hung.probes {
            self.session().unhang_gated(gated);
        }
    }
}
