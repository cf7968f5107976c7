//! Requests by ioctl(2): to register user events.
//!
//! The caller's memory is read and written by a process of its own, as that may take as long as somebody else pleases. So a request
//! is answered later, at the latest at its deadline, and no thread waits for it: each of its steps is a job of its caller's uid.

use std::sync::{Arc, Weak};

use fuser::{Errno, ReplyIoctl};

use super::{errno::errno, hub::Hub, owner::When};
use crate::engine::{
    instance::user::{Access, Caller, Request},
    quota::Kind,
};

/// Serves a request.
pub(in crate::fs) fn serve(hub: &Arc<Hub>, caller: Caller, request: Request, reply: ReplyIoctl) {
    // As the kernel has it when there is no memory for one more.
    let Ok(charge) = hub.quotas.charge(caller.uid, Kind::PendingRequests, 1) else {
        return reply.error(Errno::ENOMEM);
    };
    // Whoever is served when the daemon ends gets an error by that: what is queued is dropped, and the reply with it.
    let (ours, uid): (Weak<Hub>, u32) = (Arc::downgrade(hub), caller.uid);
    let its = Weak::clone(&ours);
    let access: Access = Arc::new(move |act| {
        if let Some(hub) = its.upgrade() {
            hub.post(uid, "ioctl", When::Alone, move |view| act(view.mirror()));
        }
    });
    let answer = move |done: Result<(), rustix::io::Errno>| {
        let Some(hub) = ours.upgrade() else { return };
        let its = Weak::clone(&ours);
        hub.post(uid, "answer", When::Alone, move |view| {
            drop(charge);
            let Some(hub) = its.upgrade() else { return };
            let news = view.mirror().user_news();
            hub.keep_soon();
            hub.tell(news, move || match done {
                Ok(()) => reply.ioctl(0, &[]),
                Err(error) => reply.error(errno(error)),
            });
            hub.changed.notify_one();
        });
    };
    caller.serve(request, &access, Box::new(answer));
}
