//! The dispatch table: events that are attached, changed and detached while others run.
//!
//! A hook runs a small program, the gate, which tail-calls the program in a table at the event's slot. To change an event's
//! filter, the session exchanges that entry, one word: every hit runs either the old program or the new one, exactly once. To
//! turn an event off, it clears the entry. Closing the descriptors is slow and can happen later or never ([`Parked`]).
//!
//! Hooks that pass an attach cookie share one gate, which takes the slot from the cookie. The programs in the table take it
//! from there too, so events with the same code share one program. At a raw tracepoint each event has its own gate with a fixed
//! slot. A system call's entry or exit has its slot in a syscall dispatcher, which acts as the gate. Events of many functions
//! can share one link ([`AttachPoint::Shared`]), which stays until all of these events are off.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::swap_point::{self, SlotSource};
use crate::{
    attach::{
        AttachPoint, Cause,
        close::{
            guard::{self, Guard, Guarded, Kept},
            opening::close_links,
            perf_event::PerfEvent,
            unlink::FileHook,
        },
        hooks::{
            tracepoint,
            uprobe::{self, FilePlace, Hooks, Job},
        },
        program::builder::{Key, SharedProgram},
    },
    event::Slot,
    sys::{
        Errno,
        bpf::{
            map::Map,
            prog::{Prog, ProgKind, Purpose},
        },
    },
};

/// Largest number of programs on one trace event (`BPF_TRACE_MAX_PROGS`, kernel/trace/bpf_trace.c).
const COPIES: usize = 64;

/// Programs of one type, in one table.
#[derive(Debug)]
struct Table {
    kind: ProgKind,
    /// Whether its programs are loaded for kprobe.multi.
    multi: bool,
    map: Map,
    /// Copies of the gate that reads its attach cookie. A hook does not take the same program twice, and an event that
    /// was just turned off may still have it attached.
    gates: Vec<Prog>,
    shared: HashMap<Key, Weak<SharedProgram>>,
}

/// The tables, and the state that their events share.
#[derive(Debug)]
pub(in crate::attach) struct DispatchTable {
    places: u32,
    tables: Vec<Table>,
    common: Arc<Common>,
}

#[derive(Debug, Default)]
struct Common {
    /// Slots that were used before and are free again.
    free: Mutex<Vec<Slot>>,
    /// Hits missed by gates that are closed.
    missed: AtomicU64,
}

/// Holds a slot and frees it on drop.
#[derive(Debug)]
pub(in crate::attach) struct Held {
    slot: Slot,
    common: Arc<Common>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.common.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot);
    }
}

/// An event that is to be attached to a file. The job that makes its link holds the slot and frees it on drop.
#[derive(Debug)]
pub struct PlannedAttach {
    slot: Slot,
    via: AttachPoint,
    kind: u16,
    behind: Arc<SharedProgram>,
}

/// What keeps an event attached.
#[derive(Debug)]
enum AttachHandle {
    /// A link to a perf event, and the event.
    Perf { link: OwnedFd, event: OwnedFd, kept: Option<Kept> },
    /// The descriptors of a file's probe, which also hold the slot.
    File { _hook: FileHook },
    /// A raw tracepoint link, and the event's own gate.
    Raw { link: OwnedFd, gate: Prog },
    /// A slot in a syscall dispatcher, which the session manages.
    Call,
    /// A link to functions that many events share.
    Shared { _link: Arc<SharedLink> },
}

/// A link to functions of many events. Their slots stay taken until the link is closed, because hits can use them until then.
#[derive(Debug)]
struct SharedLink {
    link: Option<OwnedFd>,
    slots: Vec<Slot>,
    common: Arc<Common>,
}

impl Drop for SharedLink {
    fn drop(&mut self) {
        // The link closes first.
        drop(self.link.take());
        let mut free = self.common.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.append(&mut self.slots);
    }
}

/// An event that is to be attached to a function through a shared link.
pub(in crate::attach) struct Member {
    pub(in crate::attach) slot: Slot,
    pub(in crate::attach) kind: u16,
    pub(in crate::attach) via: AttachPoint,
    pub(in crate::attach) behind: Arc<SharedProgram>,
}

/// A shared link that is to be made.
pub(in crate::attach) struct Planned {
    gate: Prog,
    /// Addresses of functions, and the cookie of each.
    places: Vec<(u64, u64)>,
    exit: bool,
    members: Vec<Member>,
}

impl Planned {
    /// Makes the link. This takes long: the kernel changes its text at each function.
    pub(in crate::attach) fn link(&self) -> Result<OwnedFd, Errno> {
        let (addresses, cookies): (Vec<u64>, Vec<u64>) = self.places.iter().copied().unzip();
        self.gate.link_functions(&addresses, &cookies, self.exit)
    }

    pub(in crate::attach) fn slots(&self) -> Vec<Slot> {
        self.members.iter().map(|member| member.slot).collect()
    }
}

/// An event attached through the dispatch table. It stays attached while this lives; [`crate::attach::Session::rest`] turns it off.
#[derive(Debug)]
pub struct Attached {
    /// Row of the counters, and slot in the table.
    pub slot: Slot,
    /// The hook.
    pub(in crate::attach) via: AttachPoint,
    /// Keeps the program's memory; the table itself references the program.
    pub(in crate::attach) behind: Arc<SharedProgram>,
    hook: AttachHandle,
}

impl Guarded for Attached {
    fn unguarded(&self) -> Option<[BorrowedFd<'_>; 2]> {
        match &self.hook {
            AttachHandle::Perf { link, event, kept: None }
                if matches!(self.via, AttachPoint::Tracepoint(_)) =>
            {
                Some([link.as_fd(), event.as_fd()])
            }
            _ => None,
        }
    }

    fn set_kept(&mut self, by: Kept) {
        if let AttachHandle::Perf { kept, .. } = &mut self.hook {
            *kept = Some(by);
        }
    }
}

/// An event that is turned off and still attached, with an empty slot. [`crate::attach::Session::resume`] turns it on again.
/// Dropping it closes its descriptors, for which the kernel may wait for all CPUs, and frees its slot.
#[derive(Debug)]
pub struct Parked {
    via: AttachPoint,
    slot: Slot,
    /// `None` after [`Parked::end`].
    attached: Option<Attached>,
    common: Arc<Common>,
}

impl Parked {
    /// The hook.
    pub fn via(&self) -> &AttachPoint {
        &self.via
    }

    /// Row of the counters.
    pub(in crate::attach) fn slot(&self) -> Slot {
        self.slot
    }
}

impl Parked {
    /// Ends the event. For a perf tracepoint, returns the link and the event, which the caller closes in this order.
    pub(in crate::attach) fn take_apart(mut self) -> Option<[OwnedFd; 2]> {
        let tracepoint = matches!(self.via(), AttachPoint::Tracepoint(_));
        self.end().filter(|_| tracepoint)
    }

    fn end(&mut self) -> Option<[OwnedFd; 2]> {
        let Attached { slot, hook, .. } = self.attached.take()?;
        let left = match hook {
            AttachHandle::Perf { link, event, .. } => Some([link, event]),
            AttachHandle::Raw { link, gate } => {
                drop(link);
                self.common.missed.fetch_add(misses(&gate), Ordering::Relaxed);
                None
            }
            AttachHandle::Call => None,
            // The slot is freed with the link.
            AttachHandle::File { .. } | AttachHandle::Shared { .. } => return None,
        };
        self.common.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
        left
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        // The link closes first, because it refers to the event.
        drop(self.end());
    }
}

/// Detaches events: no program stays attached. Returns the perf events, which do nothing any more.
pub fn take_off(resting: impl IntoIterator<Item = Parked>) -> Vec<OwnedFd> {
    let (links, events): (Vec<OwnedFd>, Vec<OwnedFd>) =
        resting.into_iter().filter_map(Parked::take_apart).map(|[link, event]| (link, event)).unzip();
    close_links(links);
    events
}

/// Has the guard process hold the perf tracepoints among these too.
pub fn guard_events<'a>(guard: &Arc<Guard>, attached: impl Iterator<Item = &'a mut Attached>) {
    guard::guard(guard, attached);
}

fn misses(program: &Prog) -> u64 {
    program.info().map_or(0, |info| info.misses)
}

impl Table {
    fn is_for(&self, via: &AttachPoint) -> bool {
        self.kind == via.kind() && self.multi == is_shared(via)
    }

    fn put(&self, slot: Slot, behind: &SharedProgram) -> Result<(), Cause> {
        swap_point::put(&self.map, slot.get(), &behind.program)
    }

    fn load(&self, slot: SlotSource) -> Result<Prog, Cause> {
        let purpose = match self.kind {
            _ if self.multi => Purpose::Multi,
            // Of the hooks with this program type, only probes of files use this gate.
            ProgKind::Kprobe => uprobe::purpose(),
            _ => Purpose::Any,
        };
        Prog::load_for(self.kind, purpose, &swap_point::code(self.map.as_fd(), slot, |_| ()), "tracer_gate")
            .map_err(|error| Cause::Load(self.kind, error))
    }

    /// Loads the first gate if there is none.
    fn load_first(&mut self, slot: SlotSource) -> Result<(), Cause> {
        if self.gates.is_empty() {
            self.gates.push(self.load(slot)?);
        }
        Ok(())
    }

    /// Plans the gate's link at an instruction of a file.
    fn plan_file(&mut self, slot: Slot, kind: u16, place: &FilePlace) -> Result<uprobe::Planned, Cause> {
        self.load_first(SlotSource::Cookie)?;
        let gate = self.gates.first().ok_or(Cause::Misplaced("no gate"))?;
        uprobe::Planned::new(gate, place, false, tracer_abi::cookie(slot.get(), kind))
    }

    /// Attaches the gate to a perf event.
    fn attach_perf(&mut self, slot: Slot, kind: u16, event: OwnedFd) -> Result<AttachHandle, Cause> {
        let link = self.link_perf(slot, kind, event.as_fd())?;
        Ok(AttachHandle::Perf { link, event, kept: None })
    }

    /// Links the gate to a perf event; `kind` is the kind of the event's records.
    fn link_perf(&mut self, slot: Slot, kind: u16, event: BorrowedFd<'_>) -> Result<OwnedFd, Cause> {
        let refused = |errno| Cause::Hook("link to the perf event (5.15 and later)", errno);
        for tried in 0..=COPIES {
            if tried == self.gates.len() {
                self.gates.push(self.load(SlotSource::Cookie)?);
            }
            let Some(gate) = self.gates.get(tried) else { break };
            match gate.link_perf_event(event, tracer_abi::cookie(slot.get(), kind)) {
                Ok(link) => return Ok(link),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(refused(errno)),
            }
        }
        Err(refused(Errno::EXIST))
    }

    /// Attaches the event's own gate to a raw tracepoint.
    fn attach_raw(&self, slot: Slot, tracepoint: &str) -> Result<AttachHandle, Cause> {
        let gate = self.load(SlotSource::Fixed(slot.get()))?;
        let link =
            gate.attach_raw_tracepoint(tracepoint).map_err(|errno| Cause::Hook("raw tracepoint", errno))?;
        Ok(AttachHandle::Raw { link, gate })
    }
}

/// Whether an event uses a shared link.
fn is_shared(via: &AttachPoint) -> bool {
    matches!(via, AttachPoint::Shared { .. })
}

/// Whether an event uses a syscall dispatcher.
pub(in crate::attach) fn is_call(via: &AttachPoint) -> bool {
    via.call().is_some()
}

impl DispatchTable {
    /// No tables yet; each will have this many slots.
    pub(in crate::attach) fn new(places: u32) -> Self {
        Self { places, tables: Vec::new(), common: Arc::default() }
    }

    /// The table of a hook's programs, created on first use.
    fn table(&mut self, via: &AttachPoint) -> Result<&mut Table, Cause> {
        if !self.tables.iter().any(|table| table.is_for(via)) {
            let map = swap_point::table(self.places, "tracer_gate")?;
            let (kind, multi) = (via.kind(), is_shared(via));
            self.tables.push(Table { kind, multi, map, gates: Vec::new(), shared: HashMap::new() });
        }
        let made = self.tables.iter_mut().find(|table| table.is_for(via));
        made.ok_or(Cause::Misplaced("a table that was just made"))
    }

    fn known(&self, via: &AttachPoint) -> Option<&Table> {
        self.tables.iter().find(|table| table.is_for(via))
    }

    /// A slot that was used before and is free again.
    pub(in crate::attach) fn free_slot(&self) -> Option<Slot> {
        self.common.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Gives a slot back when the returned value is dropped.
    pub(in crate::attach) fn held(&self, slot: Slot) -> Held {
        Held { slot, common: Arc::clone(&self.common) }
    }

    /// Frees a slot that no event is attached at.
    pub(in crate::attach) fn give_back(&self, slot: Slot) {
        self.common.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }

    /// The program of a key, if an event uses it.
    pub(in crate::attach) fn find(&self, via: &AttachPoint, key: &Key) -> Option<Arc<SharedProgram>> {
        self.known(via)?.shared.get(key).and_then(Weak::upgrade)
    }

    /// All programs in use, by type and key.
    pub(in crate::attach) fn all_known(&self) -> HashMap<(u32, Key), Arc<SharedProgram>> {
        let known = self.tables.iter().flat_map(|table| {
            let programs = table.shared.iter();
            programs.filter_map(|(key, behind)| Some(((table.kind as u32, key.clone()), behind.upgrade()?)))
        });
        known.collect()
    }

    /// Remembers the program of a key while an event uses it.
    pub(in crate::attach) fn remember(
        &mut self,
        via: &AttachPoint,
        key: Key,
        behind: &Arc<SharedProgram>,
    ) -> Result<(), Cause> {
        let shared = &mut self.table(via)?.shared;
        shared.retain(|_, known| known.strong_count() > 0);
        shared.insert(key, Arc::downgrade(behind));
        Ok(())
    }

    /// Sets the program of a slot, in place of the old one.
    pub(in crate::attach) fn put(
        &self,
        via: &AttachPoint,
        slot: Slot,
        behind: &SharedProgram,
    ) -> Result<(), Cause> {
        self.known(via).ok_or(Cause::Misplaced("nothing hangs at such a hook"))?.put(slot, behind)
    }

    /// Attaches a gate to an event's hook, for records of this kind. `opened` is its perf event, if it is already open.
    /// A system call needs no gate.
    pub(in crate::attach) fn attach_hook(
        &mut self,
        slot: Slot,
        via: &AttachPoint,
        kind: u16,
        behind: Arc<SharedProgram>,
        opened: Option<Result<PerfEvent, Cause>>,
    ) -> Result<Attached, Cause> {
        let common = Arc::clone(&self.common);
        let hook = if is_call(via) {
            AttachHandle::Call
        } else {
            let table = self.table(via)?;
            table.put(slot, &behind)?;
            match via {
                AttachPoint::Tracepoint(id) => {
                    let event = opened.unwrap_or_else(|| tracepoint::open(*id))?;
                    let event = event.take().map_err(tracepoint::not_opened)?;
                    table.attach_perf(slot, kind, event)?
                }
                AttachPoint::Uprobe(place) => {
                    let hook = table.plan_file(slot, kind, place)?.make()?;
                    let hook = hook.linked(|event| table.link_perf(slot, kind, event))?;
                    AttachHandle::File { _hook: hook.keep(Held { slot, common }) }
                }
                AttachPoint::RawTracepoint(name) => table.attach_raw(slot, name)?,
                _ => return Err(Cause::Misplaced("no gate is for such a hook")),
            }
        };
        Ok(Attached { slot, via: via.clone(), behind, hook })
    }

    /// Puts an event of a file into the table and plans its link. If this fails, the caller still owns the slot.
    pub(in crate::attach) fn plan_file(
        &mut self,
        slot: Slot,
        via: &AttachPoint,
        kind: u16,
        behind: Arc<SharedProgram>,
    ) -> Result<(PlannedAttach, Job), Cause> {
        let AttachPoint::Uprobe(place) = via else {
            return Err(Cause::Misplaced("a link of a file is for files"));
        };
        let common = Arc::clone(&self.common);
        let table = self.table(via)?;
        let planned = table.plan_file(slot, kind, place)?;
        table.put(slot, &behind)?;
        let job = Job::new(vec![planned]).keep(Held { slot, common });
        Ok((PlannedAttach { slot, via: via.clone(), kind, behind }, job))
    }

    /// Completes an event of a file with its link, or clears its slot if the link failed.
    pub(in crate::attach) fn finish_file(
        &mut self,
        planned: PlannedAttach,
        made: Hooks,
    ) -> Result<Attached, Cause> {
        let PlannedAttach { slot, via, kind, behind } = planned;
        let table = self.table(&via)?;
        let hook = made.and_then(|made| {
            let hook = made.into_iter().next().ok_or(Cause::Misplaced("no link"))?;
            hook.linked(|event| table.link_perf(slot, kind, event))
        });
        match hook {
            Ok(hook) => Ok(Attached { slot, via, behind, hook: AttachHandle::File { _hook: hook } }),
            Err(cause) => {
                swap_point::clear(&table.map, slot.get());
                Err(cause)
            }
        }
    }

    /// Puts events into the table and plans their shared link. All are entries or all are returns, and no two are of
    /// the same function. If this fails, the caller still owns the slots.
    pub(in crate::attach) fn plan_shared(
        &mut self,
        members: Vec<Member>,
        exit: bool,
    ) -> Result<Planned, Cause> {
        let first = members.first().ok_or(Cause::Misplaced("a link of no functions"))?;
        let table = self.table(&first.via)?;
        table.load_first(SlotSource::CookieOfMany)?;
        let at = |member: &Member| match member.via {
            AttachPoint::Shared { address, .. } => {
                Ok((address, tracer_abi::cookie(member.slot.get(), member.kind)))
            }
            _ => Err(Cause::Misplaced("a link of functions is for functions only")),
        };
        let places = members.iter().map(at).collect::<Result<Vec<_>, _>>()?;
        let gate = table.gates.first().ok_or(Cause::Misplaced("no gate"))?;
        let gate = gate.duplicate().map_err(|errno| Cause::Hook("kprobe.multi link", errno))?;
        let put = members.iter().try_for_each(|member| table.put(member.slot, &member.behind));
        if put.is_err() {
            for member in &members {
                swap_point::clear(&table.map, member.slot.get());
            }
        }
        put?;
        Ok(Planned { gate, places, exit, members })
    }

    /// Completes the events with their shared link. If the link failed, clears their slots, which the caller owns again.
    pub(in crate::attach) fn finish_shared(
        &mut self,
        planned: Planned,
        link: Result<OwnedFd, Errno>,
    ) -> Result<Vec<Attached>, Cause> {
        let members = planned.members;
        let link = match link {
            Ok(link) => link,
            Err(errno) => {
                if let Some(table) = members.first().and_then(|first| self.known(&first.via)) {
                    for member in &members {
                        swap_point::clear(&table.map, member.slot.get());
                    }
                }
                return Err(Cause::Hook("kprobe.multi link (CONFIG_FPROBE)", errno));
            }
        };
        let slots = members.iter().map(|member| member.slot).collect();
        let link = Arc::new(SharedLink { link: Some(link), slots, common: Arc::clone(&self.common) });
        let attached = members.into_iter().map(|Member { slot, via, behind, .. }| {
            let hook = AttachHandle::Shared { _link: Arc::clone(&link) };
            Attached { slot, via, behind, hook }
        });
        Ok(attached.collect())
    }

    /// Clears an event's slot: no program runs at its hits from here on.
    pub(in crate::attach) fn rest(&self, attached: Attached) -> Parked {
        if let (false, Some(table)) = (is_call(&attached.via), self.known(&attached.via)) {
            swap_point::clear(&table.map, attached.slot.get());
        }
        Parked {
            via: attached.via.clone(),
            slot: attached.slot,
            attached: Some(attached),
            common: Arc::clone(&self.common),
        }
    }

    /// Sets an event's program again.
    pub(in crate::attach) fn resume(
        &self,
        mut resting: Parked,
        behind: Arc<SharedProgram>,
    ) -> Result<Attached, Cause> {
        let mut attached = resting.attached.take().ok_or(Cause::Misplaced("what was ended cannot go on"))?;
        if !is_call(&attached.via)
            && let Err(cause) = self.put(&attached.via, attached.slot, &behind)
        {
            resting.attached = Some(attached);
            return Err(cause);
        }
        attached.behind = behind;
        Ok(attached)
    }

    /// Hits for which the kernel did not run a gate; `attached` are the events that are on.
    pub(in crate::attach) fn missed<'a>(&self, attached: impl Iterator<Item = &'a Attached>) -> u64 {
        let shared = self.tables.iter().flat_map(|table| &table.gates).map(misses).sum::<u64>();
        let own = attached.map(|attached| match &attached.hook {
            AttachHandle::Raw { gate, .. } => misses(gate),
            AttachHandle::Perf { .. }
            | AttachHandle::File { .. }
            | AttachHandle::Call
            | AttachHandle::Shared { .. } => 0,
        });
        shared + own.sum::<u64>() + self.common.missed.load(Ordering::Relaxed)
    }
}
