//! Enabling events of many functions at once through one link: kprobe.multi, or fexit.multi for returns whose events
//! have arguments. The gate (`dispatch_table.rs`) finds the event by the function's cookie.
//!
//! With one trampoline or probe per function, the kernel changes its text and waits for all CPUs each time, both when
//! it attaches and when it detaches. A function has one cookie per link, so events of the same function use different
//! links.

use std::{
    collections::HashSet,
    os::fd::OwnedFd,
    sync::{Arc, PoisonError, atomic::AtomicBool},
};

use super::lifecycle::{Attached, Dispatch};
use crate::{
    attach::{
        AttachPoint, Cause, Request, Session,
        hooks::{fentry, kprobe_multi},
        link::{FunctionsLink, Link, LinkedExits},
    },
    sys::{Errno, bpf::prog::Prog},
};

/// A kind of link to many functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// kprobe.multi, at entries or returns. Functions are addresses.
    Probe { exit: bool },
    /// fexit.multi. Functions are ids in the kernel's BTF.
    Exit,
}

/// Events of one link, each with its place in the caller's list.
struct Round {
    kind: Kind,
    functions: HashSet<u64>,
    members: Vec<(usize, Attached)>,
    /// Functions and cookies.
    cookies: Vec<(u64, u64)>,
}

/// If the kernel refuses a link, its functions are linked in smaller parts, of at least this many.
const FEW: usize = 8;

impl Round {
    /// The two parts to link instead of a round that the kernel refused; none if they are too small. The kernel refuses a
    /// link if a single function cannot be traced.
    fn halves(&mut self) -> Vec<Self> {
        let half = self.members.len() / 2;
        if half < FEW {
            return Vec::new();
        }
        let (members, cookies) = (self.members.split_off(half), self.cookies.split_off(half));
        let part = |members, cookies| Self { kind: self.kind, functions: HashSet::new(), members, cookies };
        let second = part(members, cookies);
        let (members, cookies) = (std::mem::take(&mut self.members), std::mem::take(&mut self.cookies));
        vec![second, part(members, cookies)]
    }

    fn link(&self, gate: &Prog) -> Result<OwnedFd, Errno> {
        let (functions, cookies): (Vec<u64>, Vec<u64>) = self.cookies.iter().copied().unzip();
        match self.kind {
            Kind::Probe { exit } => gate.link_functions(&functions, &cookies, exit),
            Kind::Exit => {
                let ids: Vec<u32> = functions.iter().filter_map(|id| u32::try_from(*id).ok()).collect();
                gate.link_exits(&ids, &cookies)
            }
        }
    }
}

/// Links to make, and the events of each.
pub struct FunctionLinks {
    count: usize,
    /// The gates to link.
    links: Vec<(Prog, Round)>,
    /// The functions whose exits are linked already.
    exits: LinkedExits,
}

/// Links that were made.
pub struct LinkedFunctions {
    count: usize,
    links: Vec<(Round, OwnedFd)>,
    exits: LinkedExits,
}

impl FunctionLinks {
    /// Makes the links, without the session. This takes long, because the kernel changes its text at each function.
    pub fn link(self) -> LinkedFunctions {
        let mut links = Vec::new();
        for (gate, round) in self.links {
            let mut left = vec![round];
            while let Some(mut round) = left.pop() {
                match round.link(&gate) {
                    Ok(link) => links.push((round, link)),
                    Err(errno) => {
                        tracing::debug!(
                            "{} functions through one link: {}",
                            round.members.len(),
                            refused(errno)
                        );
                        left.extend(round.halves());
                    }
                }
            }
        }
        LinkedFunctions { count: self.count, links, exits: self.exits }
    }
}

impl LinkedFunctions {
    /// The attached events, in the order of the requests. `None` for an event that the kernel refused; another hook
    /// may still accept it.
    pub fn finish(self) -> Vec<Option<Attached>> {
        let mut all: Vec<Option<Attached>> = (0..self.count).map(|_| None).collect();
        for (round, link) in self.links {
            let leases = round.members.iter().filter_map(|(_, attached)| attached.lease.clone()).collect();
            let functions = || round.cookies.iter().map(|(function, _)| *function).collect();
            let exits = (round.kind == Kind::Exit).then(|| (functions(), Arc::clone(&self.exits)));
            let link = Arc::new(FunctionsLink::new(link, exits, leases));
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
    /// Plans the links of events that are all [`AttachPoint::Shared`] or [`AttachPoint::SharedExit`], and makes their
    /// programs ahead.
    pub fn plan_functions(&mut self, requests: &[Request<'_>]) -> FunctionLinks {
        let exits = Arc::clone(&self.exits);
        let mut planned = FunctionLinks { count: requests.len(), links: Vec::new(), exits };
        // Those that are linked, and those planned so far.
        let mut taken = planned.exits.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (linkable, others): (Vec<_>, Vec<_>) =
            requests.iter().enumerate().partition(|(_, request)| match request.point {
                AttachPoint::Shared { .. } => kprobe_multi::is_there(),
                // A function's exit does not take the gate twice.
                AttachPoint::SharedExit(id) => fentry::has_exits() && taken.insert(u64::from(*id)),
                _ => false,
            });
        if linkable.is_empty() {
            return planned;
        }
        let built = self.bulk_builder().build(requests, &AtomicBool::new(false));
        self.take_built(built);
        for (_, other) in others {
            self.forget_built(other.kind);
        }
        let mut rounds: Vec<Round> = Vec::new();
        for (at, request) in linkable {
            let (kind, function) = match *request.point {
                AttachPoint::Shared { address, exit } => (Kind::Probe { exit }, address),
                AttachPoint::SharedExit(id) => (Kind::Exit, u64::from(id)),
                _ => continue,
            };
            let attached = match self.unlinked(request, Dispatch::Table) {
                Ok(attached) => attached,
                Err(error) => {
                    tracing::debug!("{error}: {}", error.verifier_log().unwrap_or_default());
                    continue;
                }
            };
            let Some(slot) = attached.slot() else { continue };
            let open =
                rounds.iter().position(|round| round.kind == kind && !round.functions.contains(&function));
            let open = open.unwrap_or_else(|| {
                let functions = HashSet::new();
                rounds.push(Round { kind, functions, members: Vec::new(), cookies: Vec::new() });
                rounds.len() - 1
            });
            if let Some(round) = rounds.get_mut(open) {
                round.functions.insert(function);
                round.cookies.push((function, request.cookie(slot)));
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
    Cause::Hook("link to many functions", errno)
}
