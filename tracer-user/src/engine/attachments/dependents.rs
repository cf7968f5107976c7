//! What follows the records of an event that no tracepoint makes: the event probes that sit on it, and its histograms.
//!
//! A synthetic event's records come from whoever emits it, an event probe's on such an event out of its records, and a
//! dynamic event's from relays on the hooks of its probes, which are there as long as something follows. Each instance has its own.

use rustix::io::Errno;

use crate::{
    attach::{self, AttachPoint, Block, Relayed},
    code::lower::hist::Entry,
    engine::histograms::programs as hist_programs,
    engine::{
        Engine,
        attachments::{
            desired,
            session::{self, InstanceSession},
        },
        facts::Facts,
        hooks::AttachPlan,
        probes::{self, Candidate},
    },
    event::{EventId, Format, InstanceId, dynamic::Target},
    lang::define::Probe,
    plan::source::ProgramContext,
};

/// What makes the records of an event that no tracepoint makes.
enum Source {
    /// Whoever emits it.
    Emission,
    /// The event that a probe sits on.
    Event(EventId),
    /// Hooks of its own.
    Hooks(Vec<Probe>),
    /// The place of an event that a program brings.
    Place(Candidate),
    /// Whoever writes records.
    Writers,
}

/// What a relay hangs on.
enum Hooked {
    /// The best of a probe's hooks.
    Probe(Probe),
    /// This one.
    At(Candidate),
}

impl Hooked {
    fn probe(&self) -> Option<&Probe> {
        match self {
            Self::Probe(probe) => Some(probe),
            Self::At(_) => None,
        }
    }
}

impl Engine {
    /// What makes an event's records; none for the kernel's own events.
    fn source(&self, event: EventId) -> Option<Source> {
        if self.registry.synthetic().contains(event) {
            return Some(Source::Emission);
        }
        if self.user.has(event) {
            return Some(Source::Writers);
        }
        let chosen = |format: &Format| self.registry.programs().chosen(event, format);
        if let Some(AttachPlan { hook, via, .. }) =
            self.registry.events().known_format(event).and_then(chosen)
        {
            return Some(Source::Place(Candidate { hook, via, irqs_off: false }));
        }
        let probes = self.registry.dynamic().probes_of(event)?;
        if let Some((target, _)) = probes.first().and_then(|probe| self.eprobe_target(probe)) {
            return Some(Source::Event(target));
        }
        Some(Source::Hooks(probes))
    }

    /// Whether what follows an event gets its records by relays.
    pub(in crate::engine) fn is_relayed(&self, event: EventId) -> bool {
        matches!(self.source(event), Some(Source::Hooks(_) | Source::Event(_) | Source::Place(_)))
    }

    /// The event that an event probe sits on, if the kernel does not know it, and how values are had from its records.
    pub(in crate::engine) fn eprobe_target(&self, probe: &Probe) -> Option<(EventId, ProgramContext)> {
        let Target::Event { system, name, filter } = &probe.event.target else { return None };
        let event = self.registry.events().find(self.registry.events().find_system(system)?, name)?;
        let format =
            self.registry.events().known_format(event).filter(|_| self.registry.events().is_made(event))?;
        let hook = probes::on_record(probe, filter.as_deref(), format, &self.facts);
        hook.map_err(|why| tracing::warn!("{}: {why}", probe.event.name)).ok().map(|hook| (event, hook))
    }

    /// The event probes that sit on an event that the kernel does not know.
    fn probes_on(&self, event: EventId) -> Vec<(EventId, ProgramContext)> {
        let name = self.registry.events().full_name(event);
        let Some((system, name)) = name.split_once(':') else { return Vec::new() };
        let all = self.registry.dynamic().eprobes_on(system, name);
        all.into_iter().filter_map(|(event, probe)| Some((event, self.eprobe_target(&probe)?.1))).collect()
    }

    /// What follows an event's records in an instance, ready to be put into a program that has them; `outer` are the events in
    /// whose records that is.
    pub(in crate::engine) fn following(
        &mut self,
        instance: InstanceId,
        event: EventId,
        outer: &mut Vec<EventId>,
    ) -> Result<Vec<Block>, Errno> {
        if outer.contains(&event) {
            return Ok(Vec::new());
        }
        outer.push(event);
        let parts = self.parts_behind(instance, event, outer);
        outer.pop();
        parts
    }

    fn parts_behind(
        &mut self,
        instance: InstanceId,
        event: EventId,
        outer: &mut Vec<EventId>,
    ) -> Result<Vec<Block>, Errno> {
        let mut parts = hist_programs::hist_parts(self, instance, event, Entry::Record, outer)?;
        let (catalogue, facts) = (self.registry.events().clone(), self.facts.clone());
        for (probe, hook) in self.probes_on(event) {
            let format = catalogue.try_format(probe, &facts)?;
            if self.attachments.session(instance).is_none() {
                break;
            }
            parts.extend(desired::with_config(self, instance, probe, format, |session, config| {
                session.emitted_block(probe, config).map_err(|error| session::log_to_errno(&error))
            })?);
            let further = self.following(instance, probe, outer)?;
            if !further.is_empty() {
                let relay = Relayed {
                    format,
                    hook: &hook,
                    nests: false,
                    is_part: true,
                    but_process: None,
                    is_injected: false,
                };
                let relay = attach::relayed(&relay, facts.cpus(), &further);
                parts.push(relay.map_err(|error| session::log_to_errno(&error))?);
            }
        }
        Ok(parts)
    }

    /// Hands a record of user space to an event, if it is on in an instance, and to what follows it there; what its triggers
    /// ask for.
    pub(in crate::engine) fn hand(
        &mut self,
        instance: InstanceId,
        event: EventId,
        record: &[u8],
        writer: &attach::Writer,
    ) -> u64 {
        hist_programs::count_record(self, instance, event, record, writer);
        let asked = self.emit_one(instance, event, record, writer);
        self.hand_to_probes(instance, event, record, writer) | asked
    }

    /// Hands a record of user space to the event probes that sit on its event, and to their histograms.
    pub(in crate::engine) fn hand_to_probes(
        &self,
        instance: InstanceId,
        event: EventId,
        record: &[u8],
        writer: &attach::Writer,
    ) -> u64 {
        let mut asked = 0;
        for (probe, _) in self.probes_on(event) {
            asked |= self.emit_one(instance, probe, record, writer);
            let Some(session) = self.attachments.session(instance) else { continue };
            for (relay, _) in session.relays.get(&probe).into_iter().flatten() {
                if let Err(error) = relay.run(record, writer) {
                    tracing::warn!("{error}");
                }
            }
        }
        asked
    }

    fn emit_one(&self, instance: InstanceId, event: EventId, record: &[u8], writer: &attach::Writer) -> u64 {
        let session = self.attachments.session(instance);
        session.map_or(Ok(0), |session| session.emit(event, record, writer)).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            0
        })
    }

    /// Has records of user space run through what follows an event probe.
    fn relay_writers(&mut self, instance: InstanceId, event: EventId) -> Result<(), Errno> {
        let parts = hist_programs::hist_parts(self, instance, event, Entry::Injected, &mut vec![event])?;
        let probes = self.registry.dynamic().probes_of(event).unwrap_or_default();
        let hooks: Vec<ProgramContext> =
            probes.iter().filter_map(|probe| Some(self.eprobe_target(probe)?.1)).collect();
        let (catalogue, facts) = (self.registry.events().clone(), self.facts.clone());
        let format = catalogue.try_format(event, &facts)?;
        let Some(live) = self.attachments.session_mut(instance) else { return Ok(()) };
        live.relays.remove(&event);
        if parts.is_empty() {
            return Ok(());
        }
        let mut relays = Vec::new();
        for hook in hooks {
            let place = Candidate { hook, via: AttachPoint::Inject, irqs_off: false };
            relays.push(live.attach_relay(&Hooked::At(place), format, &parts, &facts)?);
        }
        live.relays.insert(event, relays);
        Ok(())
    }

    /// To be called when an event is on otherwise than before in an instance: what has its records, or is made of them, follows.
    pub(in crate::engine) fn changed(&mut self, instance: InstanceId, event: EventId) -> Result<(), Errno> {
        match self.source(event) {
            Some(Source::Emission) => {
                self.relink(event);
                Ok(())
            }
            Some(Source::Event(target)) => self.rebuild_dependents(instance, target),
            Some(Source::Hooks(_) | Source::Place(_) | Source::Writers) | None => Ok(()),
        }
    }

    /// Sees to it that what follows an event in an instance gets its records: to be called when that changes.
    pub(in crate::engine) fn rebuild_dependents(
        &mut self,
        instance: InstanceId,
        event: EventId,
    ) -> Result<(), Errno> {
        match self.source(event) {
            None | Some(Source::Writers) => Ok(()),
            Some(Source::Emission) => {
                self.relink(event);
                Ok(())
            }
            Some(Source::Event(target)) => {
                if matches!(self.source(target), Some(Source::Emission | Source::Writers)) {
                    self.relay_writers(instance, event)?;
                }
                self.rebuild_dependents(instance, target)
            }
            Some(source @ (Source::Hooks(_) | Source::Place(_))) => {
                let probes = match source {
                    Source::Hooks(probes) => probes.into_iter().map(Hooked::Probe).collect(),
                    Source::Place(place) => vec![Hooked::At(place)],
                    Source::Emission | Source::Event(_) | Source::Writers => Vec::new(),
                };
                let mut each = Vec::new();
                for probe in probes {
                    let parts = self.following(instance, event, &mut Vec::new())?;
                    if parts.is_empty() {
                        if let Some(session) = self.attachments.session_mut(instance) {
                            session.relays.remove(&event);
                        }
                        return Ok(());
                    }
                    each.push((probe, parts));
                }
                let (catalogue, facts) = (self.registry.events().clone(), self.facts.clone());
                let format = catalogue.try_format(event, &facts)?;
                let probes: Vec<Probe> =
                    each.iter().filter_map(|(hooked, _)| hooked.probe().cloned()).collect();
                let is_new = self.attachments.session(instance);
                if is_new.is_some_and(|live| !live.relays.contains_key(&event)) {
                    self.open_for_probes(instance, event, &probes);
                }
                let live = self.attachments.session_mut(instance).ok_or(Errno::NODEV)?;
                let done = live.relay(event, format, each, &facts);
                self.forget_opened(instance);
                done
            }
        }
    }
}

impl InstanceSession {
    /// Hands the records of a dynamic event, probe by probe, to parts.
    fn relay(
        &mut self,
        event: EventId,
        format: &Format,
        probes: Vec<(Hooked, Vec<Block>)>,
        facts: &Facts,
    ) -> Result<(), Errno> {
        let mut known = self.relays.remove(&event).unwrap_or_default();
        if known.len() != probes.len() {
            known.clear();
        }
        let mut relays = Vec::new();
        for (probe, parts) in probes {
            if known.is_empty() {
                relays.push(self.attach_relay(&probe, format, &parts, facts)?);
                continue;
            }
            let (mut relay, candidate) = known.remove(0);
            let changed = self.kernel().replace_relay(&mut relay, format, &candidate.hook, &parts);
            changed.map_err(|error| session::log_to_errno(&error))?;
            relays.push((relay, candidate));
        }
        self.relays.insert(event, relays);
        Ok(())
    }

    fn attach_relay(
        &mut self,
        hooked: &Hooked,
        format: &Format,
        parts: &[Block],
        facts: &Facts,
    ) -> Result<(attach::Attached, Candidate), Errno> {
        let probes::Candidates { usable, lacking: mut tried } = match hooked {
            Hooked::Probe(probe) => probes::candidates(probe, None, facts),
            Hooked::At(place) => {
                probes::Candidates { usable: vec![place.clone()], lacking: probes::Tried::default() }
            }
        };
        for candidate in usable {
            match self.kernel_mut().attach_relay(format, &candidate.hook, &candidate.via, parts) {
                Ok(relay) => return Ok((relay, candidate)),
                Err(error) => {
                    tracing::debug!("{error}: {}", error.verifier_log().unwrap_or_default());
                    tried.refused(candidate.name(), &error);
                }
            }
        }
        tracing::warn!("{}: {tried}", format.full_name());
        Err(tried.errno())
    }
}
