//! Reconciliation: makes the attached programs match an instance's wanted state.
//!
//! A command changes wanted state: the enabled events, filters, triggers, references for soft mode, options, probes.
//! [`Reconciler::reconcile`] then plans the changes of each event ([`plan`]) and makes them. Many events are handled in
//! batches, with programs and links made by several threads. If something is refused, the program that was attached
//! before stays, and the command takes its change of wanted state back.

pub(crate) use super::plan::Goal;
use super::plan::{AttachedState, Change, Mode, SoftMode, Wanted, WantedProbe, plan};
use crate::{
    attach::Opening,
    engine::{
        Cooperative, Engine,
        attachments::{
            apply::{EventOperations, apply},
            desired,
            session::{
                InstanceSession,
                event_config::{EventConfig, EventSettings},
                table::{AttachedParts, ProgramRole},
            },
        },
        command::error::{CommandError, ErrorKind},
        dependents::{Dependents, sources::RecordSources},
        probes,
    },
    event::{EventId, InstanceId, dynamic::Target},
    lang::define::Defined,
};

/// Number of events that are detached before readers are served.
const BATCH: usize = 32;

/// Makes the attached programs of an instance match its wanted state. Borrows the engine.
pub(crate) struct Reconciler<'e> {
    pub(super) engine: &'e mut Engine,
    pub(super) instance: InstanceId,
}

impl<'e> Reconciler<'e> {
    pub(crate) fn of(engine: &'e mut Engine, instance: InstanceId) -> Self {
        Self { engine, instance }
    }

    /// The instance's session.
    ///
    /// # Errors
    /// `ENODEV` when the instance is gone.
    pub(super) fn session(&mut self) -> Result<&mut InstanceSession, CommandError> {
        Ok(self.engine.attachments.session_mut(self.instance).ok_or(ErrorKind::Gone)?)
    }

    /// As [`desired::settings`].
    pub(super) fn settings(&self, event: EventId) -> Result<EventSettings, CommandError> {
        desired::settings(self.engine, self.instance, event)
    }
}

impl Reconciler<'_> {
    /// Plans the changes of an event.
    fn plan_event(&self, event: EventId, goal: Goal) -> Result<Vec<Change>, CommandError> {
        let state = self.engine.instances.get(self.instance).ok_or(ErrorKind::Gone)?;
        let session = self.engine.attachments.session(self.instance);
        let parts = session.and_then(|session| session.table.event(event)).map(|(_, parts)| parts);
        let is = AttachedState {
            mode: match session.and_then(|session| session.is_off(event)) {
                _ if !state.is_enabled(event) => Mode::Disabled,
                None => Mode::Idle,
                Some(true) => Mode::Off,
                Some(false) => Mode::On,
            },
            probes: Vec::new(),
            settings: parts.and_then(|parts| parts.settings.as_ref()),
        };
        // The programs that are attached for an event without a tracepoint make its records.
        let may_idle = !self.engine.registry.events().is_made(event);
        let soft = match (state.triggers.is_soft(event), state.triggers.is_idle(event)) {
            (false, _) => SoftMode::Unused,
            (true, true) if may_idle => SoftMode::OwnPrograms,
            (true, _) => SoftMode::Needed,
        };
        let mode = is.mode.after(goal, soft);
        if !(is.mode.has_program() && mode.has_program()) {
            return Ok(plan::<&EventSettings>(&Wanted { mode, probes: Vec::new(), settings: None }, &is));
        }
        let settings = self.settings(event)?;
        let definitions = self.engine.registry.dynamic().probes_of(event).unwrap_or_default();
        if definitions.is_empty()
            || RecordSources::of(self.engine).record_context(event, &definitions).is_some()
        {
            return Ok(plan(&Wanted { mode, probes: Vec::new(), settings: Some(&settings) }, &is));
        }
        let wanted = |Defined { probe, serial, .. }: &Defined| WantedProbe {
            serial: *serial,
            waits: probes::waits(probe, &self.engine.facts),
        };
        let probes = definitions.iter().map(wanted).collect();
        let is = AttachedState { probes: parts.into_iter().flat_map(AttachedParts::states).collect(), ..is };
        Ok(plan(&Wanted { mode, probes, settings: Some(&settings) }, &is))
    }

    /// Makes the attached programs of events match their instance's wanted state. As in the kernel, an error of one
    /// event does not keep the others from their goal.
    ///
    /// # Errors
    /// The first error of an event.
    pub(crate) fn reconcile(&mut self, events: &[EventId], goal: Goal) -> Result<(), CommandError> {
        match goal {
            Goal::On => self.turn_on(events),
            Goal::Off => self.turn_off(events),
            Goal::Unchanged => {
                let mut first = Ok(());
                for event in events {
                    // A call for a single event may be a step of a change that is not consistent yet.
                    if events.len() > 1 {
                        self.engine.yield_to_readers();
                    }
                    first = first.and(self.follow_state(*event));
                }
                first
            }
        }
    }

    /// Enables events. Many at once share programs and links where they can.
    fn turn_on(&mut self, events: &[EventId]) -> Result<(), CommandError> {
        self.engine.instances.state(self.instance)?.expand();
        let _opening = Opening::begin_at_once();
        if let Ok(session) = self.session() {
            for event in events {
                session.claim(*event);
            }
        }
        let bulk = self.begin_bulk(events);
        self.engine.make_session(self.instance)?;
        self.choose_hooks(events);
        let bulk = self.prepare(events, bulk);
        self.attach_together(events);
        let mut first = Ok(());
        for event in events {
            self.await_opened(*event);
            if self.engine.scheduler.is_stopping() {
                first = first.and(Err(ErrorKind::Interrupted.into()));
                break;
            }
            let planned = self.plan_event(*event, Goal::On);
            let done = planned.and_then(|changes| self.apply(*event, &changes));
            first = first.and(done.map_err(|error| self.engine.log_error(self.instance, error)));
        }
        if let Ok(session) = self.session() {
            session.forget_ahead();
        }
        if bulk.is_some() {
            self.engine.attachments.guard_events(self.instance);
        }
        first
    }

    /// Disables events, in batches.
    fn turn_off(&mut self, events: &[EventId]) -> Result<(), CommandError> {
        self.engine.instances.state(self.instance)?.expand();
        self.engine.collect(self.instance);
        let mut first = Ok(());
        let (mut detached, mut others) = (Vec::new(), Vec::new());
        for event in events {
            match self.plan_event(*event, Goal::Off) {
                Ok(changes) if changes == [Change::Detach] => detached.push(*event),
                Ok(changes) => others.push((*event, changes)),
                Err(error) => first = first.and(Err(error)),
            }
        }
        let mut gone = Vec::new();
        for batch in detached.chunks(BATCH) {
            gone.extend(self.detach_events(batch)?);
            self.engine.yield_to_readers();
        }
        for (event, changes) in others {
            first = first.and(self.apply(event, &changes));
            self.engine.yield_to_readers();
        }
        for event in &gone {
            first = first.and(self.link_eprobe(*event, false));
            self.engine.yield_to_readers();
        }
        for event in gone {
            first = first.and(Dependents::of(self.engine, self.instance).propagate_enabled(event));
            self.engine.yield_to_readers();
        }
        first
    }

    /// Makes one event match its instance's state. The event stays enabled or disabled.
    fn follow_state(&mut self, event: EventId) -> Result<(), CommandError> {
        if self.engine.registry.is_special(event) {
            return self.reconcile_marker(event);
        }
        let changes = self.plan_event(event, Goal::Unchanged)?;
        if changes.iter().any(|change| matches!(change, Change::Attach { .. })) {
            self.choose_hooks(&[event]);
        }
        self.apply(event, &changes)
    }

    /// Makes planned changes of an event.
    fn apply(&mut self, event: EventId, changes: &[Change]) -> Result<(), CommandError> {
        apply(&mut EventPrograms { reconciler: self, event }, changes)
    }

    /// Detaches events. Returns those that were attached.
    fn detach_events(&mut self, events: &[EventId]) -> Result<Vec<EventId>, CommandError> {
        self.keep_counts(events);
        let state = self.engine.instances.state(self.instance)?;
        let gone = events.iter().copied().filter(|event| state.enabled.remove(event)).collect();
        if let Ok(session) = self.session() {
            session.detach(events.iter().copied());
        }
        Ok(gone)
    }

    /// Serves readers until the perf event for an event is open.
    fn await_opened(&mut self, event: EventId) {
        self.engine.yield_to_readers();
        let id = self
            .engine
            .registry
            .events()
            .format(event, &self.engine.facts)
            .and_then(|format| self.engine.attachments.hooks().perf_id(format));
        let is_due = |this: &mut Self| {
            id.zip(this.session().ok())
                .is_some_and(|(id, session)| session.kernel_mut().opened().is_being_opened(id))
        };
        while is_due(self) && !self.engine.scheduler.is_stopping() && self.engine.wait_for_readers() {}
    }

    /// Makes the program that runs the triggers of an event of marks match its instance's state.
    fn reconcile_marker(&mut self, event: EventId) -> Result<(), CommandError> {
        let settings = self.settings(event)?;
        let catalogue = self.engine.registry.events().clone();
        let session = self.engine.attachments.session_mut(self.instance);
        let Some((format, session)) = catalogue.known_format(event).zip(session) else { return Ok(()) };
        let is = session.table.state(event, ProgramRole::Marker, |parts| parts.settings.as_ref());
        let is_wanted = !settings.triggers.is_empty();
        match plan(&Wanted::part(is_wanted, vec![WantedProbe::ONLY], &settings), &is)[..] {
            [] => Ok(()),
            [Change::Detach] => {
                session.table.take(event, ProgramRole::Marker);
                Ok(())
            }
            _ => {
                let config = EventConfig { format, settings: &settings, begins_off: false };
                Ok(session.attach_marker(event, &config)?)
            }
        }
    }

    /// Adds or removes the reference of an event probe to its target event, which has the probe among its triggers
    /// (`enable_eprobe()`).
    fn link_eprobe(&mut self, event: EventId, on: bool) -> Result<(), CommandError> {
        // The events of a recording are never disabled one by one.
        if self.engine.attachments.options().recording.is_some() {
            return Ok(());
        }
        let probes = self.engine.registry.dynamic().probes_of(event).unwrap_or_default();
        for Defined { probe, .. } in probes {
            let Target::Event { system, name, .. } = &probe.event.target else { continue };
            let target = self
                .engine
                .registry
                .events()
                .find_system(system)
                .and_then(|system| self.engine.registry.events().find(system, name));
            let Some(target) = target else { continue };
            if on {
                self.soft_mode_get(target, true)?;
            } else {
                self.soft_mode_put(target, true)?;
            }
        }
        Ok(())
    }

    /// Adds a reference for soft mode (`__ftrace_event_enable_disable(file, 1, 1)`). The event is attached from here
    /// on, and stays enabled or disabled. An idle reference has programs of its own.
    ///
    /// # Errors
    /// The kernel's errors. The reference is then not added.
    pub(crate) fn soft_mode_get(&mut self, event: EventId, idle: bool) -> Result<(), CommandError> {
        self.engine.instances.state(self.instance)?.triggers.soft_mode_get(event, idle);
        let done = self.reconcile(&[event], Goal::Unchanged);
        if done.is_err() {
            self.engine.instances.state(self.instance)?.triggers.soft_mode_put(event, idle);
        }
        done
    }

    /// Removes a reference for soft mode. After the last one, the event stays attached if it is enabled.
    ///
    /// # Errors
    /// The kernel's errors.
    pub(crate) fn soft_mode_put(&mut self, event: EventId, idle: bool) -> Result<(), CommandError> {
        self.engine.instances.state(self.instance)?.triggers.soft_mode_put(event, idle);
        self.reconcile(&[event], Goal::Unchanged)
    }
}

/// An event of an instance.
struct EventPrograms<'r, 'e> {
    reconciler: &'r mut Reconciler<'e>,
    event: EventId,
}

impl EventOperations for EventPrograms<'_, '_> {
    fn attach(&mut self, begins_off: bool) -> Result<(), CommandError> {
        self.reconciler.attach_event(self.event, begins_off)
    }

    fn detach(&mut self) {
        self.reconciler.keep_counts(&[self.event]);
        if let Ok(session) = self.reconciler.session() {
            session.detach([self.event]);
        }
    }

    fn replace(&mut self) -> Result<(), CommandError> {
        let catalogue = self.reconciler.engine.registry.events().clone();
        let format = catalogue.known_format(self.event).ok_or(ErrorKind::Gone)?;
        let settings = self.reconciler.settings(self.event)?;
        let session = self.reconciler.session()?;
        Ok(session.change(self.event, &EventConfig { format, settings: &settings, begins_off: false })?)
    }

    fn arrange(&mut self) -> Result<(), CommandError> {
        self.reconciler.arrange_probes(self.event)
    }

    fn set_off(&mut self, off: bool) {
        if let Ok(session) = self.reconciler.session() {
            session.set_off(self.event, off);
        }
    }

    fn set_enabled(&mut self, on: bool) -> bool {
        let Some(state) = self.reconciler.engine.instances.get_mut(self.reconciler.instance) else {
            return false;
        };
        if on { state.enabled.insert(self.event) } else { state.enabled.remove(&self.event) }
    }

    fn link_eprobe(&mut self, on: bool) -> Result<(), CommandError> {
        self.reconciler.link_eprobe(self.event, on)
    }

    fn propagate(&mut self) -> Result<(), CommandError> {
        Dependents::of(self.reconciler.engine, self.reconciler.instance).propagate_enabled(self.event)
    }

    fn follow_slot(&mut self) -> Result<(), CommandError> {
        let switching = self
            .reconciler
            .engine
            .instances
            .state(self.reconciler.instance)?
            .triggers
            .switching(self.event, false);
        let followed = switching.into_iter().map(|other| self.reconciler.follow_state(other));
        followed.fold(Ok(()), Result::and)
    }
}
