//! Dynamic events of the mirror: `dynamic_events`, `kprobe_events` and `uprobe_events` are three views of one set, to which
//! the first adds the synthetic events ([`crate::engine::registry::synthetic`]).
//!
//! A definition that is taken becomes an event like any other ([`crate::engine::registry::made`]); its probes are hung on their hooks when an
//! instance turns the event on.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use rustix::io::Errno;

use crate::{
    buffer::clock::monotonic,
    engine::{
        Cooperative, Engine, probes,
        registry::{catalogue::Made, profile::Profile},
    },
    event::{
        EventId, Format, InstanceId,
        dynamic::{Kind, Target},
    },
    kernel::opened::Identity,
    lang::{
        define::{Change, Defined, File, Line, Probe, Request, Set, deletion, lines, request},
        facts::{Files, Machine, Sites},
        filter::FilterError,
        synth,
    },
    plan::resolve,
};

/// What definitions made.
#[derive(Debug, Default)]
pub(in crate::engine) struct Dynamic {
    set: Arc<Set>,
    /// Numbers of the events, by group and name.
    numbers: HashMap<(String, String), EventId>,
    sites: Arc<OnceLock<Option<Sites>>>,
    pub(in crate::engine) profile: Profile,
}

impl Dynamic {
    /// The probes of an event; none for an event that no definition made.
    pub(in crate::engine) fn probes_of(&self, event: EventId) -> Option<Vec<Probe>> {
        let (group, name) = self.numbers.iter().find(|(_, known)| **known == event)?.0;
        let own =
            |defined: &&Defined| defined.probe.event.group == *group && defined.probe.event.name == *name;
        Some(self.set.probes().iter().filter(own).map(|defined| defined.probe.clone()).collect())
    }

    /// Whether an event probe sits on an event.
    pub(in crate::engine) fn is_probed(&self, group: &str, event: &str) -> bool {
        !self.eprobes_on(group, event).is_empty()
    }

    /// The event probes on an event, and their numbers.
    pub(in crate::engine) fn eprobes_on(&self, group: &str, event: &str) -> Vec<(EventId, Probe)> {
        let probes = self.set.probes().iter().map(|defined| &defined.probe);
        let on = probes.filter(|probe| match &probe.event.target {
            Target::Event { system, name, .. } => system == group && name == event,
            _ => false,
        });
        on.filter_map(|probe| Some((self.number(probe)?, probe.clone()))).collect()
    }

    /// The set, to be changed. Nobody else has it but while a line is planned.
    fn set_mut(&mut self) -> &mut Set {
        Arc::make_mut(&mut self.set)
    }

    /// All probes, in the order in which they are listed.
    pub(in crate::engine) fn probes(&self) -> &[Defined] {
        self.set.probes()
    }

    pub(in crate::engine) fn number(&self, probe: &Probe) -> Option<EventId> {
        self.numbers.get(&(probe.event.group.clone(), probe.event.name.clone())).copied()
    }
}

impl Engine {
    /// What a file of dynamic events reads.
    pub fn definitions(&self, file: File) -> Vec<u8> {
        let mut lines: Vec<_> = self.dynamic.set.lines(file).collect();
        if file == File::Dynamic {
            lines.extend(self.synthetic.set.lines(synth::File::Dynamic));
            lines.extend(self.user.lines(false));
            lines.sort_by_key(|(serial, _)| *serial);
        }
        lines.into_iter().flat_map(|(_, line)| line).collect()
    }

    /// Lines of `dynamic_events` that make again what is to stay: without events that go with the programs that registered
    /// them. With each, which file it was about.
    pub(in crate::engine) fn lasting_definitions(&self) -> Vec<(Vec<u8>, Option<Identity>)> {
        let probes = self.dynamic.set.probes().iter().map(|defined| {
            let file = defined.probe.file.as_ref().and_then(|file| file.opened.as_ref());
            (defined.serial, defined.probe.event.read_back(), file.map(|file| file.identity()))
        });
        let others = self.synthetic.set.lines(synth::File::Dynamic).chain(self.user.lines(true));
        let others = others.map(|(serial, line)| (serial, line, None));
        let mut lines: Vec<_> = probes.chain(others).collect();
        lines.sort_by_key(|(serial, ..)| *serial);
        lines.into_iter().map(|(_, line, file)| (line, file)).collect()
    }

    /// Takes what is written to a file of dynamic events, line by line up to the first that is refused.
    ///
    /// # Errors
    /// The kernel's for that line.
    pub fn define(&mut self, file: File, written: &[u8]) -> Result<(), Errno> {
        self.define_with(file, written, &Files::at_once())
    }

    /// The same with files that were looked at before, those of [`crate::lang::define::files`]: nothing is waited for.
    ///
    /// # Errors
    /// As [`Engine::define`].
    pub fn define_with(&mut self, file: File, written: &[u8], files: &Files) -> Result<(), Errno> {
        self.touch();
        for line in lines(written) {
            self.define_line(file, line.map_err(|_| Errno::INVAL)?, files)?;
        }
        Ok(())
    }

    /// Takes all events of a file away, as emptying it does.
    ///
    /// # Errors
    /// `EBUSY` when one of them is on.
    pub fn undefine(&mut self, file: File) -> Result<(), Errno> {
        self.touch();
        self.tell_busy();
        if file == File::Dynamic && !(self.synthetic.set.events().is_empty() && self.user.is_empty()) {
            return self.undefine_all();
        }
        let gone = self.dynamic.set_mut().clear(file)?;
        self.deleted(&gone);
        Ok(())
    }

    /// Takes events of all kinds away, in the order of their definition and up to one that stays.
    fn undefine_all(&mut self) -> Result<(), Errno> {
        if self.user_any_busy() {
            return Err(Errno::BUSY);
        }
        let probes = self.dynamic.set.probes();
        if probes.iter().any(|defined| defined.busy) || self.synthetic.set.is_held() {
            return Err(Errno::BUSY);
        }
        let mut all: Vec<(u64, Option<String>)> =
            probes.iter().map(|defined| (defined.serial, None)).collect();
        let synthetic = self.synthetic.set.events().iter();
        all.extend(synthetic.map(|defined| (defined.serial, Some(defined.event.name.clone()))));
        all.sort();
        self.user_clear();
        for (serial, name) in all {
            if let Some(name) = name {
                self.delete_synthetic(&name)?;
            } else {
                let gone = self.dynamic.set_mut().remove(serial);
                self.deleted(gone.as_slice());
            }
        }
        Ok(())
    }

    /// Deletes what a line of `dynamic_events` names, of whatever kind.
    fn delete_any(&mut self, line: &Line<'_>, files: &Files) -> Option<Result<(), Errno>> {
        let named = deletion(line)?;
        let synthetic = self.synthetic.named(named.group, named.name)?;
        let (name, serial) = (synthetic.event.name.clone(), synthetic.serial);
        let first = self.dynamic.set.first_named(line, File::Dynamic);
        Some((|| {
            if first.is_some_and(|first| first < serial) {
                self.apply_line(File::Dynamic, line, files)?;
                return self.delete_synthetic(&name);
            }
            self.delete_synthetic(&name)?;
            if first.is_some() { self.apply_line(File::Dynamic, line, files) } else { Ok(()) }
        })())
    }

    fn define_line(&mut self, file: File, text: &[u8], files: &Files) -> Result<(), Errno> {
        let line = Line::split(text);
        self.tell_busy();
        if file == File::Dynamic {
            match request(&line, file) {
                Request::User => return self.user_define(line.text()),
                Request::Synthetic => return self.define_synthetic_line(synth::File::Dynamic, &line),
                Request::Delete => {
                    let user = self.user_delete_line(&line)?;
                    let done = match self.delete_any(&line, files) {
                        Some(done) => done,
                        // There need not be others of the name.
                        None if user > 0 && !self.is_defined(&line) => return Ok(()),
                        None => self.apply_line(file, &line, files),
                    };
                    return done;
                }
                _ => {}
            }
        }
        self.apply_line(file, &line, files)
    }

    /// Whether a line that deletes means a probe.
    fn is_defined(&self, line: &Line<'_>) -> bool {
        self.dynamic.set.first_named(line, File::Dynamic).is_some()
    }

    fn apply_line(&mut self, file: File, line: &Line<'_>, files: &Files) -> Result<(), Errno> {
        let (facts, events) = (self.facts.clone(), self.events.clone());
        if !facts.is_warm() {
            // A definition needs BTF and symbols, which take some 60 ms to read.
            self.run_off_thread(|| {
                facts.warm();
                facts.symbols();
            });
        }
        // Of dynamic events, event probes sit on those of functions and tracepoints only (`find_and_get_event()`,
        // kernel/trace/trace_eprobe.c of 6.12).
        let closed: HashSet<(String, String)> = self
            .dynamic
            .probes()
            .iter()
            .filter(|defined| defined.probe.event.kind() != Kind::Fprobe)
            .map(|defined| (defined.probe.event.group.clone(), defined.probe.event.name.clone()))
            .collect();
        // Others may look at the set while a thread asks the kernel.
        let set = Arc::clone(&self.dynamic.set);
        let sites = Arc::clone(&self.dynamic.sites);
        let definitions = self.definitions;
        let planned = {
            let known = facts.clone();
            let check = move |format: &Format, text: &[u8]| -> Result<(), FilterError> {
                resolve::filter(text, format, known.as_ref()).map(drop)
            };
            let all = events.clone();
            let made = Box::new(move |system: &str, name: &str| {
                let event = all.find(all.find_system(system)?, name)?;
                if closed.contains(&(system.to_owned(), name.to_owned())) {
                    return None;
                }
                all.known_format(event).filter(|_| all.is_made(event)).cloned()
            });
            let machine = Machine::running(facts.btf(), Some(&facts.tracefs))
                .with_symbols(facts.symbols())
                .with_sites(&sites)
                .with_events(Box::new(move |system, name| {
                    events.find_system(system).is_some_and(|system| events.find(system, name).is_some())
                }))
                .with_made(made)
                .with_files(files)
                .with_filter_check(Box::new(check));
            let machine = if facts.is_frozen() {
                machine.without_symbols()
            } else {
                machine.with_probe_check(Box::new(probes::may_probe))
            };
            self.run_off_thread(|| set.plan(line, file, &machine))
        };
        drop(set);
        let set = self.dynamic.set_mut();
        set.number_from(definitions);
        match planned.and_then(|planned| set.carry_out(planned, line, file)) {
            Ok(Change::Nothing) => Ok(()),
            Ok(Change::Added { new_event }) => {
                self.definitions += 1;
                let added = self.added(new_event, line.text().len());
                if added.is_err()
                    && let Some(last) = self.dynamic.set.probes().last().map(|defined| defined.serial)
                {
                    self.dynamic.set_mut().remove(last);
                }
                added
            }
            Ok(Change::Deleted(gone)) => {
                self.deleted(&gone);
                Ok(())
            }
            Err(refusal) => {
                for entry in refusal.log_entries() {
                    self.state(InstanceId::TOP)?.errors.push(monotonic(), entry);
                }
                Err(refusal.errno())
            }
        }
    }

    /// Tells the sets which events are in use: those that are on, and those that event probes sit on.
    pub(in crate::engine) fn tell_busy(&mut self) {
        let targets =
            self.dynamic.set.probes().iter().filter_map(|defined| match &defined.probe.event.target {
                Target::Event { system, name, .. } => Some((system.clone(), name.clone())),
                _ => None,
            });
        let on = self.dynamic.numbers.iter().filter(|(_, event)| self.is_busy(**event));
        let busy: HashSet<(String, String)> = targets.chain(on.map(|(name, _)| name.clone())).collect();
        let is_busy =
            |group: &str, name: &str| !busy.is_empty() && busy.contains(&(group.to_owned(), name.to_owned()));
        self.dynamic.set_mut().set_busy(is_busy);
        self.tell_busy_synthetic();
    }

    /// A probe joined the set by a line of so many bytes: it is a new event's, or one more of an event that may be on.
    fn added(&mut self, new_event: bool, bytes: usize) -> Result<(), Errno> {
        let Some(Defined { probe, .. }) = self.dynamic.set.probes().last() else { return Ok(()) };
        let (event, number) = (probe.event.clone(), self.dynamic.number(probe));
        let charge = self.charge_definition(bytes)?;
        if !new_event {
            if let Some(number) = number {
                self.keep_charge(number, charge);
                self.reattach(number);
            }
            return Ok(());
        }
        let id = self.events.free_id().ok_or(Errno::NOSPC)?;
        let made = Made {
            format: event.format(id),
            text: event.format_text(id),
            printer: probes::printer(&event, id),
        };
        let number = self.add_event(made)?;
        self.keep_charge(number, charge);
        self.dynamic.numbers.insert((event.group, event.name), number);
        Ok(())
    }

    /// Probes left the set; with the last one its event goes.
    fn deleted(&mut self, gone: &[Probe]) {
        for probe in gone {
            let Some(event) = self.dynamic.number(probe) else { continue };
            let left = self.dynamic.probes_of(event).map_or(0, |left| left.len());
            if left > 0 {
                self.keep_charges(event, left);
                self.reattach(event);
                continue;
            }
            self.dynamic.numbers.remove(&(probe.event.group.clone(), probe.event.name.clone()));
            self.dynamic.profile.forget(event);
            self.remove_event(event);
        }
    }

    /// Where modules came or went: probes that wait for one are hung up, those whose place is gone are taken off.
    pub(in crate::engine) fn look_at_probes(&mut self) {
        self.dynamic.sites = Arc::default();
        let facts = self.facts.clone();
        let waiting = |probe: &Probe| probes::waits(probe, &facts);
        let events: Vec<EventId> = self.dynamic.numbers.values().copied().collect();
        for event in events {
            let waiting: Vec<Option<bool>> =
                self.dynamic.probes_of(event).unwrap_or_default().iter().map(waiting).collect();
            let mut attached = self.attachments.sessions().filter_map(|(_, session)| session.probes(event));
            let stale = attached.any(|attached| {
                attached.waiting().zip(&waiting).any(|(was, now)| now.is_some_and(|now| was != now))
            });
            drop(attached);
            if stale {
                self.reattach(event);
            }
        }
    }

    /// Hangs an event's probes up anew where it is on, after one came or went.
    fn reattach(&mut self, event: EventId) {
        let on: Vec<InstanceId> = self
            .numbered()
            .filter(|(_, state)| state.is_enabled(event))
            .map(|(instance, _)| instance)
            .collect();
        for instance in on {
            let _ = self.apply(instance, &crate::engine::command::Command::Event { event, on: false });
            if let Err(errno) =
                self.apply(instance, &crate::engine::command::Command::Event { event, on: true })
            {
                tracing::warn!("a probe of an event that is on: {errno}");
            }
        }
    }
}
