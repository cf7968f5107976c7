//! Enabling many events at once: slow work begins early and runs in several threads.
//!
//! A thread opens the perf tracepoints while hooks are chosen and programs are made. As many threads as there are
//! CPUs make the programs, up to a limit ([`BulkBuilder`]). The events are then attached one by one, as a few events
//! are.

use std::sync::atomic::AtomicBool;

use crate::{
    attach::{Ahead, AttachPoint, Built, BulkBuilder, Opening},
    engine::{
        Cooperative,
        attachments::{
            reconcile::Reconciler,
            session::event_config::{EventConfig, EventSettings},
        },
        hooks::{AttachPlan, BULK_THRESHOLD},
    },
    event::{EventId, Format},
};

/// Work that was begun for many events.
pub(super) struct BulkEnable {
    opening: Opening,
    /// Perf events that are being opened. `None` while it is not known yet which perf tracepoints are needed.
    ahead: Option<Ahead>,
}

/// Makes closers of perf events wait while the events are attached.
pub(super) struct BulkGuard {
    _opening: Opening,
}

impl Reconciler<'_> {
    /// Before many events are enabled, reads their formats and begins to open their perf tracepoints. `None` for at
    /// most [`BULK_THRESHOLD`] events.
    pub(super) fn begin_bulk(&mut self, events: &[EventId]) -> Option<BulkEnable> {
        if events.len() <= BULK_THRESHOLD {
            return None;
        }
        let opening = self.engine.run_off_thread(Opening::begin);
        let (facts, catalogue) = (self.engine.facts.clone(), self.engine.registry.events().clone());
        self.engine.run_off_thread(|| catalogue.read_formats(events, &facts));
        // A recording chooses its hooks before it opens perf events.
        let is_known = self.engine.attachments.options().recording.is_none();
        Some(BulkEnable { opening, ahead: is_known.then(|| self.open_ahead(events)) })
    }

    /// Makes the programs of many events. Gives them, and the perf events that are being opened, to the session.
    pub(super) fn prepare(&mut self, events: &[EventId], bulk: Option<BulkEnable>) -> Option<BulkGuard> {
        let BulkEnable { opening, ahead } = bulk?;
        let ahead = ahead.unwrap_or_else(|| self.open_ahead(events));
        if let Ok(session) = self.session() {
            session.style.share();
        }
        let (facts, catalogue) = (self.engine.facts.clone(), self.engine.registry.events().clone());
        let mut new: Vec<BuildInput<'_>> = Vec::new();
        for event in events {
            self.engine.yield_to_readers();
            if self.is_to_attach(*event)
                && let Some(format) = catalogue.format(*event, &facts)
                && let Ok(settings) = self.settings(*event)
            {
                new.push(BuildInput {
                    event: *event,
                    format,
                    plan: self.engine.attachments.hooks().of(format),
                    settings,
                });
            }
        }
        if let Some(session) = self.engine.attachments.session(self.instance) {
            let (builder, stop) = (session.kernel().bulk_builder(), self.engine.scheduler.stop_flag());
            let built = self.engine.run_off_thread(|| build(&builder, &new, &stop));
            if let Ok(session) = self.session() {
                session
                    .take_built(built, new.into_iter().map(|input| (input.event, input.settings)).collect());
                session.kernel_mut().opened().set_ahead(ahead);
            }
        }
        Some(BulkGuard { _opening: opening })
    }
}

/// Inputs for the program of one event.
struct BuildInput<'a> {
    event: EventId,
    format: &'a Format,
    plan: AttachPlan,
    settings: EventSettings,
}

/// Makes the programs of those events that can share one with others.
fn build(builder: &BulkBuilder, new: &[BuildInput<'_>], stop: &AtomicBool) -> Vec<Built> {
    let shared = new.iter().filter(|input| input.plan.point.shares());
    let requests: Vec<_> = shared
        .map(|BuildInput { format, plan, settings, .. }| {
            EventConfig { format, settings, begins_off: false }.request(&plan.point, &plan.context)
        })
        .collect();
    builder.build(&requests, stop)
}

impl Reconciler<'_> {
    /// Begins to open the perf tracepoints that these events will be attached to, as far as they are known.
    fn open_ahead(&self, events: &[EventId]) -> Ahead {
        let new = events.iter().filter(|event| self.is_to_attach(**event));
        let formats =
            new.filter_map(|event| self.engine.registry.events().format(*event, &self.engine.facts));
        let ids = formats.filter_map(|format| self.engine.attachments.hooks().perf_id(format));
        Ahead::start(
            ids.filter(|id| !self.engine.attachments.is_linked(&AttachPoint::Tracepoint(*id))).collect(),
        )
    }

    /// Whether enabling an event attaches a program to a kernel hook.
    fn is_to_attach(&self, event: EventId) -> bool {
        let session = self.engine.attachments.session(self.instance);
        let is_there =
            session.is_some_and(|session| session.is_off(event).is_some() || session.is_claimed(event));
        !is_there && !self.engine.registry.events().is_made(event)
    }
}
