//! Many events turned on at once: what takes time is begun early and done by several threads.
//!
//! Perf tracepoints are opened by a thread while hooks are chosen and programs are made, by as many threads as there are
//! CPUs ([`crate::attach::Session::prepare`]). The events are then hung up one by one, as few are.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    thread::JoinHandle,
};

use rustix::io::Errno;

use super::{
    live::{Live, Wanted},
    mirror::Mirror,
    state::Instance,
};
use crate::{
    attach::{Ahead, Guard, Opening},
    control::hooks::{Chosen, FEW},
    event::Format,
};

/// Starts a process that is to guard perf tracepoints ([`Guard`]); the socket to it.
pub type StartGuard = fn() -> io::Result<OwnedFd>;

/// What was begun.
pub(super) struct Many {
    opening: Opening,
    ahead: Ahead,
    guard: Option<JoinHandle<io::Result<OwnedFd>>>,
}

/// What is left of it while the events are hung up.
pub(super) struct Rest {
    _opening: Opening,
    guard: Option<JoinHandle<io::Result<OwnedFd>>>,
}

/// Who guards this process's perf tracepoints.
#[derive(Debug, Default)]
pub(super) struct Guarding {
    start: Option<StartGuard>,
    guard: Weak<Guard>,
}

impl Guarding {
    fn guard(&self) -> Option<Arc<Guard>> {
        self.guard.upgrade().filter(|guard| !guard.is_gone())
    }

    /// Has everything let go.
    pub(super) fn dismiss(&self) {
        if let Some(guard) = self.guard() {
            guard.dismiss();
        }
    }
}

impl Mirror {
    /// Whether an event will have to be hung on a hook that the kernel made.
    fn is_to_hang(&self, instance: u32, event: u32) -> bool {
        let off = self.instances.get(&instance).is_some_and(|state| {
            let hangs = state.enabled.contains(&event) && !state.idles(event);
            !hangs && !state.live.as_ref().is_some_and(|live| live.rests(event))
        });
        off && !self.events.is_made(event, &self.facts)
    }

    /// Where many events are about to be turned on, reads what they are and opens what they will hang on.
    pub(super) fn begin_many(&self, instance: u32, events: &[u32]) -> Option<Many> {
        if events.len() <= FEW {
            return None;
        }
        let opening = Opening::begin();
        self.events.read_formats(events, &self.facts);
        let new = events.iter().filter(|event| self.is_to_hang(instance, **event));
        let formats = new.filter_map(|event| self.events.format(*event, &self.facts));
        let ids: Vec<u16> = formats.filter_map(|format| self.choices.perf_id(format)).collect();
        let start = self.guarding.start.filter(|_| !ids.is_empty() && self.guarding.guard().is_none());
        Some(Many { opening, ahead: Ahead::start(ids), guard: start.map(std::thread::spawn) })
    }

    /// Has perf tracepoints guarded, from the next time on that many are turned on.
    pub fn guard_with(&mut self, start: StartGuard) {
        self.guarding.start = Some(start);
    }

    /// Has what many events hang on guarded.
    pub(super) fn end_many(&mut self, instance: u32, rest: Option<Rest>) {
        let Some(Rest { guard: started, .. }) = rest else { return };
        let guard = self.guarding.guard().or_else(|| {
            let started = started?.join().ok()?;
            let socket = started.inspect_err(|error| tracing::warn!("no process guards events: {error}"));
            Some(Arc::new(Guard::new(socket.ok()?)))
        });
        let Some(guard) = guard else { return };
        self.guarding.guard = Arc::downgrade(&guard);
        if let Some(live) = self.state(instance).ok().and_then(|state| state.live.as_mut()) {
            live.guard(&guard);
        }
    }

    /// Makes the programs of many events and hands the session what was opened for them.
    pub(super) fn prepare(&mut self, instance: u32, events: &[u32], many: Option<Many>) -> Option<Rest> {
        let Many { opening, ahead, guard } = many?;
        let (facts, catalogue, kinds) = (self.facts.clone(), self.events.clone(), self.stack_kinds());
        let new = events.iter().filter(|event| self.is_to_hang(instance, **event));
        let formats = new.filter_map(|event| Some((*event, catalogue.format(*event, &facts)?)));
        let new: Vec<(u32, &Format, Chosen)> =
            formats.map(|(event, format)| (event, format, self.choices.of(format))).collect();
        if let Ok(state) = self.state(instance) {
            let _ = state.prepare(&new, kinds);
            if let Some(live) = &mut state.live {
                live.session().open_ahead(ahead);
            }
        }
        Some(Rest { _opening: opening, guard })
    }
}

impl Instance {
    fn prepare(&mut self, new: &[(u32, &Format, Chosen)], kinds: [u16; 2]) -> Result<(), Errno> {
        let Self { live, filters, triggers, options, hists, .. } = self;
        let live: &mut Live = live.as_mut().ok_or(Errno::NODEV)?;
        let plan = |event| triggers.plan(event, |target| live.slot(target), |target| hists.places(target));
        let plans: Vec<_> = new.iter().map(|(event, ..)| plan(*event)).collect();
        let wanted: Vec<Wanted<'_>> = new
            .iter()
            .zip(&plans)
            .map(|((event, format, _), plan)| Wanted {
                format,
                filter: filters.get(event).and_then(|filtering| filtering.filter.as_ref()),
                triggers: plan,
                soft: triggers.is_soft(*event),
                counted: hists.counts_event(*event),
                begins_off: false,
                stacks: [options.is("stacktrace"), options.is("userstacktrace")],
                kinds,
            })
            .collect();
        let requests: Vec<_> = new
            .iter()
            .zip(&wanted)
            .filter(|((.., chosen), _)| chosen.via.shares())
            .map(|((.., chosen), wanted)| wanted.request(&chosen.via, &chosen.hook))
            .collect();
        live.session().prepare(&requests);
        Ok(())
    }
}
