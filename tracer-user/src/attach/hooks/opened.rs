//! Perf events that are opened before a program is attached to them, because opening one can take long.

use std::{
    collections::{HashMap, HashSet},
    sync::mpsc::{Receiver, channel},
};

use super::tracepoint;
use crate::attach::{AttachPoint, Cause, close::perf_event::PerfEvent};

/// The perf events that were opened for the next attachments of a session.
#[derive(Debug, Default)]
pub struct OpenedEvents {
    ahead: Option<Ahead>,
    opened: Vec<(AttachPoint, Result<PerfEvent, Cause>)>,
}

impl OpenedEvents {
    /// Stores perf events that a thread opens, until [`Session::forget_ahead`](crate::attach::Session::forget_ahead).
    pub fn set_ahead(&mut self, ahead: Ahead) {
        self.ahead = Some(ahead);
    }

    /// Drops what [`OpenedEvents::set_ahead`] stored.
    pub(crate) fn forget_ahead(&mut self) {
        self.ahead = None;
    }

    /// Whether the next attachment at this perf tracepoint would wait for its perf event.
    pub fn is_being_opened(&mut self, id: u16) -> bool {
        self.ahead.as_mut().is_some_and(|ahead| ahead.is_due(id))
    }

    /// Stores a perf event that [`open_perf_event`](crate::attach::open_perf_event) opened. The next attachment at
    /// this attach point uses it.
    pub fn give(&mut self, point: AttachPoint, event: Result<PerfEvent, Cause>) {
        self.opened.push((point, event));
    }

    /// Drops the perf events that [`OpenedEvents::give`] stored and no attachment used.
    pub fn forget(&mut self) {
        self.opened.clear();
    }

    /// Whether the perf event of an attach point is open or being opened. True also if the attach point has none.
    pub fn has(&self, point: &AttachPoint) -> bool {
        match point {
            AttachPoint::Tracepoint(id) | AttachPoint::CallTracepoint(id)
                if self.ahead.as_ref().is_some_and(|ahead| ahead.has(*id)) =>
            {
                true
            }
            AttachPoint::Tracepoint(_)
            | AttachPoint::CallTracepoint(_)
            | AttachPoint::Kprobe(_)
            | AttachPoint::Kretprobe(_) => self.opened.iter().any(|(other, _)| other == point),
            _ => true,
        }
    }

    /// Takes the perf event of an attach point, if it is open or being opened.
    pub(crate) fn take(&mut self, point: &AttachPoint) -> Option<Result<PerfEvent, Cause>> {
        let ahead = match point {
            AttachPoint::Tracepoint(id) | AttachPoint::CallTracepoint(id) => {
                self.ahead.as_mut().and_then(|ahead| ahead.take(*id))
            }
            _ => None,
        };
        ahead.or_else(|| {
            let at = self.opened.iter().position(|(other, _)| other == point)?;
            Some(self.opened.swap_remove(at).1)
        })
    }
}

/// Perf events of tracepoints that a thread opens while the engine chooses hooks and makes programs. The thread mostly
/// waits for all CPUs to see the code change of each tracepoint, as the kernel's own tracefs does.
#[derive(Debug)]
pub struct Ahead {
    /// Ids whose events are not received yet.
    due: HashSet<u16>,
    coming: Receiver<(u16, Result<PerfEvent, Cause>)>,
    came: HashMap<u16, Result<PerfEvent, Cause>>,
}

impl Ahead {
    /// Opens the perf events of these ids, in this order.
    pub fn start(ids: Vec<u16>) -> Self {
        let due = ids.iter().copied().collect();
        let (give, coming) = channel();
        std::thread::spawn(move || ids.into_iter().try_for_each(|id| give.send((id, tracepoint::open(id)))));
        Self { due, coming, came: HashMap::new() }
    }

    /// Whether the perf event of an id is not opened yet.
    fn is_due(&mut self, id: u16) -> bool {
        for (other, event) in self.coming.try_iter() {
            self.due.remove(&other);
            self.came.insert(other, event);
        }
        self.due.contains(&id)
    }

    /// Whether the perf event of an id is open or being opened.
    fn has(&self, id: u16) -> bool {
        self.due.contains(&id) || self.came.contains_key(&id)
    }

    /// Takes the perf event of an id, if this thread opens it; waits until it is open.
    fn take(&mut self, id: u16) -> Option<Result<PerfEvent, Cause>> {
        if let Some(came) = self.came.remove(&id) {
            return Some(came);
        }
        if !self.due.contains(&id) {
            return None;
        }
        for (other, event) in &self.coming {
            self.due.remove(&other);
            if other == id {
                return Some(event);
            }
            self.came.insert(other, event);
        }
        None
    }
}
