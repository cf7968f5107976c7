//! Attaching one event: from its definition to a program on its hook.
//!
//! Work that makes the kernel wait is done off the owner's thread before the session takes the result over
//! ([`super::off_thread`]).

use crate::{
    engine::{
        attachments::{
            plan::ProbeState,
            reconcile::Reconciler,
            session::{event_config::EventConfig, table::ProgramRole},
        },
        command::error::CommandError,
        dependents::sources::RecordSources,
        probes::Tried,
    },
    event::{EventId, Format},
    lang::define::Defined,
    plan::source::ProgramContext,
};

impl Reconciler<'_> {
    /// Attaches an event to its hook. With `begins_off` the event begins soft-disabled, as a trigger would leave it. If
    /// anything is refused, nothing stays attached.
    ///
    /// # Errors
    /// The kernel's errors, and `ENODEV` when the instance is gone.
    pub(super) fn attach_event(&mut self, event: EventId, begins_off: bool) -> Result<(), CommandError> {
        self.read_format(event)?;
        let (facts, catalogue) = (self.engine.facts.clone(), self.engine.registry.events().clone());
        let format = catalogue.try_format(event, &facts)?;
        let probes = self.engine.registry.dynamic().probes_of(event);
        // An event may be recorded even if a part of it is refused later. Events of modules count only when they are
        // attached: their modules' end empties the buffers of instances that recorded them.
        if self.engine.registry.events().is_made(event) {
            self.engine.instances.state(self.instance)?.recorded.insert(event);
        }
        let context =
            RecordSources::of(self.engine).record_context(event, probes.as_deref().unwrap_or_default());
        match (context, &probes) {
            (Some(context), _) => {
                let settings = self.settings(event)?;
                let config = EventConfig { format, settings: &settings, begins_off };
                // A record of such an event never fits, so nothing is attached for it.
                let is_long = format.fixed_size() > tracer_abi::MAX_PAYLOAD / 2;
                let never_fits = self.engine.user.has(event) && is_long;
                let session = self.session()?;
                if never_fits {
                    session.attach_nothing(event, &config);
                } else {
                    session.attach_emitted(event, &context, &config)?;
                }
            }
            (None, Some(probes)) => self.attach_probes(event, probes, begins_off)?,
            (None, None) => self.attach_hook(event, format, begins_off)?,
        }
        // A trigger may enable or disable its own event, whose slot is known only now.
        let settings = self.settings(event)?;
        let session = self.session()?;
        let has = session.table.event(event).and_then(|(_, parts)| parts.settings.as_ref());
        if has != Some(&settings)
            && let Err(error) =
                session.change(event, &EventConfig { format, settings: &settings, begins_off })
        {
            session.detach([event]);
            return Err(error.into());
        }
        self.engine.instances.state(self.instance)?.recorded.insert(event);
        if probes.is_some() {
            self.engine.registry.dynamic_mut().profile_mut().begin(event, self.instance);
        }
        Ok(())
    }

    /// Attaches an event of the kernel or of a program.
    fn attach_hook(&mut self, event: EventId, format: &Format, begins_off: bool) -> Result<(), CommandError> {
        let chosen = self.engine.registry.programs().chosen(event, format);
        let chosen = chosen.unwrap_or_else(|| self.engine.attachments.hooks().of(format));
        let settings = self.settings(event)?;
        let config = EventConfig { format, settings: &settings, begins_off };
        self.link_file(event, &chosen, &config)?;
        self.open_perf_event(event, &chosen.point);
        // Events that this one's program refers to may have been attached or detached while other requests ran.
        let settings = self.settings(event)?;
        let config = EventConfig { format, settings: &settings, begins_off };
        let session = self.session()?;
        let attached = match (session.attach_hook(event, &chosen, &config), &chosen.context) {
            // These events have no other hook to try.
            (
                done,
                ProgramContext::Tracepoint | ProgramContext::CallTracepoint | ProgramContext::UserRecord(_),
            ) => done.map_err(CommandError::from),
            // A filter may need a value that only the kernel's own record has.
            (Err(error), _) => self.attach_tracepoint(event, error.to_string(), &config),
            (Ok(()), _) => Ok(()),
        };
        self.engine.attachments.forget_opened(self.instance);
        attached
    }

    /// Attaches those of an event's probes that are not attached yet, and detaches those that were deleted.
    fn attach_probes(
        &mut self,
        event: EventId,
        probes: &[Defined],
        begins_off: bool,
    ) -> Result<(), CommandError> {
        let (facts, catalogue) = (self.engine.facts.clone(), self.engine.registry.events().clone());
        let format = catalogue.try_format(event, &facts)?;
        let known: Vec<u64> = self
            .engine
            .attachments
            .session(self.instance)
            .and_then(|session| session.table.get(event, ProgramRole::Probe))
            .map(|parts| parts.states().filter(|(_, state)| *state == ProbeState::Attached))
            .map(|attached| attached.map(|(serial, _)| serial).collect())
            .unwrap_or_default();
        let new = probes.iter().filter(|defined| !known.contains(&defined.serial));
        self.open_for_probes(event, new.map(|defined| &defined.probe));
        let settings = self.settings(event)?;
        let config = EventConfig { format, settings: &settings, begins_off };
        self.link_probes(event, probes, &config)?;
        // Events that this one's program refers to may have been attached or detached while other requests ran.
        let settings = self.settings(event)?;
        let config = EventConfig { format, settings: &settings, begins_off };
        let is_counting = self.engine.registry.dynamic().profile().is_counting(event, self.instance);
        if is_counting {
            let counts = self.engine.attachments.probe_counts(self.instance, event);
            self.engine.registry.dynamic_mut().profile_mut().add_counted(event, &|_, _| counts.clone());
        }
        let session = self.session()?;
        let (new, done) = session.attach_probes(event, probes, &config, &facts);
        self.engine.attachments.forget_opened(self.instance);
        if is_counting {
            let all: Vec<u64> = probes.iter().map(|defined| defined.serial).collect();
            let profile = self.engine.registry.dynamic_mut().profile_mut();
            profile.forget_deleted(event, &all);
            for serial in new {
                profile.begin_probe(event, serial);
            }
        }
        done.map_err(|tried| no_hook(format, tried.into()))
    }

    /// Attaches and detaches probes of an attached event, whose definitions or modules changed.
    pub(super) fn arrange_probes(&mut self, event: EventId) -> Result<(), CommandError> {
        let probes = self.engine.registry.dynamic().probes_of(event).unwrap_or_default();
        let session = self.engine.attachments.session(self.instance);
        let begins_off = session.and_then(|session| session.is_off(event)).unwrap_or(false);
        self.attach_probes(event, &probes, begins_off)
    }
}

/// Adds an entry in tracer's own words for `error_log` to the error of an event whose probes have no hook.
fn no_hook(format: &Format, error: CommandError) -> CommandError {
    let Some(tried) = error.cause::<Tried>() else { return error };
    let name = format.full_name();
    let entry = format!("tracer: error: no hook: {tried}\n  Command: {name}\n           ^\n");
    error.worded(entry.into_bytes())
}
