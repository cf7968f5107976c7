//! Many functions' events turned on at once: through one kprobe.multi link behind the shared gate (`gate.rs`), which knows by the
//! function's cookie whose hit it is.
//!
//! A trampoline or a probe for each has the kernel change its text and wait for all CPUs each time; so has taking it off.
//! A function has one cookie in a link, so that events of the same function go to links of their own.

use std::{collections::HashSet, os::fd::OwnedFd};

use super::{
    AttachPoint, Attached, Cause, Request, Session,
    dispatch_table::{Member, Planned},
    kprobe_multi,
};
use crate::sys::Errno;

/// What goes through one link.
struct Round {
    exit: bool,
    addresses: HashSet<u64>,
    members: Vec<(usize, Member)>,
}

/// Links that are to be made, and whose events go through each.
pub struct Together {
    count: usize,
    rounds: Vec<(Vec<usize>, Planned)>,
}

/// Links that were made, or could not be.
pub struct Linked {
    count: usize,
    rounds: Vec<(Vec<usize>, Planned, Result<OwnedFd, Errno>)>,
}

impl Together {
    /// Makes the links. Nothing of the session is needed for that, and it takes as long as the kernel does.
    pub fn link(self) -> Linked {
        let link = |(places, planned): (Vec<usize>, Planned)| {
            let link = planned.link();
            (places, planned, link)
        };
        Linked { count: self.count, rounds: self.rounds.into_iter().map(link).collect() }
    }
}

impl Session {
    /// Plans how events hang that are all [`AttachPoint::Shared`], with the programs that [`Session::prepare`] made where it did.
    pub fn plan_shared(&mut self, requests: &[Request<'_>]) -> Together {
        let mut together = Together { count: requests.len(), rounds: Vec::new() };
        if !kprobe_multi::is_there() {
            return together;
        }
        self.prepare(requests);
        let mut rounds: Vec<Round> = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            let AttachPoint::Shared { address, exit } = *request.via else { continue };
            let Some(member) = self.member(request) else { continue };
            let open =
                rounds.iter_mut().find(|round| round.exit == exit && !round.addresses.contains(&address));
            if let Some(round) = open {
                round.addresses.insert(address);
                round.members.push((at, member));
            } else {
                rounds.push(Round { exit, addresses: HashSet::from([address]), members: vec![(at, member)] });
            }
        }
        for Round { exit, members, .. } in rounds {
            let (places, members): (Vec<usize>, Vec<Member>) = members.into_iter().unzip();
            let slots = members.iter().map(|member| member.slot).collect();
            match self.gate.plan_shared(members, exit) {
                Ok(planned) => together.rounds.push((places, planned)),
                Err(cause) => self.give_back_shared(slots, &cause),
            }
        }
        together
    }

    /// The events that hang, in the order of the requests. None for what the kernel does not take: it may yet take it by another
    /// hook.
    pub fn finish_shared(&mut self, linked: Linked) -> Vec<Option<Attached>> {
        let mut all: Vec<Option<Attached>> = (0..linked.count).map(|_| None).collect();
        for (places, planned, link) in linked.rounds {
            let slots = planned.slots();
            match self.gate.finish_shared(planned, link) {
                Ok(attached) => {
                    for (at, attached) in places.into_iter().zip(attached) {
                        if let Some(place) = all.get_mut(at) {
                            *place = Some(attached);
                        }
                    }
                }
                Err(cause) => self.give_back_shared(slots, &cause),
            }
        }
        all
    }

    fn give_back_shared(&mut self, slots: Vec<u32>, cause: &Cause) {
        tracing::debug!("{} functions through one link: {cause}", slots.len());
        for slot in slots {
            self.gate.give_back(slot);
        }
    }

    /// Slot and program of an event.
    fn member(&mut self, request: &Request<'_>) -> Option<Member> {
        let slot = self.take_slot().ok()?;
        self.shared.set_soft(slot, request.extras.begins_off);
        match self.behind_gate(request, slot) {
            Ok(behind) => Some(Member { slot, kind: request.kind, via: request.via.clone(), behind }),
            Err(error) => {
                tracing::debug!("{error}: {}", error.verifier_log().unwrap_or_default());
                self.gate.give_back(slot);
                None
            }
        }
    }
}
