//! What of an instance is in the kernel: its session, and the events that hang on their hooks.
//!
//! It is made when the first event is turned on. Events hang behind a gate, so that each can change and go while it
//! fires; one that was turned off rests on its hook for a while.

use std::collections::HashMap;

pub(super) use super::hung::HungProbes;
use super::rest::Rest;
use crate::{
    attach::{self, AttachError, Cause, Context, Hung, Request, Session, Threads, ids},
    control::{
        facts::Facts,
        hooks::{self, Chosen},
        recorder,
    },
    event::Format,
    plan::{filter::Filter, source::Hook},
    sys::ring::{RingMemory, Seen},
};

/// Bytes of a CPU's BPF ring buffer: what may come between two visits of the reader.
const RING_BYTES: u32 = 2 << 20;
/// Events that an instance can have on at once.
const SLOTS: u32 = 8192;

/// An instance's part in the kernel.
#[derive(Debug)]
pub(super) struct Live {
    session: Session,
    pub(super) rings: Vec<RingMemory>,
    hung: HashMap<u32, (Hung, Chosen)>,
    /// Dynamic events.
    probes: HashMap<u32, HungProbes>,
    rest: Rest,
    /// Hits that found the ring full, by CPU: of events that are off by now, and what was told of the others.
    gone: Vec<u64>,
    told: Vec<u64>,
}

/// What programs can learn of their context, found once.
#[derive(Debug)]
pub(super) struct Grounds {
    context: Context,
    own: ids::Ids,
}

impl Grounds {
    /// Finds them.
    pub(super) fn find(facts: &Facts) -> Result<Self, AttachError> {
        let own = ids::own().map_err(|cause| AttachError::new("own process id", cause))?;
        Ok(Self { context: recorder::context(facts), own })
    }

    /// A session with its rings.
    pub(super) fn session(
        &self,
        ring_bytes: u32,
        slots: u32,
        facts: &Facts,
    ) -> Result<(Session, Vec<RingMemory>), AttachError> {
        let sizes = attach::Options {
            ring_bytes,
            watermark: ring_bytes / 2,
            cpus: facts.cpus(),
            slots,
            pid_gate: false,
            pid_lists: true,
            own_tgid: self.own.process,
            trace_own: false,
        };
        Session::new(&sizes, self.context.clone())
    }
}

impl Live {
    /// Makes the session; nothing is traced yet.
    pub(super) fn new(grounds: &Grounds, facts: &Facts) -> Result<Self, AttachError> {
        let (session, rings) = grounds.session(RING_BYTES, SLOTS, facts)?;
        let cpus = rings.len();
        Ok(Self {
            session,
            rings,
            hung: HashMap::new(),
            probes: HashMap::new(),
            rest: Rest::default(),
            gone: vec![0; cpus],
            told: vec![0; cpus],
        })
    }

    /// The session.
    pub(super) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Turns an event on, at its hook or, where the kernel takes no program there, at its perf tracepoint.
    pub(super) fn hang(
        &mut self,
        event: u32,
        format: &Format,
        chosen: &Chosen,
        filter: Option<&Filter>,
    ) -> Result<(), AttachError> {
        if self.hung.contains_key(&event) {
            return Ok(());
        }
        self.hang_at(event, format, chosen, filter).or_else(|error| match chosen.hook {
            Hook::Tracepoint => Err(error),
            // A filter may want what only the kernel's own record has.
            _ => self.hang_at(event, format, &Chosen::tracepoint(format, error.to_string()), filter),
        })
    }

    fn hang_at(
        &mut self,
        event: u32,
        format: &Format,
        chosen: &Chosen,
        filter: Option<&Filter>,
    ) -> Result<(), AttachError> {
        let request = request(format, chosen, filter);
        let hung = match self.rest.take(event).filter(|resting| *resting.via() == chosen.via) {
            Some(resting) => {
                let hung = self.session.resume(resting, &request)?;
                for (cpu, gone) in (0..).zip(&mut self.gone) {
                    *gone -= self.session.counters(hung.slot, cpu).dropped.min(*gone);
                }
                hung
            }
            None => self.session.hang(&request)?,
        };
        self.hung.insert(event, (hung, chosen.clone()));
        Ok(())
    }

    /// Changes the filter of an event that is on.
    pub(super) fn change(
        &mut self,
        event: u32,
        format: &Format,
        filter: Option<&Filter>,
    ) -> Result<(), AttachError> {
        if self.probes.contains_key(&event) {
            return self.change_probes(event, format, filter);
        }
        let Some((hung, chosen)) = self.hung.get_mut(&event) else { return Ok(()) };
        match self.session.change(hung, &request(format, chosen, filter)) {
            Err(error) if chosen.hook != Hook::Tracepoint => {
                // As when it is turned on. It goes to another hook; hits in between are not seen.
                self.unhang([event]);
                self.hang_at(event, format, &Chosen::tracepoint(format, error.to_string()), filter)
            }
            changed => changed,
        }
    }

    /// Turns events off, at once.
    pub(super) fn unhang(&mut self, events: impl IntoIterator<Item = u32>) {
        let mut resting = Vec::new();
        for event in events {
            if let Some(probes) = self.probes.remove(&event) {
                self.note_dropped(probes.slots().collect());
                self.take_off(probes);
                continue;
            }
            let Some((hung, _)) = self.hung.remove(&event) else { continue };
            let slot = hung.slot;
            resting.push((event, self.session.rest(hung)));
            for (cpu, gone) in (0..).zip(&mut self.gone) {
                *gone += self.session.counters(slot, cpu).dropped;
            }
        }
        self.rest.add(resting);
    }

    /// Forgets an event that is gone.
    pub(super) fn forget(&mut self, event: u32) {
        self.unhang([event]);
        // What rests would be taken for the event again.
        drop(self.rest.take(event));
    }

    /// Throws away what was recorded and not collected.
    pub(super) fn discard(&mut self) {
        for ring in &mut self.rings {
            ring.drain(|_| Seen::Taken);
        }
    }

    /// Remembers the losses of rows that others get.
    fn note_dropped(&mut self, slots: Vec<u32>) {
        for slot in slots {
            for (cpu, gone) in (0..).zip(&mut self.gone) {
                *gone += self.session.counters(slot, cpu).dropped;
            }
        }
    }

    /// A dynamic event's probes.
    pub(super) fn probes(&self, event: u32) -> Option<&HungProbes> {
        self.probes.get(&event)
    }

    pub(super) fn take_probes(&mut self, event: u32) -> Option<HungProbes> {
        self.probes.remove(&event)
    }

    pub(super) fn put_probes(&mut self, event: u32, probes: HungProbes) {
        self.probes.insert(event, probes);
    }

    /// Hits of a row of the counters, on all CPUs.
    pub(super) fn hits(&self, slot: u32) -> u64 {
        self.session.total(slot).hits
    }

    /// Hits for which the kernel ran no program.
    pub(super) fn missed(&self) -> u64 {
        self.session.missed(self.hung.values().map(|(hung, _)| hung))
    }

    /// Hits on a CPU that found the ring full since the last call.
    pub(super) fn newly_dropped(&mut self, cpu: u32) -> u64 {
        let slots = self.hung.values().map(|(hung, _)| hung.slot);
        let slots = slots.chain(self.probes.values().flat_map(HungProbes::slots));
        let dropped: u64 = slots.map(|slot| self.session.counters(slot, cpu).dropped).sum();
        let all = self.gone[cpu as usize] + dropped;
        let told = std::mem::replace(&mut self.told[cpu as usize], all);
        all.saturating_sub(told)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let all: Vec<u32> = self.hung.keys().chain(self.probes.keys()).copied().collect();
        self.unhang(all);
    }
}

/// What is asked of the session for an event.
fn request<'a>(format: &'a Format, chosen: &'a Chosen, filter: Option<&'a Filter>) -> Request<'a> {
    Request {
        format,
        hook: &chosen.hook,
        via: &chosen.via,
        filter,
        irqs_off: hooks::irqs_off(format),
        kind: format.id,
        threads: Threads::Traced,
        other: hooks::other(format, &chosen.hook),
    }
}

/// The number that a refusal of the kernel's is told with.
pub(super) fn errno(error: &AttachError) -> rustix::io::Errno {
    match error.cause() {
        Cause::Map(_, errno) | Cause::Hook(_, errno) | Cause::System(_, errno) => *errno,
        Cause::Load(_, error) => error.errno,
        Cause::TooMany(_) => rustix::io::Errno::NOMEM,
        _ => rustix::io::Errno::NOSYS,
    }
}
