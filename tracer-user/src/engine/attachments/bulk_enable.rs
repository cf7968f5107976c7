//! Many events turned on at once: what takes time is begun early and done by several threads.
//!
//! Perf tracepoints are opened by a thread while hooks are chosen and programs are made, by as many threads as there are
//! CPUs ([`crate::attach::Session::prepare`]). The events are then hung up one by one, as few are.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicBool},
};

use crate::{
    attach::{Ahead, Built, BulkBuilder, Guard, Opening},
    engine::{
        Cooperative, Engine,
        attachments::session::EventConfig,
        hooks::{AttachPlan, BULK_THRESHOLD},
        instances::instance::Instance,
    },
    event::{EventId, Format, InstanceId},
    plan::{filter::Filter, trigger::Trigger},
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

/// Who guards this process's perf tracepoints.
#[derive(Debug, Default)]
pub(in crate::engine) struct Guarding(Option<Arc<Guard>>);

impl Guarding {
    fn guard(&self) -> Option<&Arc<Guard>> {
        self.0.as_ref().filter(|guard| !guard.is_gone())
    }

    /// Has everything let go.
    pub(in crate::engine) fn dismiss(&self) {
        if let Some(guard) = self.guard() {
            guard.dismiss();
        }
    }

    /// Has events closed that are off their hooks; gives back those that are left to this process.
    pub(in crate::engine) fn close(&self, events: Vec<OwnedFd>) -> Vec<OwnedFd> {
        match self.guard() {
            Some(guard) => guard.hand_over(events),
            None => events,
        }
    }
}

impl Engine {
    /// Whether an event will have to be hung on a hook that the kernel made.
    fn is_to_attach(&self, instance: InstanceId, event: EventId) -> bool {
        let off = self.instances.get(&instance).is_some_and(|state| {
            let hangs = state.enabled.contains(&event) && !state.idles(event);
            !hangs && !state.live.as_ref().is_some_and(|live| live.rests(event))
        });
        off && !self.events.is_made(event)
    }

    /// Where many events are about to be turned on, reads what they are and opens what they will hang on.
    pub(in crate::engine) fn begin_many(&mut self, instance: InstanceId, events: &[EventId]) -> Option<Many> {
        if events.len() <= BULK_THRESHOLD {
            return None;
        }
        let opening = self.run_off_thread(Opening::begin);
        let (facts, catalogue) = (self.facts.clone(), self.events.clone());
        self.run_off_thread(|| catalogue.read_formats(events, &facts));
        let new = events.iter().filter(|event| self.is_to_attach(instance, **event));
        let formats = new.filter_map(|event| self.events.format(*event, &self.facts));
        let ids: Vec<u16> = formats.filter_map(|format| self.choices.perf_id(format)).collect();
        Some(Many { opening, ahead: Ahead::start(ids) })
    }

    /// Has perf tracepoints guarded, from the next time on that many are turned on, by the process at the other end of this socket,
    /// which has called [`crate::attach::hold`].
    pub fn guard_with(&mut self, socket: OwnedFd) {
        self.guarding = Guarding(Some(Arc::new(Guard::new(socket))));
    }

    /// Has what many events hang on guarded.
    pub(in crate::engine) fn end_many(&mut self, instance: InstanceId, rest: Option<BulkGuard>) {
        let (Some(_), Some(guard)) = (rest, self.guarding.guard().cloned()) else { return };
        if let Some(live) = self.state(instance).ok().and_then(|state| state.live.as_mut()) {
            live.guard(&guard);
        }
    }

    /// Makes the programs of many events and hands the session what was opened for them.
    pub(in crate::engine) fn prepare(
        &mut self,
        instance: InstanceId,
        events: &[EventId],
        many: Option<Many>,
    ) -> Option<BulkGuard> {
        let Many { opening, ahead } = many?;
        let (facts, catalogue, kinds) = (self.facts.clone(), self.events.clone(), self.stack_kinds());
        let new = events.iter().filter(|event| self.is_to_attach(instance, **event));
        let formats = new.filter_map(|event| Some((*event, catalogue.format(*event, &facts)?)));
        let new: Vec<(EventId, &Format, AttachPlan)> =
            formats.map(|(event, format)| (event, format, self.choices.of(format))).collect();
        if let Some(inputs) = self.get(instance).and_then(|state| state.inputs(&new, kinds)) {
            let stop = self.scheduler.stop_flag();
            let built = self.run_off_thread(|| inputs.build(&new, &stop));
            if let Some(live) = self.get_mut(instance).and_then(|state| state.live.as_mut()) {
                live.session().take_built(built);
                live.session().opened().set_ahead(ahead);
            }
        }
        Some(BulkGuard { _opening: opening })
    }
}

/// What programs of many events are made of, apart from the instance, which others may look at meanwhile.
struct Inputs {
    builder: BulkBuilder,
    /// By event.
    filters: Vec<Option<Filter>>,
    plans: Vec<Vec<Trigger>>,
    soft: Vec<bool>,
    counted: Vec<bool>,
    stacks: [bool; 2],
    kinds: [u16; 2],
}

impl Inputs {
    fn build(&self, new: &[(EventId, &Format, AttachPlan)], stop: &AtomicBool) -> Vec<Built> {
        let plans = self.filters.iter().zip(&self.plans);
        let states = self.soft.iter().zip(&self.counted);
        let wanted: Vec<EventConfig<'_>> = new
            .iter()
            .zip(plans.zip(states))
            .map(|((_, format, _), ((filter, triggers), (soft, counted)))| EventConfig {
                format,
                filter: filter.as_ref(),
                triggers,
                soft: *soft,
                counted: *counted,
                begins_off: false,
                stacks: self.stacks,
                kinds: self.kinds,
            })
            .collect();
        let requests: Vec<_> = new
            .iter()
            .zip(&wanted)
            .filter(|((.., chosen), _)| chosen.via.shares())
            .map(|((.., chosen), wanted)| wanted.request(&chosen.via, &chosen.hook))
            .collect();
        self.builder.build(&requests, stop)
    }
}

impl Instance {
    fn inputs(&self, new: &[(EventId, &Format, AttachPlan)], kinds: [u16; 2]) -> Option<Inputs> {
        let Self { live, filters, triggers, options, hists, .. } = self;
        let live = live.as_ref()?;
        let plan = |event| triggers.plan(event, |target| live.slot(target), |target| hists.places(target));
        let filter = |event| filters.get(&event).and_then(|filtering| filtering.filter.clone());
        Some(Inputs {
            builder: live.asked().bulk_builder(),
            filters: new.iter().map(|(event, ..)| filter(*event)).collect(),
            plans: new.iter().map(|(event, ..)| plan(*event)).collect(),
            soft: new.iter().map(|(event, ..)| triggers.is_soft(*event)).collect(),
            counted: new.iter().map(|(event, ..)| hists.counts_event(*event)).collect(),
            stacks: [options.is("stacktrace"), options.is("userstacktrace")],
            kinds,
        })
    }
}
