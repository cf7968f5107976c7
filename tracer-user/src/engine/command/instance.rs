//! The commands that change one instance.

use std::sync::Arc;

use super::{
    error::{CommandError, ErrorKind},
    request::InstanceCommand,
};
use crate::{
    engine::{
        Engine,
        attachments::{reconcile::Goal, session::InstanceSession},
        histograms::HistCommands,
        instances::{
            change::InstanceChange,
            instance::Instance,
            select::Selector,
            thread_lists::{List, PID_LIMIT},
        },
        operations::buffers,
    },
    event::EventId,
};

fn goal(on: bool) -> Goal {
    if on { Goal::On } else { Goal::Off }
}

impl InstanceChange<'_> {
    /// Applies a command to an instance.
    ///
    /// # Errors
    /// `ENODEV` for a removed instance; otherwise the kernel's error for the command.
    pub(super) fn apply(&mut self, command: &InstanceCommand<'_>) -> Result<(), CommandError> {
        match command {
            InstanceCommand::Event { event, on } => self.reconciler().reconcile(&[*event], goal(*on)),
            InstanceCommand::Events { which, on } => {
                let catalogue = self.engine.registry.events().clone();
                let events = self.state()?.awaited.select(&catalogue, which, *on)?;
                self.reconciler().reconcile(&events, goal(*on))
            }
            InstanceCommand::Filter { event, text } => self.set_filter(*event, text),
            InstanceCommand::SystemFilter { system, text } => self.set_system_filter(*system, text),
            InstanceCommand::Trigger { event, text } => self.set_trigger(*event, text),
            InstanceCommand::AddPids { list, text } => {
                let Engine { instances, attachments, .. } = self.engine;
                add_pids(instances.state(self.instance)?, attachments.session_mut(self.instance), *list, text)
            }
            InstanceCommand::ClearPids(list) => {
                let state = self.engine.instances.state(self.instance)?;
                state.threads.clear(*list, self.engine.attachments.session_mut(self.instance))
            }
            InstanceCommand::Tracing(on) => {
                self.engine.collect(self.instance);
                self.state()?.on = *on;
                if let Some(session) = self.engine.attachments.session(self.instance) {
                    session.kernel().switches().set_tracing(*on);
                }
                Ok(())
            }
            InstanceCommand::Clear(cpu) => {
                self.engine.collect(self.instance);
                buffers::empty(&mut self.engine.instances, &mut self.engine.attachments, self.instance, *cpu)
            }
            InstanceCommand::Snapshot { cpu, number } => {
                self.engine.collect(self.instance);
                let state = self.state()?;
                state.expand();
                state.take_snapshot(*cpu, *number)
            }
            InstanceCommand::Clock(name) => self.set_clock(name),
            InstanceCommand::BufferSize { cpu, bytes } => {
                self.engine.instances.find_memory(self.instance, *cpu, *bytes)?;
                // From now on a larger buffer receives what would be overwritten in a ring.
                self.engine.collect(self.instance);
                self.state()?.resize(*cpu, *bytes)
            }
            InstanceCommand::PageSize(page) => {
                self.engine.collect(self.instance);
                self.state()?.set_page(*page);
                Ok(())
            }
            InstanceCommand::Option { option, on } => self.set_option(*option, *on),
            InstanceCommand::OptionWord(word) => self.set_option_word(word),
            InstanceCommand::Tracer(name) => {
                // The kernel reads at most this many bytes (`MAX_TRACER_SIZE`).
                let name = name.get(..100).unwrap_or(name);
                let name = crate::lang::ctype::trim_end(name);
                let name = crate::lang::ctype::trim_start(name);
                if name == b"nop" { Ok(()) } else { Err(ErrorKind::Invalid.into()) }
            }
            InstanceCommand::Cpus(mask) => {
                self.engine.collect(self.instance);
                self.state()?.cpus.clone_from(mask);
                Ok(())
            }
            InstanceCommand::ClearErrors => {
                self.state()?.errors.clear();
                Ok(())
            }
            InstanceCommand::Expand => {
                self.state()?.expand();
                Ok(())
            }
            InstanceCommand::DisableAll => {
                let all = InstanceCommand::Events { which: Selector::system(None), on: false };
                self.apply(&all)?;
                self.state()?.clear_awaited();
                Ok(())
            }
            InstanceCommand::ClearHistograms(event) => {
                HistCommands::of(self.engine, self.instance).clear_hists(*event)
            }
            InstanceCommand::WakePercent(percent) => {
                self.state()?.percent = *percent;
                Ok(())
            }
            InstanceCommand::UserData(bytes) => {
                self.state()?.user_data = *bytes;
                if let Some(session) = self.engine.attachments.session(self.instance) {
                    session.kernel().switches().set_user_data(*bytes);
                }
                Ok(())
            }
        }
    }

    fn set_option_word(&mut self, word: &[u8]) -> Result<(), CommandError> {
        // The size of the kernel's buffer.
        if word.len() >= 64 {
            return Err(ErrorKind::Invalid.into());
        }
        let word = crate::lang::ctype::trim_end(word);
        let word = crate::lang::ctype::trim_start(word);
        let word = std::str::from_utf8(word).map_err(|_| ErrorKind::Invalid)?;
        let (name, on) = match word.strip_prefix("no") {
            Some(name) => (name, false),
            None => (word, true),
        };
        let option = self.state()?.options.find_named(name).ok_or(ErrorKind::Invalid)?;
        self.set_option(option, on)
    }

    fn set_option(&mut self, option: u32, on: bool) -> Result<(), CommandError> {
        let task_pid = self.engine.facts.task_pid();
        let state = self.engine.instances.get_mut(self.instance).ok_or(ErrorKind::Gone)?;
        let name = state.options.name(option).ok_or(ErrorKind::Gone)?.to_owned();
        if name == "trace_printk_dest" {
            return self.engine.instances.set_printk_destination(self.instance, on);
        }
        if state.options.get(option) == on {
            return Ok(());
        }
        if name == "overwrite" {
            self.engine.collect(self.instance);
        }
        let state = self.engine.instances.get_mut(self.instance).ok_or(ErrorKind::Gone)?;
        if name == "event-fork" {
            state.threads.follow_forks(on, task_pid, self.engine.attachments.session_mut(self.instance))?;
        }
        if !state.options.set(option, on) {
            return Err(ErrorKind::Invalid.into());
        }
        if name == "record-cmd" {
            self.engine.collect_all();
            Arc::make_mut(&mut self.engine.tasks).record(on);
            return Ok(());
        }
        if name == "overwrite" {
            state.buffer.select_mut(None).for_each(|(_, buffer)| buffer.set_overwrite(on));
        }
        if matches!(name.as_str(), "stacktrace" | "userstacktrace") {
            let attached: Vec<EventId> = state.enabled.iter().copied().collect();
            let done = self.update_programs(&attached);
            if done.is_err() {
                self.state()?.options.set(option, !on);
                let _ = self.update_programs(&attached);
            }
            return done;
        }
        Ok(())
    }
}

fn add_pids(
    state: &mut Instance,
    session: Option<&mut InstanceSession>,
    list: List,
    text: &[u8],
) -> Result<(), CommandError> {
    state.expand();
    let mut pids = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (done, word) = crate::engine::instances::words::word(rest)?;
        let Some(word) = word else { break };
        // Base 0; any number within the range of pids is accepted.
        let pid = crate::lang::number::unsigned(word).ok_or(ErrorKind::Invalid)? as u32;
        if pid >= PID_LIMIT {
            // The kernel's list returns -1, which is EPERM.
            return Err(ErrorKind::Denied.into());
        }
        pids.push(pid);
        rest = rest.get(done..).unwrap_or_default();
    }
    state.threads.add(list, &pids, session)
}
