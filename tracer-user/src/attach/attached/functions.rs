//! Enabling events of many functions at once through one kprobe.multi link. The gate (`dispatch_table.rs`) finds the
//! event by the function's cookie.
//!
//! With one trampoline or probe per function, the kernel changes its text and waits for all CPUs each time, both when
//! it attaches and when it detaches. A function has one cookie per link, so events of the same function use different
//! links.

use std::{
    collections::HashSet,
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicBool},
};

use super::lifecycle::{Attached, Dispatch};
use crate::{
    attach::{
        AttachPoint, Cause, Request, Session,
        hooks::kprobe_multi,
        link::{FunctionsLink, Link},
    },
    sys::{Errno, bpf::prog::Prog},
};

/// Events of one link, each with its place in the caller's list.
#[derive(Default)]
struct Round {
    exit: bool,
    addresses: HashSet<u64>,
    members: Vec<(usize, Attached)>,
    cookies: Vec<(u64, u64)>,
}

/// Links to make, and the events of each.
pub struct FunctionLinks {
    count: usize,
    /// The gates to link.
    links: Vec<(Prog, Round)>,
}

/// Links that were made or failed.
pub struct LinkedFunctions {
    count: usize,
    links: Vec<(Round, Result<OwnedFd, Errno>)>,
}

impl FunctionLinks {
    /// Makes the links, without the session. This takes long, because the kernel changes its text at each function.
    pub fn link(self) -> LinkedFunctions {
        let links = self.links.into_iter().map(|(gate, round)| {
            let (addresses, cookies): (Vec<u64>, Vec<u64>) = round.cookies.iter().copied().unzip();
            let link = gate.link_functions(&addresses, &cookies, round.exit);
            (round, link)
        });
        LinkedFunctions { count: self.count, links: links.collect() }
    }
}

impl LinkedFunctions {
    /// The attached events, in the order of the requests. `None` for an event that the kernel refused; another hook
    /// may still accept it.
    pub fn finish(self) -> Vec<Option<Attached>> {
        let mut all: Vec<Option<Attached>> = (0..self.count).map(|_| None).collect();
        for (round, link) in self.links {
            let link = match link {
                Ok(link) => link,
                Err(errno) => {
                    let cause = Cause::Hook("kprobe.multi link (CONFIG_FPROBE)", errno);
                    tracing::debug!("{} functions through one link: {cause}", round.members.len());
                    continue;
                }
            };
            let leases = round.members.iter().filter_map(|(_, attached)| attached.lease.clone()).collect();
            let link = Arc::new(FunctionsLink { _link: link, _leases: leases });
            for (at, mut attached) in round.members {
                attached.link = Link::Functions { _link: Arc::clone(&link) };
                if let Some(place) = all.get_mut(at) {
                    *place = Some(attached);
                }
            }
        }
        all
    }
}

impl Session {
    /// Plans the links of events that are all [`AttachPoint::Shared`], and makes their programs ahead.
    pub fn plan_functions(&mut self, requests: &[Request<'_>]) -> FunctionLinks {
        let mut planned = FunctionLinks { count: requests.len(), links: Vec::new() };
        if !kprobe_multi::is_there() {
            return planned;
        }
        let built = self.bulk_builder().build(requests, &AtomicBool::new(false));
        self.take_built(built);
        let mut rounds: Vec<Round> = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            let AttachPoint::Shared { address, exit } = *request.point else { continue };
            let attached = match self.unlinked(request, Dispatch::Table) {
                Ok(attached) => attached,
                Err(error) => {
                    tracing::debug!("{error}: {}", error.verifier_log().unwrap_or_default());
                    continue;
                }
            };
            let Some(slot) = attached.slot() else { continue };
            let open =
                rounds.iter().position(|round| round.exit == exit && !round.addresses.contains(&address));
            let open = open.unwrap_or_else(|| {
                rounds.push(Round { exit, ..Round::default() });
                rounds.len() - 1
            });
            if let Some(round) = rounds.get_mut(open) {
                round.addresses.insert(address);
                round.cookies.push((address, request.cookie(slot)));
                round.members.push((at, attached));
            }
        }
        for round in rounds {
            let Some((_, first)) = round.members.first() else { continue };
            let gate =
                self.tables.table(&first.point).and_then(|table| table.gate()?.duplicate().map_err(refused));
            match gate {
                Ok(gate) => planned.links.push((gate, round)),
                Err(cause) => {
                    tracing::debug!("{} functions through one link: {cause}", round.members.len());
                }
            }
        }
        planned
    }
}

fn refused(errno: Errno) -> Cause {
    Cause::Hook("kprobe.multi link", errno)
}
