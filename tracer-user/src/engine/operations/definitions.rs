//! Changes of definitions: applies writes to definition files line by line, and then the consequences for instances.

use rustix::io::Errno;

use crate::{
    engine::{
        Cooperative, Engine,
        command::error::{CommandError, ErrorKind},
        operations::changes::Definitions,
        registry::table::{DefinitionOwner, EventChanges},
        user::UserChange,
    },
    event::dynamic::Kind,
    kernel::opened::Identity,
    lang::{
        define::{File, Line, Request, deletion, files, lines, request},
        facts::{FileRequest, Files, Found},
        synth,
    },
};

/// The content of a file of dynamic events.
pub fn definitions(engine: &Engine, file: File) -> Vec<u8> {
    let mut lines: Vec<_> = engine.registry.dynamic().lines(file).collect();
    if file == File::Dynamic {
        lines.extend(engine.registry.synthetic().lines());
        lines.extend(engine.user.lines(false));
        lines.sort_by_key(|(serial, _)| *serial);
    }
    lines.into_iter().flat_map(|(_, line)| line).collect()
}

/// Hits and misses of all probes of a kind: the content of `kprobe_profile` or `uprobe_profile`.
pub fn profile(engine: &Engine, kind: Kind) -> Vec<u8> {
    let counts = |instance, event| engine.attachments.probe_counts(instance, event);
    engine.registry.dynamic().profile_text(kind, &counts)
}

/// Lines of `dynamic_events` that restore the definitions after the daemon's end, each with the file that it names.
/// User events that end with their programs are omitted.
pub(crate) fn saved_definitions(engine: &Engine) -> Vec<(Vec<u8>, Option<Identity>)> {
    let others = engine.registry.synthetic().lines().chain(engine.user.lines(true));
    let others = others.map(|(serial, line)| (serial, line, None));
    let mut lines: Vec<_> = engine.registry.dynamic().saved_lines().chain(others).collect();
    lines.sort_by_key(|(serial, ..)| *serial);
    lines.into_iter().map(|(_, line, file)| (line, file)).collect()
}

impl Definitions<'_> {
    /// Applies a write to a file of dynamic events, line by line up to the first refused line. `files` are those of
    /// [`crate::lang::define::files`]; `payer` is charged for the definitions.
    ///
    /// # Errors
    /// The kernel's error for that line.
    pub(crate) fn define(
        &mut self,
        file: File,
        written: &[u8],
        files: &Files,
        payer: u32,
    ) -> Result<(), CommandError> {
        for line in lines(written) {
            self.define_line(file, line.map_err(|_| ErrorKind::Invalid)?, (files, payer))?;
        }
        Ok(())
    }

    /// Defines an event again by an entry of [`saved_definitions`]. `look` opens the file that the entry names.
    ///
    /// An entry is one definition. It is not split into lines: the text of a user event, which clients choose, may have
    /// newlines, and what follows them could delete or define other events.
    ///
    /// # Errors
    /// The kernel's error for the definition; `EINVAL` for anything but one definition.
    pub(crate) fn restore(
        &mut self,
        entry: &[u8],
        look: impl FnMut(&FileRequest) -> Result<Found, Errno>,
    ) -> Result<(), CommandError> {
        let line = Line::split(entry);
        match request(&line, File::Dynamic) {
            Request::User => return UserChange::of(self.engine).restore(entry),
            Request::Probe | Request::Synthetic if !entry.contains(&b'\n') => {}
            _ => return Err(ErrorKind::Invalid.into()),
        }
        let files = Files::of(files(File::Dynamic, entry), look);
        self.define_line(File::Dynamic, entry, (&files, 0))
    }

    /// Deletes all events of a file, when it is emptied.
    ///
    /// # Errors
    /// `EBUSY` if one of them is in use.
    pub(crate) fn undefine(&mut self, file: File) -> Result<(), CommandError> {
        self.mark_busy();
        let others = !(self.engine.registry.synthetic().is_empty() && self.engine.user.is_empty());
        let all = file == File::Dynamic && others;
        if all && (UserChange::of(self.engine).is_any_busy() || self.engine.registry.is_any_definition_busy())
        {
            return Err(ErrorKind::Busy.into());
        }
        if all {
            UserChange::of(self.engine).clear();
        }
        self.change_definitions(|engine, changes| {
            let registry = &mut engine.registry;
            if all { registry.clear_definitions(changes) } else { registry.clear_probes(file, changes) }
        })
    }

    /// Applies a write to `synthetic_events`, line by line up to the first refused line.
    ///
    /// # Errors
    /// The kernel's error for that line.
    pub(crate) fn define_synthetic(&mut self, written: &[u8], payer: u32) -> Result<(), CommandError> {
        for line in lines(written) {
            self.mark_busy();
            let line = Line::split(line.map_err(|_| ErrorKind::Invalid)?);
            self.define_synthetic_line(synth::File::Synthetic, &line, payer)?;
        }
        Ok(())
    }

    /// Deletes all synthetic events, in order up to the first one in use.
    ///
    /// # Errors
    /// `EBUSY` if one is in use; if a histogram produces one, none is deleted.
    pub(crate) fn undefine_synthetic(&mut self) -> Result<(), CommandError> {
        self.mark_busy();
        self.change_definitions(|engine, changes| engine.registry.clear_synthetic(changes))
    }

    /// Applies a write to `program_events`. `files` are those of [`crate::engine::registry::program_files`]. `None` for
    /// `written` removes the events of all programs. The number in `written` is the payer of the definitions.
    ///
    /// # Errors
    /// The errors of [`crate::engine::registry::EventRegistry::apply_programs`]; `EBUSY` for events in use.
    pub(crate) fn define_programs(
        &mut self,
        written: Option<(&[u8], &Files, u32)>,
    ) -> Result<(), CommandError> {
        self.release_ids();
        self.change_definitions(|engine, changes| {
            let Engine { registry, instances, facts, quotas, .. } = engine;
            let is_enabled = |event| instances.is_enabled(event);
            let written =
                written.map(|(text, files, payer)| (text, files, DefinitionOwner { quotas, payer }));
            registry.apply_programs(written, facts, &is_enabled, changes)
        })
    }

    fn define_line(&mut self, file: File, text: &[u8], by: (&Files, u32)) -> Result<(), CommandError> {
        let line = Line::split(text);
        self.mark_busy();
        let kind = if file == File::Dynamic { request(&line, file) } else { Request::Probe };
        match kind {
            Request::User => UserChange::of(self.engine).define(line.text()),
            Request::Synthetic => self.define_synthetic_line(synth::File::Dynamic, &line, by.1),
            Request::Delete => self.delete_line(&line, by),
            _ => self.apply_line(file, &line, by),
        }
    }

    fn define_synthetic_line(
        &mut self,
        file: synth::File,
        line: &Line<'_>,
        payer: u32,
    ) -> Result<(), CommandError> {
        let facts = self.engine.facts.clone();
        if !facts.is_warm() {
            // The names of allocation flags need BTF, which takes some 60 ms to read.
            self.engine.run_off_thread(|| facts.warm());
        }
        self.release_ids();
        self.change_definitions(|engine, changes| {
            let Engine { registry, quotas, facts, .. } = engine;
            registry.apply_synthetic((file, line), DefinitionOwner { quotas, payer }, facts, changes)
        })
    }

    /// Deletes the events that a line of `dynamic_events` names: user events first, then synthetic events and probes in
    /// the order of their definition.
    fn delete_line(&mut self, line: &Line<'_>, by: (&Files, u32)) -> Result<(), CommandError> {
        let user = UserChange::of(self.engine).delete_line(line)?;
        let probe = self.engine.registry.dynamic().first_named(line);
        let synthetic =
            deletion(line).and_then(|named| self.engine.registry.synthetic().named(named.group, named.name));
        let Some((name, serial)) = synthetic else {
            // If user events were deleted, no other event needs to have the name.
            let done = user > 0 && probe.is_none();
            return if done { Ok(()) } else { self.apply_line(File::Dynamic, line, by) };
        };
        let probe_first = probe.is_some_and(|probe| probe < serial);
        if probe_first {
            self.apply_line(File::Dynamic, line, by)?;
        }
        self.change_definitions(|engine, changes| engine.registry.delete_synthetic(&name, changes))?;
        if probe.is_some() && !probe_first { self.apply_line(File::Dynamic, line, by) } else { Ok(()) }
    }

    /// Applies a line that defines or deletes probes. `files` are the opened files that it names; `payer` is charged
    /// for it.
    fn apply_line(
        &mut self,
        file: File,
        line: &Line<'_>,
        (files, payer): (&Files, u32),
    ) -> Result<(), CommandError> {
        self.release_ids();
        // Other requests may read the definitions while a thread queries the kernel.
        let planner = self.engine.registry.planner(&self.engine.facts);
        let planned = self.engine.run_off_thread(|| planner.plan(line, file, files));
        drop(planner);
        self.change_definitions(|engine, changes| {
            let owner = DefinitionOwner { quotas: &engine.quotas, payer };
            engine.registry.apply_probes(planned, (file, line), owner, changes)
        })
    }

    /// Changes definitions and applies the consequences, even if the change fails half-way.
    fn change_definitions(
        &mut self,
        change: impl FnOnce(&mut Engine, &mut EventChanges) -> Result<(), CommandError>,
    ) -> Result<(), CommandError> {
        let mut changes = EventChanges::default();
        let done = change(self.engine, &mut changes);
        self.apply_changes(changes);
        done
    }

    /// Marks the definitions in use.
    fn mark_busy(&mut self) {
        // Instances may have been removed with their histograms.
        let Engine { registry, instances, histograms, .. } = self.engine;
        histograms.count_uses(registry);
        registry.mark_busy(|event| instances.is_enabled(event));
    }
}
