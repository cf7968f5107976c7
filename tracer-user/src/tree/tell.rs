//! Telling programs what user events are on, before whoever changed it has the answer.
//!
//! Their memory and the page that they map are written by a thread that has neither the tree nor a FUSE request in hand: the
//! kernel may want a page of ours first, which another request asks for.

use std::sync::{
    Mutex, PoisonError, Weak,
    mpsc::{Sender, channel},
};

use fuser::INodeNo;

use super::fuse::Hub;
use crate::control::instance::user::{Hands, News};

/// What is to be told, and what is to be done then.
struct Job {
    news: News,
    /// The page that programs map, which holds text by now.
    stale: bool,
    then: Box<dyn FnOnce() + Send>,
}

/// The thread, once there was something to tell.
#[derive(Default)]
pub(super) struct Teller {
    jobs: Mutex<Option<Sender<Job>>>,
}

impl Teller {
    /// Tells, and then does something; at once where there is nothing to tell.
    pub(super) fn tell(&self, hub: &Weak<Hub>, news: News, then: impl FnOnce() + Send + 'static) {
        if news.is_empty() {
            return then();
        }
        self.send(hub, Job { news, stale: false, then: Box::new(then) });
    }

    /// Lets the kernel forget the page that programs map.
    pub(super) fn forget_page(&self, hub: &Weak<Hub>) {
        self.send(hub, Job { news: News::default(), stale: true, then: Box::new(|| {}) });
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
        let mut hands = Hands::default();
        for job in taken {
            if let Some(hub) = hub.upgrade() {
                hands.write(job.news.writes);
                if job.news.page || job.stale {
                    put_page(&hub, job.stale);
                }
            }
            (job.then)();
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
