//! Requests by ioctl(2): to register user events.
//!
//! Each is served by a thread of its own, as reading the caller's memory may take as long as somebody else pleases. Who takes
//! too long is refused, and what it asked for does not happen any more.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fuser::{Errno, ReplyIoctl};

use super::fuse::{Hub, errno};
use crate::control::instance::user::{Caller, Request};

/// Threads at most.
const MANY: usize = 128;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer that is to come, until it is given.
type Pending = Arc<Mutex<Option<ReplyIoctl>>>;

/// Requests that are being served.
#[derive(Default)]
pub(super) struct Asked {
    running: AtomicUsize,
    pending: Mutex<Vec<(Instant, Pending)>>,
}

fn take(pending: &Pending) -> Option<ReplyIoctl> {
    pending.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Asked {
    /// Refuses who took too long. Whether requests are left.
    pub(super) fn hurry(&self) -> bool {
        let mut all = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(since, pending)| {
            if since.elapsed() > PATIENCE
                && let Some(reply) = take(pending)
            {
                reply.error(Errno::EFAULT);
            }
            pending.lock().unwrap_or_else(PoisonError::into_inner).is_some()
        });
        !all.is_empty()
    }

    /// Whether requests are being served.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// Serves a request.
pub(super) fn serve(hub: &Arc<Hub>, caller: Caller, request: Request, reply: ReplyIoctl) {
    hub.asked.hurry();
    if hub.asked.running.fetch_add(1, Ordering::AcqRel) >= MANY {
        hub.asked.running.fetch_sub(1, Ordering::AcqRel);
        return reply.error(Errno::ENOMEM);
    }
    let pending: Pending = Arc::new(Mutex::new(Some(reply)));
    hub.asked
        .pending
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push((Instant::now(), Arc::clone(&pending)));
    // So that somebody looks at the time.
    hub.changed.notify_one();
    let (ours, its) = (Arc::clone(hub), Arc::clone(&pending));
    let started = std::thread::Builder::new().name("ioctl".to_owned()).spawn(move || {
        let with = |act: &mut dyn FnMut(&mut crate::control::instance::Mirror)| {
            // Held, so that nobody is refused whose request is done.
            let wanted = its.lock().unwrap_or_else(PoisonError::into_inner);
            if wanted.is_some() {
                act(ours.tree().mirror());
            }
            wanted.is_some()
        };
        let done = caller.serve(request, &with);
        let news = {
            let mut tree = ours.tree();
            let news = tree.mirror().user_news();
            ours.keep(&mut tree);
            news
        };
        ours.asked.running.fetch_sub(1, Ordering::AcqRel);
        let reply = take(&its);
        ours.tell(news, move || match (reply, done) {
            (Some(reply), Ok(())) => reply.ioctl(0, &[]),
            (Some(reply), Err(error)) => reply.error(errno(error)),
            (None, _) => {}
        });
        ours.changed.notify_one();
    });
    if let Err(error) = started {
        tracing::warn!("a request is refused: {error}");
        hub.asked.running.fetch_sub(1, Ordering::AcqRel);
        if let Some(reply) = take(&pending) {
            reply.error(Errno::ENOMEM);
        }
    }
}
