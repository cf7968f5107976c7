//! The commands that change an instance.

use rustix::io::Errno;

use crate::{
    attach::Opening,
    buffer::{
        PageSize,
        clock::{Clock, monotonic},
    },
    engine::{
        Cooperative, Engine,
        attachments::{aside::Refused, desired, event_config::EventConfig, session},
        instances::{
            instance::{Filtering, Instance},
            select::Selector,
            thread_lists::{List, PID_LIMIT},
        },
    },
    event::{EventId, InstanceId, SystemId},
    lang::filter::{self, FilterError, Request},
    plan::{
        filter::Filter,
        resolve::{self, ResolveEnv},
        source::ProgramContext,
    },
};

/// Events that are turned off between two turns of others.
const PART: usize = 32;

/// Something to be done to an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Turns one event on or off.
    Event {
        /// Its number.
        event: EventId,
        /// Whether it is to be on.
        on: bool,
    },
    /// Turns all events on or off that a selector means.
    Events {
        /// Which.
        which: Selector<'a>,
        /// Whether they are to be on.
        on: bool,
    },
    /// Sets or clears the filter of one event: what was written to its `filter`.
    Filter {
        /// The event.
        event: EventId,
        /// The text.
        text: &'a [u8],
    },
    /// Sets or clears the filters of a system's events.
    SystemFilter {
        /// The system.
        system: SystemId,
        /// The text.
        text: &'a [u8],
    },
    /// Adds or takes away a trigger: what was written to an event's `trigger`.
    Trigger {
        /// The event.
        event: EventId,
        /// The text.
        text: &'a [u8],
    },
    /// Adds threads to a list: what was written to `set_event_pid`.
    AddPids {
        /// The list.
        list: List,
        /// Numbers and blanks.
        text: &'a [u8],
    },
    /// Empties a list of threads, which is in force no more then.
    ClearPids(List),
    /// Starts or stops recording.
    Tracing(bool),
    /// Empties the buffers of one CPU or of all.
    Clear(Option<u32>),
    /// Exchanges the buffers for those of the snapshot (1), gives these back (0), or empties them (any other number).
    Snapshot {
        /// Of one CPU or of all.
        cpu: Option<u32>,
        /// What was written to `snapshot`.
        number: u64,
    },
    /// Changes the clock, and empties the buffers.
    Clock(&'a [u8]),
    /// Sets the size of one CPU's buffer or of all, in bytes.
    BufferSize {
        /// The CPU.
        cpu: Option<u32>,
        /// Bytes.
        bytes: usize,
    },
    /// Sets the size of a page of the buffers, and empties them.
    PageSize(PageSize),
    /// Sets an option by its number.
    Option {
        /// The option.
        option: u32,
        /// Whether it is to be on.
        on: bool,
    },
    /// Sets an option by a word such as `noraw`.
    OptionWord(&'a [u8]),
    /// Chooses the tracer; `nop` is the only one.
    Tracer(&'a [u8]),
    /// Records on these CPUs only.
    Cpus(Vec<bool>),
    /// Forgets the errors.
    ClearErrors,
    /// Makes the buffers as large as they are to be when they are used.
    Expand,
}

impl Engine {
    /// Does a command to an instance.
    ///
    /// # Errors
    /// `ENODEV` for an instance that is gone; otherwise the kernel's error number for what is asked.
    pub fn apply(&mut self, instance: InstanceId, command: &Command<'_>) -> Result<(), Errno> {
        self.touch();
        match command {
            Command::Event { event, on } => self.set_events(instance, &[*event], *on),
            Command::Events { which, on } => {
                let catalogue = self.registry.events().clone();
                let events = self.state(instance)?.awaited.select(&catalogue, which, *on)?;
                self.set_events(instance, &events, *on)
            }
            Command::Filter { event, text } => self.set_filter(instance, *event, text),
            Command::SystemFilter { system, text } => self.set_system_filter(instance, *system, text),
            Command::Trigger { event, text } => self.set_trigger(instance, *event, text),
            Command::AddPids { list, text } => self.add_pids(instance, *list, text),
            Command::ClearPids(list) => self.clear_pids(instance, *list),
            Command::Tracing(on) => {
                self.collect(instance);
                self.state(instance)?.on = *on;
                if let Some(session) = self.attachments.session(instance) {
                    session.kernel().switches().set_tracing(*on);
                }
                Ok(())
            }
            Command::Clear(cpu) => {
                self.collect(instance);
                self.empty_buffers(instance, *cpu)
            }
            Command::Snapshot { cpu, number } => {
                self.collect(instance);
                let state = self.state(instance)?;
                state.expand();
                state.take_snapshot(*cpu, *number)
            }
            Command::Clock(name) => {
                let clock = Clock::named(name).ok_or(Errno::INVAL)?;
                self.collect(instance);
                let state = self.state(instance)?;
                state.clock = clock;
                if let Some(snapshot) = &mut state.snapshot {
                    snapshot.select_mut(None).for_each(|(_, buffer)| buffer.clear());
                }
                self.empty_buffers(instance, None)
            }
            Command::BufferSize { cpu, bytes } => {
                self.find_memory(instance, *cpu, *bytes)?;
                self.state(instance)?.resize(*cpu, *bytes)
            }
            Command::PageSize(page) => {
                self.collect(instance);
                self.state(instance)?.set_page(*page);
                Ok(())
            }
            Command::Option { option, on } => self.set_option(instance, *option, *on),
            Command::OptionWord(word) => self.set_option_word(instance, word),
            Command::Tracer(name) => {
                // The kernel takes this many bytes at most (`MAX_TRACER_SIZE`).
                let name = name.get(..100).unwrap_or(name);
                let name = crate::lang::ctype::trim_end(name);
                let name = crate::lang::ctype::trim_start(name);
                if name == b"nop" { Ok(()) } else { Err(Errno::INVAL) }
            }
            Command::Cpus(mask) => {
                self.collect(instance);
                self.state(instance)?.cpus.clone_from(mask);
                Ok(())
            }
            Command::ClearErrors => {
                self.state(instance)?.errors.clear();
                Ok(())
            }
            Command::Expand => {
                self.state(instance)?.expand();
                Ok(())
            }
        }
    }

    /// Empties the buffers of one CPU of an instance or of all; counts of hits begin anew.
    pub(in crate::engine) fn empty_buffers(
        &mut self,
        instance: InstanceId,
        cpu: Option<u32>,
    ) -> Result<(), Errno> {
        self.state(instance)?.clear(cpu);
        if let Some(session) = self.attachments.session_mut(instance) {
            session.reset_counts(cpu);
        }
        Ok(())
    }

    /// Turns events on or off. As in the kernel, what can be done is done, and the first error told.
    fn set_events(&mut self, instance: InstanceId, events: &[EventId], on: bool) -> Result<(), Errno> {
        self.state(instance)?.expand();
        if !on {
            self.collect(instance);
            // An event that triggers may turn on stays on its hook.
            let state = self.state(instance)?;
            let (soft, hard): (Vec<EventId>, Vec<EventId>) =
                events.iter().partition(|event| state.triggers.is_soft(**event));
            let mut gone = Vec::new();
            for part in hard.chunks(PART) {
                self.keep_counts(instance, part);
                let state = self.state(instance)?;
                gone.extend(part.iter().copied().filter(|event| state.enabled.remove(event)));
                if let Some(session) = self.attachments.session_mut(instance) {
                    session.detach(part.iter().copied());
                }
                self.yield_to_readers();
            }
            if let Some(session) = self.attachments.session(instance) {
                for event in &soft {
                    session.set_soft_off(*event, true);
                }
            }
            let idle: Vec<EventId> =
                soft.into_iter().filter(|event| self.may_idle(instance, *event)).collect();
            self.keep_counts(instance, &idle);
            if let Some(session) = self.attachments.session_mut(instance) {
                for event in idle {
                    session.idle_at(event);
                }
            }
            for event in gone {
                self.sit(instance, event, false)?;
                self.yield_to_readers();
            }
            for event in events {
                self.changed(instance, *event)?;
                self.yield_to_readers();
            }
            return Ok(());
        }
        let _opening = Opening::begin_at_once();
        let many = self.begin_many(instance, events);
        self.make_session(instance)?;
        self.choose_hooks(events);
        let rest = self.prepare(instance, events, many);
        self.attach_together(instance, events);
        let mut first = Ok(());
        for event in events {
            self.await_opened(instance, *event);
            if self.scheduler.is_stopping() {
                first = first.and(Err(Errno::INTR));
                break;
            }
            let is_attached =
                self.state(instance)?.enabled.contains(event) && !self.attachments.is_idle(instance, *event);
            let done = if is_attached {
                if let Some(session) = self.attachments.session(instance) {
                    session.set_soft_off(*event, false);
                }
                Ok(())
            } else {
                self.attach_hook(instance, *event, false)
            };
            first = first.and(done);
        }
        if let Some(session) = self.attachments.session_mut(instance) {
            session.kernel_mut().forget_ahead();
            session.end_together();
        }
        if rest.is_some() {
            self.attachments.guard_events(instance);
        }
        first
    }

    /// Lets others have turns, and goes on once what an event will hang on is opened.
    fn await_opened(&mut self, instance: InstanceId, event: EventId) {
        self.yield_to_readers();
        let id = self
            .registry
            .events()
            .format(event, &self.facts)
            .and_then(|format| self.attachments.hooks().perf_id(format));
        let due = |mirror: &mut Self| {
            let session = mirror.attachments.session_mut(instance);
            id.zip(session).is_some_and(|(id, session)| session.kernel_mut().opened().is_being_opened(id))
        };
        while due(self) && !self.scheduler.is_stopping() && self.wait_for_readers() {}
    }

    /// Hangs an event on its hook, turned off by its triggers' word if so wanted.
    pub(in crate::engine) fn attach_hook(
        &mut self,
        instance: InstanceId,
        event: EventId,
        begins_off: bool,
    ) -> Result<(), Errno> {
        if begins_off && self.may_idle(instance, event) {
            if let Some(session) = self.attachments.session_mut(instance) {
                session.idle_at(event);
            }
            self.state(instance)?.enabled.insert(event);
            return self.changed(instance, event);
        }
        self.read_format(event)?;
        let (facts, catalogue) = (self.facts.clone(), self.registry.events().clone());
        let format = catalogue.try_format(event, &facts)?;
        let probes = self.registry.dynamic().probes_of(event);
        let user = self.user.has(event);
        // No record of it could be recorded.
        let too_long = user && format.fixed_size() > tracer_abi::MAX_PAYLOAD / 2;
        let without = if user || self.registry.synthetic().contains(event) {
            Some(ProgramContext::Inject)
        } else {
            probes.as_ref().and_then(|probes| self.eprobe_target(probes.first()?)).map(|(_, hook)| hook)
        };
        let chosen = self
            .registry
            .programs()
            .chosen(event, format)
            .unwrap_or_else(|| self.attachments.hooks().of(format));
        let settings = desired::settings(self, instance, event)?;
        let config = EventConfig { format, settings: &settings, begins_off };
        let linked = match (&without, &probes) {
            (Some(_), _) => Ok(()),
            (None, Some(probes)) => {
                self.open_for_probes(instance, event, probes);
                self.link_probes(instance, event, probes, &config)?
            }
            (None, None) => {
                self.link_file(instance, event, &chosen, &config)?;
                self.open_perf_event(instance, event, &chosen.via);
                Ok(())
            }
        };
        // Events whose programs this one refers to may have come or gone while others had turns.
        let settings = desired::settings(self, instance, event)?;
        let config = EventConfig { format, settings: &settings, begins_off };
        let (mut no_hook, mut refused) = (None, Refused::default());
        let live = self.attachments.session_mut(instance).ok_or(Errno::NODEV)?;
        let attached = match (without, &probes) {
            _ if too_long => Ok(()),
            (Some(hook), _) => {
                live.attach_emitted(event, hook, &config).map_err(|error| session::log_to_errno(&error))
            }
            (None, Some(probes)) => {
                linked.and_then(|()| live.attach_probes(event, probes, &config, &facts)).map_err(|tried| {
                    tracing::warn!("{}: {tried}", format.full_name());
                    no_hook = Some(tried.to_string());
                    tried.errno()
                })
            }
            (None, None) => {
                live.attach_hook(event, &chosen, &config).or_else(|error| refused.keep(&chosen, &error))
            }
        };
        let attached = match refused.0 {
            // A filter may want a value that only the kernel's own record has.
            Some(why) => self.attach_tracepoint(instance, event, why, &config),
            None => attached,
        };
        self.forget_opened(instance);
        if let Some(why) = no_hook {
            let entry =
                format!("tracer: error: no hook: {why}\n  Command: {}\n           ^\n", format.full_name());
            self.state(instance)?.errors.push(monotonic(), entry.into_bytes());
        }
        attached?;
        let state = self.state(instance)?;
        let newly = state.enabled.insert(event);
        state.recorded.insert(event);
        if probes.is_some() {
            self.registry.dynamic_mut().profile_mut().begin(event, instance);
        }
        let sits = newly && probes.is_some();
        let mut done = if sits { self.sit(instance, event, true) } else { Ok(()) };
        if done.is_ok() {
            done = self.changed(instance, event);
            if done.is_err() && sits {
                let _ = self.sit(instance, event, false);
            }
        }
        if done.is_err() {
            self.state(instance)?.enabled.remove(&event);
            if let Some(session) = self.attachments.session_mut(instance) {
                session.detach([event]);
            }
            let _ = self.changed(instance, event);
        }
        done
    }

    /// Gives an event that hangs on its hook the program that is right by now.
    pub(in crate::engine) fn refresh(&mut self, instance: InstanceId, event: EventId) -> Result<(), Errno> {
        self.state(instance)?;
        if self.attachments.session(instance).is_none() {
            return Ok(());
        }
        let catalogue = self.registry.events().clone();
        // An event whose format was never read was never attached.
        let Some(format) = catalogue.known_format(event) else {
            return self.changed(instance, event);
        };
        let special = catalogue.get(event).is_some_and(|known| catalogue.is_special(known.system));
        desired::with_config(self, instance, event, format, |live, config| {
            let done = if special {
                live.set_marker((!config.settings.triggers.is_empty()).then_some(config))
            } else {
                live.change(event, config)
            };
            done.map_err(|error| session::log_to_errno(&error))
        })?;
        self.changed(instance, event)
    }

    pub(in crate::engine) fn resolve(
        &mut self,
        event: EventId,
        text: &[u8],
    ) -> Result<Result<Filter, FilterError>, Errno> {
        let (facts, catalogue) = (self.facts.clone(), self.registry.events().clone());
        let resolve = || {
            let format = catalogue.try_format(event, &facts)?;
            Ok(resolve::filter(text, format, facts.as_ref()))
        };
        // A thread that reads facts may wait for the kernel, and whoever needs these facts waits for that thread.
        if facts.is_warm() && catalogue.known_format(event).is_some() {
            resolve()
        } else {
            self.run_off_thread(resolve)
        }
    }

    /// Puts a filter, or none, in force, in place of the one that was; when the kernel refuses the program, nothing
    /// changes.
    fn put_filter(
        &mut self,
        instance: InstanceId,
        event: EventId,
        new: Option<Filtering>,
    ) -> Result<(), Errno> {
        let put = |state: &mut Instance, filtering| match filtering {
            Some(filtering) => state.filters.insert(event, filtering),
            None => state.filters.remove(&event),
        };
        let old = put(self.state(instance)?, new);
        let done = self.refresh(instance, event);
        if done.is_err() {
            put(self.state(instance)?, old);
        }
        done
    }

    fn set_filter(&mut self, instance: InstanceId, event: EventId, written: &[u8]) -> Result<(), Errno> {
        let text = match filter::request(written) {
            Request::TooLong => return Err(Errno::INVAL),
            Request::Clear => return self.put_filter(instance, event, None),
            Request::Set(text) => text,
        };
        match self.resolve(event, text)? {
            Ok(filter) => {
                let shown = filter::shown(text, &self.facts.dialect());
                self.put_filter(instance, event, Some(Filtering { shown, filter: Some(filter) }))
            }
            Err(error) => {
                // A filter that is none takes the old one's place, and all hits pass.
                let failed = Filtering { shown: error.filter_file(), filter: None };
                self.put_filter(instance, event, Some(failed))?;
                self.state(instance)?.errors.push(monotonic(), error.log_entry());
                Err(error.errno())
            }
        }
    }

    /// Each event of the system gets the filter, or, where it does not fit, the error; the write itself succeeds
    /// (`process_system_preds()`).
    fn set_system_filter(
        &mut self,
        instance: InstanceId,
        system: SystemId,
        written: &[u8],
    ) -> Result<(), Errno> {
        let catalogue = self.registry.events().clone();
        let events = &catalogue.system(system).ok_or(Errno::NODEV)?.events;
        let text = match filter::request(written) {
            Request::TooLong => return Err(Errno::INVAL),
            Request::Clear => {
                return events.iter().try_for_each(|event| {
                    self.yield_to_readers();
                    self.put_filter(instance, *event, None)
                });
            }
            Request::Set(text) => text,
        };
        for event in events {
            self.yield_to_readers();
            let new = match self.resolve(*event, text)? {
                Ok(filter) => {
                    Filtering { shown: filter::shown(text, &self.facts.dialect()), filter: Some(filter) }
                }
                Err(error) => {
                    let error = error.for_subsystem();
                    self.state(instance)?.errors.push(monotonic(), error.log_entry());
                    Filtering { shown: error.filter_file(), filter: None }
                }
            };
            self.put_filter(instance, *event, Some(new))?;
        }
        Ok(())
    }

    fn set_option_word(&mut self, instance: InstanceId, word: &[u8]) -> Result<(), Errno> {
        // The kernel's buffer for it.
        if word.len() >= 64 {
            return Err(Errno::INVAL);
        }
        let word = crate::lang::ctype::trim_end(word);
        let word = crate::lang::ctype::trim_start(word);
        let word = std::str::from_utf8(word).map_err(|_| Errno::INVAL)?;
        let (name, on) = match word.strip_prefix("no") {
            Some(name) => (name, false),
            None => (word, true),
        };
        let option = self.state(instance)?.options.find_named(name).ok_or(Errno::INVAL)?;
        self.set_option(instance, option, on)
    }

    fn set_option(&mut self, instance: InstanceId, option: u32, on: bool) -> Result<(), Errno> {
        let task_pid = self.task_pid();
        let state = self.instances.get_mut(&instance).ok_or(Errno::NODEV)?;
        let name = state.options.name(option).ok_or(Errno::NODEV)?.to_owned();
        if name == "trace_printk_dest" {
            return self.printk_destination(instance, on);
        }
        if state.options.get(option) == on {
            return Ok(());
        }
        if name == "event-fork" {
            state.threads.follow_forks(on, task_pid, self.attachments.session_mut(instance))?;
        }
        if !state.options.set(option, on) {
            return Err(Errno::INVAL);
        }
        if name == "record-cmd" {
            self.collect_all();
            self.tasks.record(on);
            return Ok(());
        }
        if name == "overwrite" {
            state.buffer.select_mut(None).for_each(|(_, buffer)| buffer.set_overwrite(on));
        }
        if matches!(name.as_str(), "stacktrace" | "userstacktrace") {
            let hanging: Vec<EventId> = state.enabled.iter().copied().collect();
            return hanging.into_iter().try_for_each(|event| {
                self.yield_to_readers();
                self.refresh(instance, event)
            });
        }
        Ok(())
    }

    fn add_pids(&mut self, instance: InstanceId, list: List, text: &[u8]) -> Result<(), Errno> {
        self.state(instance)?.expand();
        let mut pids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (done, word) = crate::engine::instances::words::word(rest)?;
            let Some(word) = word else { break };
            // Base 0, and whatever fits a pid of the kernel's is taken as one.
            let pid = crate::lang::number::unsigned(word).ok_or(Errno::INVAL)? as u32;
            if pid >= PID_LIMIT {
                // The kernel's list says -1, which is this.
                return Err(Errno::PERM);
            }
            pids.push(pid);
            rest = rest.get(done..).unwrap_or_default();
        }
        let state = self.instances.get_mut(&instance).ok_or(Errno::NODEV)?;
        state.threads.add(list, &pids, self.attachments.session_mut(instance))
    }

    /// Learns which threads came into an instance's lists and left them by forking and exiting.
    pub fn refresh_pids(&mut self, instance: InstanceId) {
        if let Some(state) = self.instances.get_mut(&instance) {
            state.threads.refresh(self.attachments.session_mut(instance));
        }
    }

    fn clear_pids(&mut self, instance: InstanceId, list: List) -> Result<(), Errno> {
        let state = self.instances.get_mut(&instance).ok_or(Errno::NODEV)?;
        state.threads.clear(list, self.attachments.session_mut(instance))
    }
}
