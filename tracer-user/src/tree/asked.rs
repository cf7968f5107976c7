//! Requests by ioctl(2): to register user events.
//!
//! The caller's memory is read and written by a process of its own, as that may take as long as somebody else pleases. So a request
//! is answered later, at the latest at its deadline, and no thread waits for it. One thread begins them all, as that takes the tree.

use std::sync::{
    Arc, OnceLock, Weak,
    mpsc::{Sender, channel},
};

use fuser::{Errno, ReplyIoctl};

use super::{fuse::errno, hub::Hub};
use crate::control::{
    instance::user::{Access, Caller, Request},
    quota::Kind,
};

type Begin = Box<dyn FnOnce() + Send>;

/// The thread that begins requests, once there was one.
#[derive(Default)]
pub(super) struct Asking {
    requests: OnceLock<Option<Sender<Begin>>>,
}

impl Asking {
    fn send(&self, begin: Begin) {
        let start = || {
            let (requests, taken) = channel::<Begin>();
            let run = move || taken.into_iter().for_each(|begin| begin());
            let started = std::thread::Builder::new().name("ioctl".to_owned()).spawn(run);
            started
                .map_err(|error| tracing::warn!("programs' requests are refused: {error}"))
                .ok()
                .map(|_| requests)
        };
        if let Some(requests) = self.requests.get_or_init(start) {
            let _ = requests.send(begin);
        }
    }
}

/// Serves a request.
pub(super) fn serve(hub: &Arc<Hub>, caller: Caller, request: Request, reply: ReplyIoctl) {
    // As the kernel has it when there is no memory for one more.
    let Ok(charge) = hub.quotas.charge(caller.uid, Kind::PendingRequests, 1) else {
        return reply.error(Errno::ENOMEM);
    };
    // Whoever is served when the daemon ends gets an error by that.
    let ours: Weak<Hub> = Arc::downgrade(hub);
    let access: Access = Arc::new(move |act| {
        if let Some(hub) = ours.upgrade() {
            act(hub.tree().mirror());
        }
    });
    let ours = Arc::downgrade(hub);
    let answer = move |done: Result<(), rustix::io::Errno>| {
        drop(charge);
        let Some(hub) = ours.upgrade() else { return reply.error(Errno::EIO) };
        let news = hub.tree().mirror().user_news();
        hub.keep_soon();
        hub.tell(news, move || match done {
            Ok(()) => reply.ioctl(0, &[]),
            Err(error) => reply.error(errno(error)),
        });
        hub.changed.notify_one();
    };
    // Where no thread begins it, the reply is dropped, and that answers it.
    hub.asking.send(Box::new(move || caller.serve(request, access, Box::new(answer))));
}
