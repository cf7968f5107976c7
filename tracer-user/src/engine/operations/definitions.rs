//! Changes of definitions: each file of definitions is applied line by line, and the consequences for instances in one place.

use rustix::io::Errno;

use crate::{
    buffer::clock::monotonic,
    engine::{
        Command, Cooperative, Engine,
        histograms::commands as hist_commands,
        registry::{
            profile::Count,
            table::{DefinitionOwner, EventChanges},
        },
    },
    event::{EventId, InstanceId, dynamic::Kind},
    kernel::opened::Identity,
    lang::{
        define::{File, Line, Request, deletion, lines, request},
        facts::Files,
        synth,
    },
};

impl Engine {
    /// What a file of dynamic events reads.
    pub fn definitions(&self, file: File) -> Vec<u8> {
        let mut lines: Vec<_> = self.registry.dynamic().lines(file).collect();
        if file == File::Dynamic {
            lines.extend(self.registry.synthetic().lines());
            lines.extend(self.user.lines(false));
            lines.sort_by_key(|(serial, _)| *serial);
        }
        lines.into_iter().flat_map(|(_, line)| line).collect()
    }

    /// Lines of `dynamic_events` that define again what outlives the daemon, which excludes events that go with the programs that
    /// registered them. With each, the file that it was about.
    pub(in crate::engine) fn saved_definitions(&self) -> Vec<(Vec<u8>, Option<Identity>)> {
        let others = self.registry.synthetic().lines().chain(self.user.lines(true));
        let others = others.map(|(serial, line)| (serial, line, None));
        let mut lines: Vec<_> = self.registry.dynamic().saved_lines().chain(others).collect();
        lines.sort_by_key(|(serial, ..)| *serial);
        lines.into_iter().map(|(_, line, file)| (line, file)).collect()
    }

    /// Applies what is written to a file of dynamic events, line by line up to the first that is refused. `files` are those of
    /// [`crate::lang::define::files`].
    ///
    /// # Errors
    /// The kernel's for that line.
    pub fn define(&mut self, file: File, written: &[u8], files: &Files) -> Result<(), Errno> {
        self.touch();
        for line in lines(written) {
            self.define_line(file, line.map_err(|_| Errno::INVAL)?, files)?;
        }
        Ok(())
    }

    /// Deletes all events of a file, as emptying it does.
    ///
    /// # Errors
    /// `EBUSY` when one of them is in use.
    pub fn undefine(&mut self, file: File) -> Result<(), Errno> {
        self.touch();
        self.mark_busy();
        let others = !(self.registry.synthetic().is_empty() && self.user.is_empty());
        let all = file == File::Dynamic && others;
        if all && (self.user_any_busy() || self.registry.is_any_definition_busy()) {
            return Err(Errno::BUSY);
        }
        if all {
            self.user_clear();
        }
        self.change_definitions(|engine, changes| {
            let registry = &mut engine.registry;
            if all { registry.clear_definitions(changes) } else { registry.clear_probes(file, changes) }
        })
    }

    /// Applies what is written to `synthetic_events`, line by line up to the first that is refused.
    ///
    /// # Errors
    /// The kernel's for that line.
    pub fn define_synthetic(&mut self, written: &[u8]) -> Result<(), Errno> {
        self.touch();
        for line in lines(written) {
            self.mark_busy();
            let line = Line::split(line.map_err(|_| Errno::INVAL)?);
            self.define_synthetic_line(synth::File::Synthetic, &line)?;
        }
        Ok(())
    }

    /// Deletes all synthetic events, in order up to one that is in use.
    ///
    /// # Errors
    /// `EBUSY` when one stays; when a histogram makes one, all stay.
    pub fn undefine_synthetic(&mut self) -> Result<(), Errno> {
        self.touch();
        self.mark_busy();
        self.change_definitions(|engine, changes| engine.registry.clear_synthetic(changes))
    }

    /// Applies what is written to `program_events`; `files` are those of [`crate::engine::registry::program_files`]. Nothing
    /// written (`None`) removes the events of all programs.
    ///
    /// # Errors
    /// Those of [`crate::engine::registry::EventRegistry::apply_programs`]; `EBUSY` for events that are in use.
    pub fn define_programs(&mut self, written: Option<(&[u8], &Files)>) -> Result<(), Errno> {
        self.touch();
        self.change_definitions(|engine, changes| {
            let Self { registry, instances, facts, .. } = engine;
            let is_enabled = |event| instances.values().any(|state| state.is_enabled(event));
            registry.apply_programs(written, facts, &is_enabled, changes)
        })
    }

    fn define_line(&mut self, file: File, text: &[u8], files: &Files) -> Result<(), Errno> {
        let line = Line::split(text);
        self.mark_busy();
        let kind = if file == File::Dynamic { request(&line, file) } else { Request::Probe };
        match kind {
            Request::User => self.user_define(line.text()),
            Request::Synthetic => self.define_synthetic_line(synth::File::Dynamic, &line),
            Request::Delete => self.delete_line(&line, files),
            _ => self.apply_line(file, &line, files),
        }
    }

    fn define_synthetic_line(&mut self, file: synth::File, line: &Line<'_>) -> Result<(), Errno> {
        let facts = self.facts.clone();
        if !facts.is_warm() {
            // The names of allocation flags need BTF, which takes some 60 ms to read.
            self.run_off_thread(|| facts.warm());
        }
        self.change_definitions(|engine, changes| {
            let Self { registry, quotas, client, facts, .. } = engine;
            registry.apply_synthetic((file, line), DefinitionOwner { quotas, uid: *client }, facts, changes)
        })
    }

    /// Deletes what a line of `dynamic_events` names: user events, then synthetic events and probes in the order of their
    /// definition.
    fn delete_line(&mut self, line: &Line<'_>, files: &Files) -> Result<(), Errno> {
        let user = self.user_delete_line(line)?;
        let probe = self.registry.dynamic().first_named(line);
        let synthetic =
            deletion(line).and_then(|named| self.registry.synthetic().named(named.group, named.name));
        let Some((name, serial)) = synthetic else {
            // There need not be others of the name.
            let done = user > 0 && probe.is_none();
            return if done { Ok(()) } else { self.apply_line(File::Dynamic, line, files) };
        };
        let probe_first = probe.is_some_and(|probe| probe < serial);
        if probe_first {
            self.apply_line(File::Dynamic, line, files)?;
        }
        self.change_definitions(|engine, changes| engine.registry.delete_synthetic(&name, changes))?;
        if probe.is_some() && !probe_first { self.apply_line(File::Dynamic, line, files) } else { Ok(()) }
    }

    /// Applies a line that defines or deletes probes.
    fn apply_line(&mut self, file: File, line: &Line<'_>, files: &Files) -> Result<(), Errno> {
        // Other requests may read the definitions while a thread asks the kernel.
        let planner = self.registry.planner(&self.facts);
        let planned = self.run_off_thread(|| planner.plan(line, file, files));
        drop(planner);
        self.change_definitions(|engine, changes| {
            let owner = DefinitionOwner { quotas: &engine.quotas, uid: engine.client };
            engine.registry.apply_probes(planned, (file, line), owner, changes)
        })
    }

    /// Changes definitions and applies the consequences, also those of a change that fails half-way.
    fn change_definitions(
        &mut self,
        change: impl FnOnce(&mut Self, &mut EventChanges) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut changes = EventChanges::default();
        let done = change(self, &mut changes);
        self.apply_changes(changes);
        done
    }

    /// Applies the consequences of changed definitions to instances. The buffers of an instance that recorded a removed event are
    /// emptied, because its records cannot be read any more (`event_remove()`, kernel/trace/trace_events.c).
    pub(in crate::engine) fn apply_changes(&mut self, changes: EventChanges) {
        for event in changes.removed {
            for instance in self.numbers().collect::<Vec<_>>() {
                forget_event(self, instance, event);
            }
        }
        for event in changes.redefined {
            self.reattach(event);
        }
        if let Some(top) = self.get_mut(InstanceId::TOP) {
            for entry in changes.log {
                top.errors.push(monotonic(), entry);
            }
        }
    }

    /// Attaches an event's probes again where it is enabled.
    pub(in crate::engine) fn reattach(&mut self, event: EventId) {
        let enabled = self.numbered().filter(|(_, state)| state.is_enabled(event));
        let enabled: Vec<InstanceId> = enabled.map(|(instance, _)| instance).collect();
        for instance in enabled {
            let _ = self.apply(instance, &Command::Event { event, on: false });
            if let Err(errno) = self.apply(instance, &Command::Event { event, on: true }) {
                tracing::warn!("a probe of an enabled event: {errno}");
            }
        }
    }

    /// Marks the definitions that are in use.
    fn mark_busy(&mut self) {
        // Instances may have gone since with their histograms.
        hist_commands::count_uses(self);
        let Self { registry, instances, .. } = self;
        registry.mark_busy(|event| instances.values().any(|state| state.is_enabled(event)));
    }

    /// Hits and misses of the probes of a kind: `kprobe_profile`, or `uprobe_profile` for files.
    pub fn profile(&self, kind: Kind) -> Vec<u8> {
        let counts = |instance, event| self.probe_counts(instance, event);
        self.registry.dynamic().profile_text(kind, &counts)
    }

    /// Keeps what dynamic events counted in an instance that is about to disable them.
    pub(in crate::engine) fn keep_counts(&mut self, instance: InstanceId, events: &[EventId]) {
        for &event in events {
            if !self.registry.dynamic().profile().is_counting(event, instance) {
                continue;
            }
            let next = self.numbered().find(|(other, state)| *other != instance && state.is_enabled(event));
            let next = next.map(|(other, _)| other);
            let counts: Vec<(InstanceId, Option<Vec<Count>>)> =
                next.into_iter().chain([instance]).map(|one| (one, self.probe_counts(one, event))).collect();
            let counts =
                |instance: InstanceId, _: EventId| counts.iter().find(|(one, _)| *one == instance)?.1.clone();
            self.registry.dynamic_mut().profile_mut().hand_over(event, next, &counts);
        }
    }

    /// Hits and misses of an event's probes, as an instance counts them.
    fn probe_counts(&self, instance: InstanceId, event: EventId) -> Option<Vec<Count>> {
        Some(self.attachments.session(instance)?.probes(event)?.counts())
    }
}

/// Removes everything that an instance has of an event. If the instance recorded it, its buffers are emptied.
fn forget_event(engine: &mut Engine, instance: InstanceId, event: EventId) {
    let was_recorded = engine.get_mut(instance).is_some_and(|state| state.forget(event));
    if let Some(session) = engine.attachments.session_mut(instance) {
        session.forget(event);
        if was_recorded {
            session.queue.discard();
        }
    }
    if was_recorded {
        // The instance is there.
        let _ = engine.empty_buffers(instance, None);
    }
}
