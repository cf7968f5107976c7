//! Perf events of tracepoints that a thread opens ahead.

use std::{
    collections::{HashMap, HashSet},
    sync::mpsc::{Receiver, channel},
};

use super::tracepoint;
use crate::attach::{Cause, close::perf_event::PerfEvent};

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
    pub(in crate::attach) fn is_due(&mut self, id: u16) -> bool {
        for (other, event) in self.coming.try_iter() {
            self.due.remove(&other);
            self.came.insert(other, event);
        }
        self.due.contains(&id)
    }

    /// Whether the perf event of an id is open or being opened.
    pub(in crate::attach) fn has(&self, id: u16) -> bool {
        self.due.contains(&id) || self.came.contains_key(&id)
    }

    /// Takes the perf event of an id, if this thread opens it; waits until it is open.
    pub(in crate::attach) fn take(&mut self, id: u16) -> Option<Result<PerfEvent, Cause>> {
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
