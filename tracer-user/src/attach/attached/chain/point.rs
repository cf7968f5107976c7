//! A tracepoint with its link and its consumers.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use super::{
    order::{self, Rank},
    sequence,
};
use crate::{
    attach::{
        Cause,
        attached::{
            dispatch_table::DispatchTable,
            entry::{Entry, OwnGate},
            gate_pair::GatePairs,
        },
        close::{
            guard::{self, HeldDescriptors, Unguarded},
            links::{close_links, close_unmeasured},
            perf_event::PerfEvent,
        },
        hooks::{
            call_pages::{self, CallPages},
            raw_tracepoint, tracepoint,
        },
        link::not_linked,
        slots::SlotLease,
    },
    event::Slot,
    sys::bpf::{
        prog::{Prog, ProgKind},
        quiesce::wait_for_programs,
    },
};

#[derive(Debug)]
pub(super) struct Point {
    kind: ProgKind,
    link: Option<PointLink>,
    /// The gate, or the first one of two, unless it is one that perf tracepoints share.
    gate: Option<OwnGate>,
    entry: Entry,
    consumers: Vec<Consumer>,
    /// Places of consumers that left, which the sequence at the entry still calls. They are empty.
    left: Vec<u32>,
    /// The program that entries without a consumer's program call.
    empty: Arc<Prog>,
    lease: Arc<SlotLease>,
}

#[derive(Debug)]
enum PointLink {
    // In the order of closing.
    Perf { id: u16, held: Option<HeldDescriptors>, link: OwnedFd, event: OwnedFd },
    Raw { second: Option<OwnedFd>, link: OwnedFd, pages: Option<Arc<OwnedFd>> },
}

#[derive(Debug)]
pub(super) struct Consumer {
    number: u64,
    rank: Rank,
    place: Entry,
    /// `None` while the consumer is parked.
    program: Option<Arc<Prog>>,
}

/// The link, gate and slot of a tracepoint whose last consumer left. They are dropped in this order, and the drop waits
/// for the guard and the kernel. Only for a link that [`LeftPoint::into_perf`] gives away the slot is free before it is
/// closed. [`close_together`] closes the links of many.
#[derive(Debug)]
pub(crate) struct LeftPoint {
    link: Option<PointLink>,
    _gate: Option<OwnGate>,
    lease: Option<Arc<SlotLease>>,
}

impl LeftPoint {
    /// The link and the perf event, which the caller closes in this order. `None` for a raw tracepoint, and if they
    /// are left to the guard.
    pub(crate) fn into_perf(mut self) -> Option<[OwnedFd; 2]> {
        match self.link.take() {
            Some(PointLink::Perf { held: Some(held), .. }) if held.is_left_with_link() => None,
            Some(PointLink::Perf { link, event, .. }) => Some([link, event]),
            _ => None,
        }
    }

    /// What the guard holds, if the link is part of it.
    fn held_link(&self) -> Option<&HeldDescriptors> {
        match &self.link {
            Some(PointLink::Perf { held: Some(held), .. }) => Some(held).filter(|held| held.has_link()),
            _ => None,
        }
    }

    /// Keeps the slot in use for ever, because the guard may still hold the link.
    fn keep_slot(&mut self) {
        std::mem::forget(self.lease.take());
    }
}

impl Drop for LeftPoint {
    fn drop(&mut self) {
        close_together(std::slice::from_mut(self));
    }
}

/// Closes the links of tracepoints, many at once, and waits until no program runs there. Then the slots can be free. A
/// thread closes the perf events later, which have no effect by then.
pub(crate) fn close_together(left: &mut [LeftPoint]) {
    let is_released = guard::release_links(left.iter().filter_map(LeftPoint::held_link));
    // A link is closed before its event, which can be used again from its drop on.
    let (mut perf_links, mut held_links, mut raw_links) = (Vec::new(), Vec::new(), Vec::new());
    for point in left {
        let is_free = is_released || point.held_link().is_none();
        match point.link.take() {
            Some(PointLink::Perf { id, held, link, event }) if is_free => {
                let event = PerfEvent::of_tracepoint(id, event, held.map(HeldDescriptors::without_link));
                perf_links.push((link, event));
            }
            Some(PointLink::Perf { link, event, .. }) => {
                point.keep_slot();
                held_links.push((link, PerfEvent::new(event)));
            }
            Some(PointLink::Raw { second, link, pages }) => raw_links.push((second, link, pages)),
            None => {}
        }
    }
    if perf_links.is_empty() && held_links.is_empty() && raw_links.is_empty() {
        return;
    }
    // Closing these takes the kernel less than a millisecond each.
    drop(raw_links);
    close_links(perf_links);
    // Usually the guard has the last reference, so that these closes do not wait.
    close_unmeasured(held_links);
    // Before Linux 6.13, closing a link does not wait for programs that run at the old hook.
    if let Err(errno) = wait_for_programs() {
        tracing::debug!("programs at closed hooks: {errno}");
    }
}

impl Consumer {
    pub(super) fn new(number: u64, rank: Rank, place: Entry) -> Self {
        Self { number, rank, place, program: None }
    }

    pub(super) fn place(&self) -> u32 {
        self.place.index()
    }
}

impl Point {
    /// A tracepoint with its first consumer, which is not linked yet.
    pub(super) fn new(
        table: &mut DispatchTable,
        lease: Arc<SlotLease>,
        first: Consumer,
    ) -> Result<Self, Cause> {
        Ok(Self {
            kind: table.kind(),
            link: None,
            gate: None,
            entry: table.entry(lease.slot()),
            consumers: vec![first],
            left: Vec::new(),
            empty: table.empty()?,
            lease,
        })
    }

    pub(super) fn lease(&self) -> &Arc<SlotLease> {
        &self.lease
    }

    pub(super) fn slot(&self) -> Slot {
        self.lease.slot()
    }

    pub(super) fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    pub(super) fn consumers(&self) -> usize {
        self.consumers.len()
    }

    /// Hits for which the kernel did not run the gate. 0 if the point shares its gate.
    pub(super) fn missed(&self) -> u64 {
        self.gate.as_ref().map_or(0, OwnGate::missed)
    }

    /// Adds a consumer. Gives it back if the kernel refuses the sequence; the point then stays as it was.
    pub(super) fn add(&mut self, consumer: Consumer, array: BorrowedFd<'_>) -> Result<(), (Cause, Consumer)> {
        let number = consumer.number;
        if self.is_parked(consumer.rank.session) {
            order::begin_anew(&mut self.consumers, consumer.rank.session, |other| other.rank);
        }
        let ranks: Vec<Rank> = self.consumers.iter().map(|other| other.rank).collect();
        let at = order::position(&ranks, consumer.rank);
        self.consumers.insert(at, consumer);
        self.arrange(array).map_err(|cause| {
            let at = self.consumers.iter().position(|other| other.number == number).unwrap_or(at);
            (cause, self.consumers.remove(at))
        })
    }

    /// Whether no consumer of a session has a program.
    fn is_parked(&self, session: u64) -> bool {
        self.consumers.iter().all(|consumer| consumer.rank.session != session || consumer.program.is_none())
    }

    /// Sets the target of the entry: the program of the only consumer, or a sequence.
    fn arrange(&mut self, array: BorrowedFd<'_>) -> Result<(), Cause> {
        let Self { entry, consumers, empty, .. } = self;
        if let [only] = &**consumers {
            return set_entry(entry, only.program.as_deref(), empty);
        }
        // A sequence at the entry already calls these programs at these places. Only new consumers' places change.
        for Consumer { place, program, .. } in consumers.iter_mut() {
            set_entry(place, program.as_deref(), empty)?;
        }
        let places: Vec<u32> = consumers.iter().map(Consumer::place).collect();
        entry.set(&sequence::load(self.kind, &places, array)?)
    }

    /// Sets or removes the program of a consumer.
    pub(super) fn set(
        &mut self,
        number: u64,
        program: Option<Arc<Prog>>,
        array: BorrowedFd<'_>,
    ) -> Result<(), Cause> {
        let consumer = self.consumers.iter().position(|consumer| consumer.number == number);
        let at = consumer.ok_or(Cause::Misplaced("a consumer that left"))?;
        let is_alone = self.consumers.len() == 1;
        let begins = !is_alone
            && program.is_some()
            && self.consumers.get(at).is_some_and(|one| self.is_parked(one.rank.session));
        let Self { consumers, entry, empty, .. } = self;
        let consumer = consumers.get_mut(at).ok_or(Cause::Misplaced("a consumer that left"))?;
        let place = if is_alone { entry } else { &mut consumer.place };
        set_entry(place, program.as_deref(), empty)?;
        consumer.program = program;
        let session = consumer.rank.session;
        if begins
            && order::begin_anew(&mut self.consumers, session, |other| other.rank)
            && let Err(cause) = self.arrange(array)
        {
            tracing::debug!("consumers keep their order: {cause}");
        }
        Ok(())
    }

    /// Links the gate to the perf tracepoint of an event id. `opened` is its perf event, if it is open already.
    pub(super) fn connect_perf(
        &mut self,
        id: u16,
        table: &mut DispatchTable,
        opened: Option<Result<PerfEvent, Cause>>,
        shares_gate: bool,
    ) -> Result<(), Cause> {
        let event = opened.unwrap_or_else(|| tracepoint::open(id))?;
        let fd = event.fd().map_err(tracepoint::not_opened)?;
        let cookie = tracer_abi::cookie(self.slot().get(), id);
        let link = if shares_gate {
            table.link_perf(cookie, fd)?
        } else {
            let gate = self.gate.insert(table.own_gate(self.lease.slot(), None)?);
            let link = gate.program().link_perf_event(fd, cookie);
            link.map_err(not_linked)?
        };
        // Without a link, a thread closes the event and waits for the guard.
        let (event, held) = event.take().map_err(tracepoint::not_opened)?;
        self.link = Some(PointLink::Perf { id, held, link, event });
        Ok(())
    }

    /// Links the gate to a raw tracepoint, or two gates with `pairs`. At the entries of system calls, `pages` is
    /// attached before.
    pub(super) fn connect_raw(
        &mut self,
        tracepoint: &str,
        table: &mut DispatchTable,
        pairs: Option<&GatePairs>,
        pages: Option<&CallPages>,
    ) -> Result<(), Cause> {
        let pages = pages.filter(|_| tracepoint == call_pages::TRACEPOINT).and_then(CallPages::attach);
        let gate = self.gate.insert(table.own_gate(self.lease.slot(), pairs)?);
        let Some(second) = gate.second() else {
            let link = raw_tracepoint::attach(gate.program(), tracepoint)?;
            self.link = Some(PointLink::Raw { second: None, link, pages });
            return Ok(());
        };
        // The second gate must run for each hit that the first one leaves to it. No program runs until both are linked.
        self.entry.replace_by(&self.empty);
        let link = raw_tracepoint::attach(gate.program(), tracepoint)?;
        let second = Some(raw_tracepoint::attach(second.program(), tracepoint)?);
        gate.begin();
        self.arrange(table.array())?;
        self.link = Some(PointLink::Raw { second, link, pages });
        Ok(())
    }

    /// Removes a consumer. Returns the places that are free now, and whether it was the last consumer.
    pub(super) fn remove(&mut self, number: u64, array: BorrowedFd<'_>) -> Option<(Vec<u32>, bool)> {
        let at = self.consumers.iter().position(|consumer| consumer.number == number)?;
        let mut consumer = self.consumers.remove(at);
        consumer.place.replace_by(&self.empty);
        self.left.push(consumer.place());
        if self.consumers.is_empty() {
            self.entry.replace_by(&self.empty);
            return Some((std::mem::take(&mut self.left), true));
        }
        // Parked consumers leave soon, too. Until then the sequence stays.
        if self.consumers.iter().all(|consumer| consumer.program.is_none()) {
            return Some((Vec::new(), false));
        }
        match self.arrange(array) {
            Ok(()) => Some((std::mem::take(&mut self.left), false)),
            // The old sequence stays, with empty places that nothing else uses.
            Err(cause) => {
                tracing::warn!("a place of a tracepoint stays empty: {cause}");
                Some((Vec::new(), false))
            }
        }
    }

    /// The descriptors of a perf tracepoint, for the guard.
    pub(super) fn unguarded(&mut self) -> Option<Unguarded<'_>> {
        match &mut self.link {
            Some(PointLink::Perf { link, event, held, .. }) => {
                Some(Unguarded { link: OwnedFd::as_fd(link), event: OwnedFd::as_fd(event), held })
            }
            _ => None,
        }
    }

    /// The link, gate and slot, for the caller to close.
    pub(super) fn into_left(self) -> LeftPoint {
        LeftPoint { link: self.link, _gate: self.gate, lease: Some(self.lease) }
    }
}

/// Sets the program at an entry, or the empty one.
fn set_entry(entry: &mut Entry, program: Option<&Prog>, empty: &Prog) -> Result<(), Cause> {
    if let Some(program) = program {
        return entry.set(program);
    }
    entry.replace_by(empty);
    Ok(())
}
