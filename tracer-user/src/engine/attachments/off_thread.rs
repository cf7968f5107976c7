//! Work for an event that other threads do, so that the owner does not wait for the kernel.
//!
//! To link an event at a file, the kernel waits for every process that has the file mapped. To read a format or to
//! open a perf event, it waits for `event_mutex`, which it holds while it closes other events.

use crate::{
    attach::{self, AttachPoint, Cause, Job, Opening},
    engine::{
        Cooperative,
        attachments::{reconcile::Reconciler, session::event_config::EventConfig},
        command::error::CommandError,
        hooks::AttachPlan,
        probes,
        scheduler::FILE_WORK_LIMIT,
    },
    event::{EventId, Format, InstanceId, dynamic::Target},
    lang::define::{Defined, Probe},
};

impl Reconciler<'_> {
    /// Links those of an event's probes that are at files and not attached yet.
    pub(super) fn link_probes(
        &mut self,
        event: EventId,
        probes: &[Defined],
        config: &EventConfig<'_>,
    ) -> Result<(), CommandError> {
        let facts = self.engine.facts.clone();
        let session = self.session()?;
        let (planned, jobs) = session.plan_probes(event, probes, config, &facts);
        let made = self
            .engine
            .run_off_thread_within(FILE_WORK_LIMIT, move || jobs.into_iter().map(Job::run).collect());
        let session = self.session()?;
        session.finish_probes(event, planned, made, config);
        Ok(())
    }

    /// Links an event of a program.
    pub(super) fn link_file(
        &mut self,
        event: EventId,
        chosen: &AttachPlan,
        config: &EventConfig<'_>,
    ) -> Result<(), CommandError> {
        let session = self.session()?;
        let planned = session.plan_attach(event, chosen, config)?;
        let Some((planned, job)) = planned else { return Ok(()) };
        let made = self.engine.run_off_thread_within(FILE_WORK_LIMIT, move || job.run());
        let made = made.unwrap_or_else(|error| Err(Cause::Hook("uprobe", error.errno())));
        let session = self.session()?;
        session.finish_attach(event, chosen, (planned, made), config).map_err(CommandError::from)
    }

    /// Reads an event's format in another thread, if it is not known yet.
    pub(crate) fn read_format(&mut self, event: EventId) -> Result<(), CommandError> {
        if self.engine.registry.events().known_format(event).is_some() {
            return Ok(());
        }
        let (facts, catalogue) = (self.engine.facts.clone(), self.engine.registry.events().clone());
        self.engine.run_off_thread(|| catalogue.try_format(event, &facts).map(drop))
    }

    /// Opens the perf event for an event at an attach point, in another thread. Does nothing if the attach point has
    /// none, or if it is open or being opened.
    pub(super) fn open_perf_event(&mut self, event: EventId, point: &AttachPoint) {
        // A parked event has its perf event.
        if self
            .session()
            .map_or(true, |session| session.claim(event) || session.kernel().has_perf_event(point))
        {
            return;
        }
        let opened = self.engine.run_off_thread(|| {
            let _opening = Opening::begin();
            attach::open_perf_event(point)
        });
        if let (Ok(session), Some(opened)) = (self.session(), opened) {
            session.kernel_mut().opened().give(point.clone(), opened);
        }
    }

    /// Opens the perf events for the first candidates of probes.
    pub(crate) fn open_for_probes<'a>(&mut self, event: EventId, probes: impl Iterator<Item = &'a Probe>) {
        let facts = self.engine.facts.clone();
        let opens =
            |probe: &&Probe| matches!(probe.event.target, Target::Kernel { .. } | Target::Event { .. });
        for probe in probes.filter(opens) {
            if probes::waits(probe, &facts) == Some(true) {
                continue;
            }
            // To find the candidates of an event probe, the event's format is read.
            let first =
                self.engine.run_off_thread(|| probes::candidates(probe, &facts).usable.into_iter().next());
            if let Some(first) = first {
                self.open_perf_event(event, &first.point);
            }
        }
    }

    /// Chooses the hooks of these events, in another thread.
    pub(crate) fn choose_hooks(&mut self, events: &[EventId]) {
        let (facts, catalogue) = (self.engine.facts.clone(), self.engine.registry.events().clone());
        let Some(factory) = self.engine.attachments.factory().cloned() else { return };
        let mut choices = std::mem::take(self.engine.attachments.hooks_mut());
        // A recording has one instance, and tries hooks in its session.
        let recording = self.engine.attachments.options().recording;
        let mut session = recording.and_then(|_| self.engine.attachments.remove(InstanceId::TOP));
        self.engine.run_off_thread(|| {
            let traced = events.iter().filter(|event| !catalogue.is_made(**event));
            let formats: Vec<&Format> = traced.filter_map(|event| catalogue.format(*event, &facts)).collect();
            facts.learn_pages(formats.iter().copied());
            choices.learn(&formats, &factory, session.as_mut(), &facts);
        });
        *self.engine.attachments.hooks_mut() = choices;
        if let Some(session) = session {
            self.engine.attachments.insert(InstanceId::TOP, session);
        }
    }

    /// Attaches an event to its perf tracepoint, because a program at the raw tracepoint was refused.
    pub(super) fn attach_tracepoint(
        &mut self,
        event: EventId,
        why: String,
        config: &EventConfig<'_>,
    ) -> Result<(), CommandError> {
        let plan = AttachPlan::tracepoint(config.format, why);
        self.open_perf_event(event, &plan.point);
        let settings = self.settings(event)?;
        let config = EventConfig { settings: &settings, ..*config };
        let session = self.session()?;
        session.attach_hook(event, &plan, &config).map_err(CommandError::from)
    }
}
