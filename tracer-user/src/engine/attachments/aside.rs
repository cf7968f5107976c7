//! Work for an event that other threads do, so that the owner does not wait for the kernel.
//!
//! To link an event at a file, the kernel waits for every process that has the file mapped. To read a format or to open a perf
//! event, it waits for `event_mutex`, which it holds while it closes other events.

use rustix::io::Errno;

use crate::{
    attach::{self, AttachError, AttachPoint, Cause, Job, Opening},
    engine::{
        Cooperative, Engine,
        attachments::{
            desired,
            session::{self, event_config::EventConfig},
        },
        hooks::AttachPlan,
        probes::{self, Tried},
        scheduler::FILE_WORK_LIMIT,
    },
    event::{EventId, Format, InstanceId, dynamic::Target},
    lang::define::Probe,
    plan::source::ProgramContext,
};

impl Engine {
    /// Links an event's probes where they are at files.
    pub(in crate::engine) fn link_probes(
        &mut self,
        instance: InstanceId,
        event: EventId,
        probes: &[Probe],
        config: &EventConfig<'_>,
    ) -> Result<Result<(), Tried>, Errno> {
        let facts = self.facts.clone();
        let session = self.attachments.session_mut(instance).ok_or(Errno::NODEV)?;
        let planned = session.plan_probes(probes, config, &facts);
        let (planned, jobs) = match planned {
            Ok((planned, _)) if planned.is_empty() => return Ok(Ok(())),
            Ok(planned) => planned,
            Err(tried) => return Ok(Err(tried)),
        };
        let made =
            self.run_off_thread_within(FILE_WORK_LIMIT, move || jobs.into_iter().map(Job::run).collect());
        let session = self.attachments.session_mut(instance).ok_or(Errno::NODEV)?;
        Ok(session.finish_probes(event, planned, made))
    }

    /// Links an event of a program.
    pub(in crate::engine) fn link_file(
        &mut self,
        instance: InstanceId,
        event: EventId,
        chosen: &AttachPlan,
        config: &EventConfig<'_>,
    ) -> Result<(), Errno> {
        let session = self.attachments.session_mut(instance).ok_or(Errno::NODEV)?;
        let planned =
            session.plan_attach(event, chosen, config).map_err(|error| session::log_to_errno(&error))?;
        let Some((planned, job)) = planned else { return Ok(()) };
        let made = self.run_off_thread_within(FILE_WORK_LIMIT, move || job.run());
        let made = made.unwrap_or_else(|errno| Err(Cause::Hook("uprobe", errno)));
        let session = self.attachments.session_mut(instance).ok_or(Errno::NODEV)?;
        session.finish_attach(event, chosen, planned, made).map_err(|error| session::log_to_errno(&error))
    }

    /// Has a thread read an event's format, if it was not read before.
    pub(in crate::engine) fn read_format(&mut self, event: EventId) -> Result<(), Errno> {
        if self.registry.events().known_format(event).is_some() {
            return Ok(());
        }
        let (facts, catalogue) = (self.facts.clone(), self.registry.events().clone());
        self.run_off_thread(|| catalogue.try_format(event, &facts).map(drop))
    }

    /// Has a thread open what an event will be linked to there, if it is a perf event and nobody opens it already.
    pub(in crate::engine) fn open_perf_event(
        &mut self,
        instance: InstanceId,
        event: EventId,
        via: &AttachPoint,
    ) {
        // A parked event has its perf event.
        let session = self.attachments.session_mut(instance);
        if session.is_none_or(|session| session.is_parked(event) || session.kernel_mut().opened().has(via)) {
            return;
        }
        let opened = self.run_off_thread(|| {
            let _opening = Opening::begin();
            attach::open_perf_event(via)
        });
        if let (Some(session), Some(opened)) = (self.attachments.session_mut(instance), opened) {
            session.kernel_mut().opened().give(via.clone(), opened);
        }
    }

    /// The same for what probes will be linked to, if their first candidates are taken.
    pub(in crate::engine) fn open_for_probes(
        &mut self,
        instance: InstanceId,
        event: EventId,
        probes: &[Probe],
    ) {
        let facts = self.facts.clone();
        let opens =
            |probe: &&Probe| matches!(probe.event.target, Target::Kernel { .. } | Target::Event { .. });
        for probe in probes.iter().filter(opens) {
            if probes::waits(probe, &facts) == Some(true) {
                continue;
            }
            // To find the candidates of an event probe, the event's format is read.
            let first =
                self.run_off_thread(|| probes::candidates(probe, None, &facts).usable.into_iter().next());
            if let Some(first) = first {
                self.open_perf_event(instance, event, &first.via);
            }
        }
    }

    /// Closes what was opened for an instance's events and is not used.
    pub(in crate::engine) fn forget_opened(&mut self, instance: InstanceId) {
        if let Some(session) = self.attachments.session_mut(instance) {
            session.kernel_mut().opened().forget();
        }
    }

    /// Finds out where these events are to hang.
    pub(in crate::engine) fn choose_hooks(&mut self, events: &[EventId]) {
        let (facts, catalogue) = (self.facts.clone(), self.registry.events().clone());
        let Some(factory) = self.attachments.factory().cloned() else { return };
        let mut choices = std::mem::take(self.attachments.hooks_mut());
        self.run_off_thread(|| {
            let traced = events.iter().filter(|event| !catalogue.is_made(**event));
            let formats: Vec<&Format> = traced.filter_map(|event| catalogue.format(*event, &facts)).collect();
            facts.learn_pages(formats.iter().copied());
            choices.learn(&formats, &factory, &facts);
        });
        *self.attachments.hooks_mut() = choices;
    }

    /// Attaches an event to its perf tracepoint, as a program at the raw tracepoint was refused.
    pub(in crate::engine) fn attach_tracepoint(
        &mut self,
        instance: InstanceId,
        event: EventId,
        why: String,
        config: &EventConfig<'_>,
    ) -> Result<(), Errno> {
        let plan = AttachPlan::tracepoint(config.format, why);
        self.open_perf_event(instance, event, &plan.via);
        let settings = desired::settings(self, instance, event)?;
        let config = EventConfig { settings: &settings, ..*config };
        let session = self.attachments.session_mut(instance).ok_or(Errno::NODEV)?;
        session.attach_hook(event, &plan, &config).map_err(|error| session::log_to_errno(&error))
    }

    /// Reads the formats of the events that a histogram's `onmatch(SYSTEM.EVENT)` names.
    pub(in crate::engine) fn read_matched_formats(&mut self, command: &[u8]) {
        let text = String::from_utf8_lossy(command);
        for named in text.split("onmatch(").skip(1) {
            let name = named.split(')').next().and_then(|name| name.split_once('.'));
            let event = name.and_then(|(system, name)| {
                self.registry.events().find(self.registry.events().find_system(system.trim())?, name.trim())
            });
            if let Some(event) = event {
                // An error is found again by the command.
                let _ = self.read_format(event);
            }
        }
    }
}

/// Why a raw tracepoint was refused, if the perf tracepoint is to be tried.
#[derive(Debug, Default)]
pub(in crate::engine) struct Refused(pub(in crate::engine) Option<String>);

impl Refused {
    /// Keeps the error of an attempt at a raw tracepoint or a dispatcher; others are logged.
    pub(in crate::engine) fn keep(&mut self, tried: &AttachPlan, error: &AttachError) -> Result<(), Errno> {
        match tried.hook {
            // There is no other place for a program's event.
            ProgramContext::Tracepoint | ProgramContext::UserRecord(_) => Err(session::log_to_errno(error)),
            _ => {
                self.0 = Some(error.to_string());
                Ok(())
            }
        }
    }
}
