//! Requests by ioctl(2), which register, unregister and delete user events.
//!
//! A separate process reads and writes the caller's memory, because such an access can block without a limit. A
//! request is answered at its deadline at the latest. No thread waits for it: each of its steps is a job of the
//! caller's payer.

use std::sync::{Arc, Weak};

use fuser::{Errno, ReplyIoctl};

use super::{errno::errno, hub::Hub, owner::When};
use crate::engine::{
    quota::Kind,
    user::{Access, Caller, Request},
};

pub(crate) fn serve(hub: &Arc<Hub>, caller: Caller, request: Request, reply: ReplyIoctl) {
    // As the kernel does when it has no memory for another registration.
    let Ok(charge) = hub.quotas.charge(caller.payer, Kind::PendingRequests, 1) else {
        return reply.error(Errno::ENOMEM);
    };
    // When the daemon ends, the queued job is dropped with its reply, which answers with an error.
    let (ours, payer): (Weak<Hub>, u32) = (Arc::downgrade(hub), caller.payer);
    let its = Weak::clone(&ours);
    let access: Access = Arc::new(move |act| {
        if let Some(hub) = its.upgrade() {
            hub.jobs.post(payer, "ioctl", When::Alone, move |tree| act(tree.engine()));
        }
    });
    let answer = move |done: Result<(), rustix::io::Errno>| {
        let Some(hub) = ours.upgrade() else { return };
        let its = Weak::clone(&ours);
        hub.jobs.post(payer, "answer", When::Alone, move |tree| {
            drop(charge);
            let Some(hub) = its.upgrade() else { return };
            hub.change(
                tree,
                |_| done,
                move |done| match done {
                    Ok(()) => reply.ioctl(0, &[]),
                    Err(error) => reply.error(errno(error)),
                },
            );
        });
    };
    caller.serve(request, &access, Box::new(answer));
}
