//! The commands that change one instance.

use std::sync::Arc;

use super::{
    error::{CommandError, ErrorKind},
    request::InstanceCommand,
};
use crate::{
    engine::{
        Engine,
        attachments::{
            reconcile::{Goal, reconcile},
            session::InstanceSession,
        },
        histograms::commands,
        instances::{
            filter,
            instance::Instance,
            select::Selector,
            thread_lists::{List, PID_LIMIT},
            trigger,
        },
        operations::buffers,
    },
    event::{EventId, InstanceId},
};

fn goal(on: bool) -> Goal {
    if on { Goal::On } else { Goal::Off }
}

/// Applies a command to an instance.
///
/// # Errors
/// `ENODEV` for a removed instance; otherwise the kernel's error for the command.
pub(super) fn apply(
    engine: &mut Engine,
    instance: InstanceId,
    command: &InstanceCommand<'_>,
) -> Result<(), CommandError> {
    match command {
        InstanceCommand::Event { event, on } => reconcile(engine, instance, &[*event], goal(*on)),
        InstanceCommand::Events { which, on } => {
            let catalogue = engine.registry.events().clone();
            let events = engine.instances.state(instance)?.awaited.select(&catalogue, which, *on)?;
            reconcile(engine, instance, &events, goal(*on))
        }
        InstanceCommand::Filter { event, text } => filter::set_filter(engine, instance, *event, text),
        InstanceCommand::SystemFilter { system, text } => {
            filter::set_system_filter(engine, instance, *system, text)
        }
        InstanceCommand::Trigger { event, text } => trigger::set_trigger(engine, instance, *event, text),
        InstanceCommand::AddPids { list, text } => {
            let Engine { instances, attachments, .. } = engine;
            add_pids(instances.state(instance)?, attachments.session_mut(instance), *list, text)
        }
        InstanceCommand::ClearPids(list) => {
            let state = engine.instances.state(instance)?;
            state.threads.clear(*list, engine.attachments.session_mut(instance))
        }
        InstanceCommand::Tracing(on) => {
            engine.collect(instance);
            engine.instances.state(instance)?.on = *on;
            if let Some(session) = engine.attachments.session(instance) {
                session.kernel().switches().set_tracing(*on);
            }
            Ok(())
        }
        InstanceCommand::Clear(cpu) => {
            engine.collect(instance);
            buffers::empty(&mut engine.instances, &mut engine.attachments, instance, *cpu)
        }
        InstanceCommand::Snapshot { cpu, number } => {
            engine.collect(instance);
            let state = engine.instances.state(instance)?;
            state.expand();
            state.take_snapshot(*cpu, *number)
        }
        InstanceCommand::Clock(name) => buffers::set_clock(engine, instance, name),
        InstanceCommand::BufferSize { cpu, bytes } => {
            engine.instances.find_memory(instance, *cpu, *bytes)?;
            // From now on a larger buffer receives what would be overwritten in a ring.
            engine.collect(instance);
            engine.instances.state(instance)?.resize(*cpu, *bytes)
        }
        InstanceCommand::PageSize(page) => {
            engine.collect(instance);
            engine.instances.state(instance)?.set_page(*page);
            Ok(())
        }
        InstanceCommand::Option { option, on } => set_option(engine, instance, *option, *on),
        InstanceCommand::OptionWord(word) => set_option_word(engine, instance, word),
        InstanceCommand::Tracer(name) => {
            // The kernel reads at most this many bytes (`MAX_TRACER_SIZE`).
            let name = name.get(..100).unwrap_or(name);
            let name = crate::lang::ctype::trim_end(name);
            let name = crate::lang::ctype::trim_start(name);
            if name == b"nop" { Ok(()) } else { Err(ErrorKind::Invalid.into()) }
        }
        InstanceCommand::Cpus(mask) => {
            engine.collect(instance);
            engine.instances.state(instance)?.cpus.clone_from(mask);
            Ok(())
        }
        InstanceCommand::ClearErrors => {
            engine.instances.state(instance)?.errors.clear();
            Ok(())
        }
        InstanceCommand::Expand => {
            engine.instances.state(instance)?.expand();
            Ok(())
        }
        InstanceCommand::DisableAll => {
            let all = InstanceCommand::Events { which: Selector::system(None), on: false };
            apply(engine, instance, &all)?;
            engine.instances.state(instance)?.clear_awaited();
            Ok(())
        }
        InstanceCommand::ClearHistograms(event) => commands::clear_hists(engine, instance, *event),
        InstanceCommand::WakePercent(percent) => {
            engine.instances.state(instance)?.percent = *percent;
            Ok(())
        }
    }
}

fn set_option_word(engine: &mut Engine, instance: InstanceId, word: &[u8]) -> Result<(), CommandError> {
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
    let option = engine.instances.state(instance)?.options.find_named(name).ok_or(ErrorKind::Invalid)?;
    set_option(engine, instance, option, on)
}

fn set_option(engine: &mut Engine, instance: InstanceId, option: u32, on: bool) -> Result<(), CommandError> {
    let task_pid = engine.facts.task_pid();
    let state = engine.instances.get_mut(instance).ok_or(ErrorKind::Gone)?;
    let name = state.options.name(option).ok_or(ErrorKind::Gone)?.to_owned();
    if name == "trace_printk_dest" {
        return engine.instances.set_printk_destination(instance, on);
    }
    if state.options.get(option) == on {
        return Ok(());
    }
    if name == "overwrite" {
        engine.collect(instance);
    }
    let state = engine.instances.get_mut(instance).ok_or(ErrorKind::Gone)?;
    if name == "event-fork" {
        state.threads.follow_forks(on, task_pid, engine.attachments.session_mut(instance))?;
    }
    if !state.options.set(option, on) {
        return Err(ErrorKind::Invalid.into());
    }
    if name == "record-cmd" {
        engine.collect_all();
        Arc::make_mut(&mut engine.tasks).record(on);
        return Ok(());
    }
    if name == "overwrite" {
        state.buffer.select_mut(None).for_each(|(_, buffer)| buffer.set_overwrite(on));
    }
    if matches!(name.as_str(), "stacktrace" | "userstacktrace") {
        let attached: Vec<EventId> = state.enabled.iter().copied().collect();
        let done = reconcile(engine, instance, &attached, Goal::Unchanged);
        if done.is_err() {
            engine.instances.state(instance)?.options.set(option, !on);
            let _ = reconcile(engine, instance, &attached, Goal::Unchanged);
        }
        return done;
    }
    Ok(())
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
