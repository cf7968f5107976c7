//! A thread that reads facts of the kernel for requests, so that the owner of the tree does not wait for them.
//!
//! The kernel holds `event_mutex` for tens of milliseconds while it closes a perf tracepoint. Reading a format waits
//! for that lock. Reading symbols and types takes as long. A request that needs such a fact is postponed: it is
//! queued again when the thread has read the fact.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::owner::{LaneKind, Turns};
use crate::fs::{
    threads::{lock, spawn},
    tree::lookup::{Lookup, Text},
};

type Question = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    questions: Turns<Question>,
    has_thread: bool,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wakes: Condvar,
}

impl Shared {
    fn next(&self) -> Option<Question> {
        let mut state = lock(&self.state);
        while !state.ended {
            if let Some(question) = state.questions.take(|_| true) {
                return Some(question);
            }
            state = self.wakes.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

/// The queue of the thread, in which payers take turns. The thread ends when this value is dropped.
#[derive(Default)]
pub(crate) struct Lookups(Arc<Shared>);

impl Lookups {
    /// Queues a lookup for a payer. The thread calls `then` afterwards.
    pub(crate) fn queue(&self, payer: u32, lookup: Lookup, then: impl FnOnce(Text) + Send + 'static) {
        let mut state = lock(&self.0.state);
        state.questions.push((payer, LaneKind::Others), Box::new(move || then(lookup.run())));
        if state.has_thread {
            drop(state);
            return self.0.wakes.notify_one();
        }
        let shared = Arc::clone(&self.0);
        let work = move || {
            while let Some(question) = shared.next() {
                question();
            }
        };
        match spawn("lookups", work) {
            Ok(_) => state.has_thread = true,
            Err(error) => {
                tracing::warn!("cannot start a thread: {error}");
                let question = state.questions.take(|_| true);
                drop(state);
                if let Some(question) = question {
                    question();
                }
            }
        }
    }
}

impl Drop for Lookups {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
        self.0.wakes.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::{
        engine::{facts::Facts, registry::Events},
        kernel::Tracefs,
    };

    #[test]
    fn facts_are_stored_and_read_in_order() {
        let dir = std::env::temp_dir().join(format!("tracer-lookups-{}", std::process::id()));
        let event = dir.join("events/sched/sched_switch");
        std::fs::create_dir_all(&event).unwrap();
        std::fs::write(dir.join("available_events"), "sched:sched_switch\n").unwrap();
        std::fs::write(event.join("format"), "name: sched_switch\nID: 300\nformat:\n\nprint fmt: \"\"\n")
            .unwrap();
        let facts = Arc::new(Facts::frozen(Tracefs::frozen(&dir).unwrap(), 1, (6, 12)));
        let events = Arc::new(Events::read(&facts).unwrap());
        let event = events.find(events.find_system("sched").unwrap(), "sched_switch").unwrap();
        assert!(events.known_format(event).is_none());
        let lookups = Lookups::default();
        let (sender, receiver) = channel();
        let files = [None, Some("available_events".to_owned())];
        for (number, file) in files.into_iter().enumerate() {
            let sender = sender.clone();
            let (facts, events) = (Arc::clone(&facts), Arc::clone(&events));
            let lookup = Lookup { facts, events, format: Some(event), file, prints: true };
            let done = move |text: Text| {
                let thread = std::thread::current().name().map(str::to_owned);
                sender.send((number, thread, text.map(|text| text.unwrap().unwrap()))).unwrap();
            };
            lookups.queue(7, lookup, done);
        }
        let received: Vec<_> = receiver.iter().take(2).collect();
        let thread = Some("lookups".to_owned());
        assert_eq!(
            received,
            [(0, thread.clone(), None), (1, thread, Some("sched:sched_switch\n".to_owned()))]
        );
        assert_eq!(events.known_format(event).unwrap().id, 300);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
