//! Many events turned on at once: what takes time is begun early and done by several threads.
//!
//! Perf tracepoints are opened by a thread while hooks are chosen and programs are made, by as many threads as there are
//! CPUs ([`crate::attach::Session::prepare`]). The events are then hung up one by one, as few are.

use std::sync::atomic::AtomicBool;

use crate::{
    attach::{Ahead, Built, BulkBuilder, Opening},
    engine::{
        Cooperative, Engine,
        attachments::{
            desired,
            session::event_config::{EventConfig, EventSettings},
        },
        hooks::{AttachPlan, BULK_THRESHOLD},
    },
    event::{EventId, Format, InstanceId},
};

/// What was begun.
pub(in crate::engine) struct Many {
    opening: Opening,
    ahead: Ahead,
}

/// What is left of it while the events are hung up.
pub(in crate::engine) struct BulkGuard {
    _opening: Opening,
}

impl Engine {
    /// Where many events are about to be turned on, reads what they are and opens what they will hang on.
    pub(in crate::engine) fn begin_many(&mut self, instance: InstanceId, events: &[EventId]) -> Option<Many> {
        if events.len() <= BULK_THRESHOLD {
            return None;
        }
        let opening = self.run_off_thread(Opening::begin);
        let (facts, catalogue) = (self.facts.clone(), self.registry.events().clone());
        self.run_off_thread(|| catalogue.read_formats(events, &facts));
        let new = events.iter().filter(|event| is_to_attach(self, instance, **event));
        let formats = new.filter_map(|event| self.registry.events().format(*event, &self.facts));
        let ids: Vec<u16> = formats.filter_map(|format| self.attachments.hooks().perf_id(format)).collect();
        Some(Many { opening, ahead: Ahead::start(ids) })
    }

    /// Makes the programs of many events and hands the session what was opened for them.
    pub(in crate::engine) fn prepare(
        &mut self,
        instance: InstanceId,
        events: &[EventId],
        many: Option<Many>,
    ) -> Option<BulkGuard> {
        let Many { opening, ahead } = many?;
        let (facts, catalogue) = (self.facts.clone(), self.registry.events().clone());
        let mut new: Vec<BuildInput<'_>> = Vec::new();
        for event in events {
            self.yield_to_readers();
            if is_to_attach(self, instance, *event)
                && let Some(format) = catalogue.format(*event, &facts)
                && let Ok(settings) = desired::settings(self, instance, *event)
            {
                new.push(BuildInput { format, plan: self.attachments.hooks().of(format), settings });
            }
        }
        if let Some(session) = self.attachments.session(instance) {
            let (builder, stop) = (session.kernel().bulk_builder(), self.scheduler.stop_flag());
            let built = self.run_off_thread(|| build(&builder, &new, &stop));
            if let Some(session) = self.attachments.session_mut(instance) {
                session.kernel_mut().take_built(built);
                session.kernel_mut().opened().set_ahead(ahead);
            }
        }
        Some(BulkGuard { _opening: opening })
    }
}

/// What the program of one of many events is made of.
struct BuildInput<'a> {
    format: &'a Format,
    plan: AttachPlan,
    settings: EventSettings,
}

/// Makes the programs of events that can share one with others.
fn build(builder: &BulkBuilder, new: &[BuildInput<'_>], stop: &AtomicBool) -> Vec<Built> {
    let shared = new.iter().filter(|input| input.plan.via.shares());
    let requests: Vec<_> = shared
        .map(|BuildInput { format, plan, settings }| {
            EventConfig { format, settings, begins_off: false }.request(&plan.via, &plan.hook)
        })
        .collect();
    builder.build(&requests, stop)
}

/// Whether enabling an event takes attaching it to a hook of the kernel.
fn is_to_attach(engine: &Engine, instance: InstanceId, event: EventId) -> bool {
    let Some(state) = engine.get(instance) else { return false };
    let is_attached = state.enabled.contains(&event) && !engine.attachments.is_idle(instance, event);
    let session = engine.attachments.session(instance);
    let is_parked = session.is_some_and(|session| session.is_parked(event));
    !is_attached && !is_parked && !engine.registry.events().is_made(event)
}
