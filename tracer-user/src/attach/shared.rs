//! Many functions' events turned on at once: through one kprobe.multi link behind the shared gate (`gate.rs`), which knows by the
//! function's cookie whose hit it is.
//!
//! A trampoline or a probe for each has the kernel change its text and wait for all CPUs each time; so has taking it off.
//! A function has one cookie in a link, so that events of the same function go to links of their own.

use std::collections::HashSet;

use super::{Hung, Request, Session, Via, gate::Member, kprobe_multi};

/// What goes through one link.
struct Round {
    exit: bool,
    addresses: HashSet<u64>,
    members: Vec<(usize, Member)>,
}

impl Session {
    /// Hangs up events that are all [`Via::Shared`], with the programs that [`Session::prepare`] made where it did. None for what
    /// the kernel does not take: it may yet take it by another hook.
    pub fn hang_shared(&mut self, requests: &[Request<'_>]) -> Vec<Option<Hung>> {
        let mut all: Vec<Option<Hung>> = requests.iter().map(|_| None).collect();
        if !kprobe_multi::is_there() {
            return all;
        }
        self.prepare(requests);
        let mut rounds: Vec<Round> = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            let Via::Shared { address, exit } = *request.via else { continue };
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
            let slots: Vec<u32> = members.iter().map(|member| member.slot).collect();
            match self.gate.hang_shared(members, exit) {
                Ok(hung) => {
                    for (at, hung) in places.into_iter().zip(hung) {
                        if let Some(place) = all.get_mut(at) {
                            *place = Some(hung);
                        }
                    }
                }
                Err(cause) => {
                    tracing::debug!("{} functions through one link: {cause}", slots.len());
                    for slot in slots {
                        self.gate.give_back(slot);
                    }
                }
            }
        }
        all
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
