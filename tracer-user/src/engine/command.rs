//! The commands that change an instance.

use rustix::io::Errno;

use crate::{
    buffer::{
        PageSize,
        clock::{Clock, monotonic},
    },
    engine::{
        Cooperative, Engine,
        attachments::reconcile::{Goal, reconcile},
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
    },
};

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

/// The goal of turning events on or off.
fn goal(on: bool) -> Goal {
    if on { Goal::On } else { Goal::Off }
}

impl Engine {
    /// Does a command to an instance.
    ///
    /// # Errors
    /// `ENODEV` for an instance that is gone; otherwise the kernel's error number for what is asked.
    pub fn apply(&mut self, instance: InstanceId, command: &Command<'_>) -> Result<(), Errno> {
        self.touch();
        match command {
            Command::Event { event, on } => reconcile(self, instance, &[*event], goal(*on)),
            Command::Events { which, on } => {
                let catalogue = self.registry.events().clone();
                let events = self.state(instance)?.awaited.select(&catalogue, which, *on)?;
                reconcile(self, instance, &events, goal(*on))
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
        let done = reconcile(self, instance, &[event], Goal::Unchanged);
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
            let attached: Vec<EventId> = state.enabled.iter().copied().collect();
            return reconcile(self, instance, &attached, Goal::Unchanged);
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
