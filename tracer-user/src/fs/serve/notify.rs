//! Telling programs what user events are on, before whoever changed it has the answer.
//!
//! Bits in their memory are written by a process of its own, until a deadline. The page that they map is written by a thread that has
//! neither the tree nor a FUSE request in hand: the kernel may want a page of ours first, which another request asks for.

use std::sync::{
    Mutex, PoisonError, Weak,
    mpsc::{Sender, channel},
};

use fuser::INodeNo;

use super::hub::Hub;
use crate::engine::instance::user::PendingUpdates;

type Then = Box<dyn FnOnce() + Send>;

/// The page is to be put, or forgotten where it holds text by now, and something done then.
struct Job {
    stale: bool,
    then: Then,
}

/// The thread, once there was something to tell.
#[derive(Default)]
pub(in crate::fs) struct Teller {
    jobs: Mutex<Option<Sender<Job>>>,
}

impl Teller {
    /// Tells, and then does something; at once where there is nothing to tell.
    pub(in crate::fs) fn tell(
        &self,
        hub: &Weak<Hub>,
        news: PendingUpdates,
        then: impl FnOnce() + Send + 'static,
    ) {
        let PendingUpdates { ticket, page } = news;
        let then: Then = match ticket {
            Some(ticket) => Box::new(move || ticket.then(then)),
            None => Box::new(then),
        };
        // The page first: by the time that it is there, so are the bits, mostly.
        if page { self.send(hub, Job { stale: false, then }) } else { then() }
    }

    /// Lets the kernel forget the page that programs map.
    pub(in crate::fs) fn forget_page(&self, hub: &Weak<Hub>) {
        self.send(hub, Job { stale: true, then: Box::new(|| {}) });
    }

    fn send(&self, hub: &Weak<Hub>, job: Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.is_none() {
            *jobs = start(hub.clone());
        }
        let unsent = match &*jobs {
            Some(jobs) => jobs.send(job).err().map(|error| error.0),
            None => Some(job),
        };
        drop(jobs);
        if let Some(job) = unsent {
            (job.then)();
        }
    }
}

fn start(hub: Weak<Hub>) -> Option<Sender<Job>> {
    let (jobs, taken) = channel::<Job>();
    let run = move || {
        while let Ok(first) = taken.recv() {
            // One page is all of theirs: nobody waits behind many others.
            let jobs: Vec<Job> = std::iter::once(first).chain(taken.try_iter()).collect();
            if let Some(hub) = hub.upgrade() {
                if jobs.iter().any(|job| job.stale) {
                    put_page(&hub, true);
                }
                if jobs.iter().any(|job| !job.stale) {
                    put_page(&hub, false);
                }
            }
            for job in jobs {
                (job.then)();
            }
        }
    };
    let started = std::thread::Builder::new().name("tell".to_owned()).spawn(run);
    started.map_err(|error| tracing::warn!("programs are not told of events: {error}")).ok().map(|_| jobs)
}

/// Puts the page where mappings that exist see it: into the kernel's page cache.
fn put_page(hub: &Hub, stale: bool) {
    let (ino, page) = {
        let mut tree = hub.tree();
        let Ok(ino) = tree.find("user_events_status") else { return };
        (INodeNo(ino), tree.mirror().user_page().to_vec())
    };
    let Some(notifier) = hub.notifier.get() else { return };
    let done = if stale { notifier.inval_inode(ino, 0, -1) } else { notifier.store(ino, 0, &page) };
    if let Err(error) = done {
        // Nobody knows the file yet.
        tracing::debug!("no status page: {error}");
    }
}
