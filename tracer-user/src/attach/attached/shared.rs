//! Enabling events of many functions at once through one kprobe.multi link. The shared gate (`dispatch_table.rs`) finds
//! the event by the function's cookie.
//!
//! With one trampoline or probe per function, the kernel changes its text and waits for all CPUs each time, also on
//! detaching. A function has one cookie per link, so events of the same function use different links.

use std::{collections::HashSet, os::fd::OwnedFd};

use super::dispatch_table::{Member, Planned};
use crate::{
    attach::{AttachPoint, Attached, Cause, Request, Session, hooks::kprobe_multi},
    event::Slot,
    sys::Errno,
};

/// Members of one link.
struct Round {
    exit: bool,
    addresses: HashSet<u64>,
    members: Vec<(usize, Member)>,
}

/// Links that are to be made, and which events use each.
pub struct Together {
    count: usize,
    rounds: Vec<(Vec<usize>, Planned)>,
}

/// Links that were made or failed.
pub struct Linked {
    count: usize,
    rounds: Vec<(Vec<usize>, Planned, Result<OwnedFd, Errno>)>,
}

impl Together {
    /// Makes the links. This needs nothing of the session, and takes as long as the kernel does.
    pub fn link(self) -> Linked {
        let link = |(places, planned): (Vec<usize>, Planned)| {
            let link = planned.link();
            (places, planned, link)
        };
        Linked { count: self.count, rounds: self.rounds.into_iter().map(link).collect() }
    }
}

impl Session {
    /// Plans the links of events that are all [`AttachPoint::Shared`]. Uses the programs that [`Session::prepare`] made.
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

    /// The attached events, in the order of the requests. `None` for an event that the kernel refused; another hook may
    /// still accept it.
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

    fn give_back_shared(&mut self, slots: Vec<Slot>, cause: &Cause) {
        tracing::debug!("{} functions through one link: {cause}", slots.len());
        for slot in slots {
            self.gate.give_back(slot);
        }
    }

    /// Takes a slot and a program for an event.
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
