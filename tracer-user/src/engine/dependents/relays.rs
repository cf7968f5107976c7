//! The relays of an event: programs that pass its records to its dependents in an instance.

use super::{
    Dependents,
    parts::Derivation,
    sources::{RecordSources, Source},
};
use crate::{
    attach::AttachPoint,
    code::lower::hist::Entry,
    engine::{
        attachments::{
            plan::{Change, ProbeState, Wanted, WantedProbe, plan},
            reconcile::Reconciler,
            session::{
                part::Part,
                table::{AttachedPart, AttachedParts, ProbePart, ProbeProgram, ProgramRole},
            },
        },
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        hooks::AttachPlan,
        probes,
    },
    event::EventId,
    lang::define::{Defined, Probe},
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

    fn candidates(&self, facts: &Facts) -> probes::Candidates {
        match self {
            Self::Probe(defined) => probes::candidates(&defined.probe, facts),
            Self::At(place) => {
                probes::Candidates { usable: vec![place.clone()], lacking: probes::Tried::default() }
            }
        }
    }
}

impl Dependents<'_> {
    /// The wanted relays of an event, and the parts to which each passes the records.
    fn wanted_relays(&self, event: EventId) -> (Vec<Hooked>, Vec<Part>) {
        let sources = RecordSources::of(self.engine);
        let hooked = match sources.source(event) {
            Some(Source::Hooks(probes)) => probes.into_iter().map(Box::new).map(Hooked::Probe).collect(),
            Some(Source::Place(place)) => vec![Hooked::At(place)],
            Some(Source::Event(target)) => {
                // Records from user space. Those of programs have the histograms in them.
                if !matches!(sources.source(target), Some(Source::Emission | Source::Writers)) {
                    return (Vec::new(), Vec::new());
                }
                let probes = self.engine.registry.dynamic().probes_of(event).unwrap_or_default();
                let contexts =
                    probes.iter().filter_map(|defined| Some(sources.eprobe_target(&defined.probe)?.1));
                let hooked =
                    contexts.map(|context| Hooked::At(AttachPlan::new(context, AttachPoint::Inject)));
                let counts =
                    Derivation::within(self.engine, event).counts(self.instance, event, Entry::Injected);
                return (hooked.collect(), counts);
            }
            Some(Source::Emission | Source::Writers) | None => return (Vec::new(), Vec::new()),
        };
        (hooked, Derivation::of(self.engine).dependents(self.instance, event))
    }

    /// Makes an event's relays in an instance match the wanted state.
    pub(super) fn reconcile_relays(&mut self, event: EventId) -> Result<(), CommandError> {
        let (hooked, parts) = self.wanted_relays(event);
        let session = self.engine.attachments.session(self.instance).ok_or(ErrorKind::Gone)?;
        let is = session.table.state(event, ProgramRole::Relay, |known| known.receivers.as_ref());
        let probe = |one: &Hooked| WantedProbe {
            serial: one.serial(),
            waits: one.probe().and_then(|probe| probes::waits(probe, &self.engine.facts)),
        };
        let is_wanted = !parts.is_empty() && !hooked.is_empty();
        match plan(&Wanted::part(is_wanted, hooked.iter().map(probe).collect(), &parts), &is)[..] {
            [] => Ok(()),
            [Change::Detach] => {
                self.session()?.table.take(event, ProgramRole::Relay);
                Ok(())
            }
            _ => {
                let known: Vec<(u64, ProbeState)> = is.probes;
                let is_new = |one: &&Hooked| !known.contains(&(one.serial(), ProbeState::Attached));
                let new = hooked.iter().filter(is_new).filter_map(Hooked::probe);
                Reconciler::of(self.engine, self.instance).open_for_probes(event, new);
                let done = self.attach_relays(event, hooked, parts);
                self.engine.attachments.forget_opened(self.instance);
                done
            }
        }
    }

    /// Attaches and replaces an event's relays. Relays of probes that stay keep their hooks. A relay whose program is
    /// refused keeps the old one, and a new one that is refused is missing.
    fn attach_relays(
        &mut self,
        event: EventId,
        hooked: Vec<Hooked>,
        parts: Vec<Part>,
    ) -> Result<(), CommandError> {
        let catalogue = self.engine.registry.events().clone();
        let facts = self.engine.facts.clone();
        let format = catalogue.try_format(event, &facts)?;
        let session = self.session()?;
        let known = session.table.take(event, ProgramRole::Relay);
        let is_new = known.is_none();
        if is_new {
            // A part that cannot be built is refused while all probes wait for their modules, too.
            Part::build_all(&parts, self.engine)?;
        }
        let mut known = known.unwrap_or_default();
        let mut relays = AttachedParts::default();
        let (mut first, mut is_current) = (Ok(()), true);
        for hooked in hooked {
            let serial = hooked.serial();
            if hooked.probe().is_some_and(|probe| probes::waits(probe, &facts) == Some(true)) {
                relays.probes.push(ProbePart { serial, program: ProbeProgram::Waits });
                continue;
            }
            let before = known.take_serial(serial).map(|probe| probe.program);
            let was_refused = matches!(before, Some(ProbeProgram::Refused));
            // Each program has memory of its own.
            let blocks = Part::build_all(&parts, self.engine);
            let session = self.session()?;
            let program = match before {
                Some(ProbeProgram::Attached(mut part)) => {
                    let AttachedPart { attached, plan } = &mut *part;
                    let replaced = blocks.and_then(|blocks| {
                        Ok(session.kernel().replace_relay(attached, format, &plan.context, &blocks)?)
                    });
                    is_current &= replaced.is_ok();
                    first = first.and(replaced);
                    ProbeProgram::Attached(part)
                }
                _ => match blocks.and_then(|blocks| {
                    let (attached, plan) = hooked.candidates(&facts).first(|candidate| {
                        session.kernel_mut().attach_relay(
                            format,
                            &candidate.context,
                            &candidate.point,
                            &blocks,
                        )
                    })?;
                    Ok(AttachedPart::new(attached, plan))
                }) {
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
        relays.receivers = is_current.then_some(parts);
        let session = self.session()?;
        session.table.insert(event, ProgramRole::Relay, relays);
        first
    }
}
