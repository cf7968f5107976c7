//! Events that come, go and change while others run: programs behind a gate.
//!
//! What hangs on a perf tracepoint is one tiny program for all events, the gate: it jumps to the program that stands in
//! a table at the event's slot, which its attach cookie tells. To change an event's filter is to exchange that entry,
//! one word: every hit runs either the old program or the new one, never both and never neither. To turn an event off
//! is to clear it; the slow part, closing the descriptors behind it, can wait or be spared ([`Resting`]).
//!
//! A program behind the gate takes slot and kind from the cookie as well, so that events with the same code share one.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::Cause;
use crate::sys::{
    Errno,
    map::{Map, MapKind, MapSpec},
    perf,
    prog::{Prog, ProgKind},
};

/// Helpers: `bpf_tail_call` and `bpf_get_attach_cookie`, include/uapi/linux/bpf.h.
const TAIL_CALL: i32 = 12;
const ATTACH_COOKIE: i32 = 174;

/// Programs that an event takes at most (`BPF_TRACE_MAX_PROGS`, kernel/trace/bpf_trace.c).
const COPIES: usize = 64;

/// What tells programs apart: the generated code and the parameters.
pub(super) type Key = Vec<u8>;

/// The gate and what stands behind it.
#[derive(Debug)]
pub(super) struct Gate {
    table: Map,
    /// The gate, as often as it had to be loaded: an event takes no program twice, and one that was turned off a moment
    /// ago may still have it.
    programs: Vec<Prog>,
    shared: HashMap<Key, Weak<Prog>>,
    free: Arc<Mutex<Vec<u32>>>,
}

/// An event behind the gate. It hangs on its hook as long as this lives; [`super::Session::rest`] turns it
/// off.
#[derive(Debug)]
pub struct Hung {
    /// Row of the counters, and place in the table.
    pub slot: u32,
    /// The event's id.
    pub(super) id: u16,
    /// Kept for its counts; the table holds it by itself.
    pub(super) program: Arc<Prog>,
    hook: (OwnedFd, OwnedFd),
}

/// An event that was turned off and still hangs on its hook, behind which there is nothing: [`super::Session::resume`]
/// turns it on again. To drop it closes its descriptors, for which the kernel waits for all CPUs, and sets its slot free.
#[derive(Debug)]
pub struct Resting {
    hung: Option<Hung>,
    free: Arc<Mutex<Vec<u32>>>,
}

impl Drop for Resting {
    fn drop(&mut self) {
        if let Some(Hung { slot, hook: (link, event), .. }) = self.hung.take() {
            // The link first: it refers to the event.
            drop(link);
            drop(event);
            self.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
        }
    }
}

impl Gate {
    /// Makes the table, with so many places.
    pub(super) fn new(places: u32) -> Result<Self, Cause> {
        let table = Map::create(&MapSpec {
            kind: MapKind::ProgArray,
            key_size: 4,
            value_size: 4,
            max_entries: places,
            flags: 0,
            inner: None,
            name: "tracer_gate",
        })
        .map_err(|errno| Cause::Map("program array", errno))?;
        Ok(Self { table, programs: Vec::new(), shared: HashMap::new(), free: Arc::default() })
    }

    /// A slot that was used before and is free again.
    pub(super) fn free_slot(&self) -> Option<u32> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// The program of a key, when an event has it.
    pub(super) fn find(&self, key: &Key) -> Option<Arc<Prog>> {
        self.shared.get(key).and_then(Weak::upgrade)
    }

    /// Remembers the program of a key as long as an event has it.
    pub(super) fn remember(&mut self, key: Key, program: &Arc<Prog>) {
        self.shared.retain(|_, known| known.strong_count() > 0);
        self.shared.insert(key, Arc::downgrade(program));
    }

    /// Puts a program behind the gate at a slot, in place of what is there.
    pub(super) fn put(&self, slot: u32, program: &Prog) -> Result<(), Cause> {
        self.table
            .set_fd(slot, program.as_fd())
            .map_err(|errno| Cause::System("entry in the table of programs", errno))
    }

    /// Hangs the gate on an event.
    pub(super) fn hang(&mut self, slot: u32, id: u16, program: Arc<Prog>) -> Result<Hung, Cause> {
        let event = perf::open_tracepoint(id, 0)
            .map_err(|errno| Cause::Hook("perf event of the tracepoint", errno))?;
        self.put(slot, &program)?;
        let refused = |errno| Cause::Hook("link to the perf event (5.15 and later)", errno);
        for tried in 0.. {
            if tried == self.programs.len() {
                self.programs.push(self.load()?);
            }
            match self.programs[tried].link_perf_event(event.as_fd(), tracer_abi::cookie(slot, id)) {
                Ok(link) => return Ok(Hung { slot, id, program, hook: (link, event) }),
                Err(Errno::EXIST) if tried < COPIES => {}
                Err(errno) => return Err(refused(errno)),
            }
        }
        Err(refused(Errno::EXIST))
    }

    fn load(&self) -> Result<Prog, Cause> {
        Prog::load(ProgKind::Tracepoint, &code(self.table.as_fd().as_raw_fd()), "tracer_gate")
            .map_err(|error| Cause::Load(ProgKind::Tracepoint, error))
    }

    /// Takes an event's program away: no hit is seen from here on.
    pub(super) fn rest(&self, hung: Hung) -> Resting {
        // The entry is there; were it not, there would be nothing to stop.
        let _ = self.table.delete(&hung.slot.to_ne_bytes());
        Resting { hung: Some(hung), free: Arc::clone(&self.free) }
    }

    /// Gives an event a program again.
    pub(super) fn resume(&self, mut resting: Resting, program: Arc<Prog>) -> Result<Hung, Cause> {
        let slot = resting.hung.as_ref().map_or(u32::MAX, |hung| hung.slot);
        self.put(slot, &program)?;
        let mut hung = resting.hung.take().expect("taken only here and when it is dropped");
        hung.program = program;
        Ok(hung)
    }

    /// Gives a slot back that nothing was hung at.
    pub(super) fn give_back(&self, slot: u32) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }

    /// Hits at perf tracepoints for which the kernel did not run the gate.
    pub(super) fn missed(&self) -> u64 {
        self.programs.iter().filter_map(|program| program.info().ok()).map(|info| info.misses).sum()
    }
}

/// The gate's instructions.
fn code(table: i32) -> Vec<u8> {
    // op, destination and source register, offset, immediate (struct bpf_insn).
    let insn = |op: u8, dst: u8, src: u8, imm: i32| {
        let mut bytes = vec![op, dst | src << 4, 0, 0];
        bytes.extend(imm.to_le_bytes());
        bytes
    };
    [
        insn(0xbf, 6, 1, 0),             // r6 = r1
        insn(0x85, 0, 0, ATTACH_COOKIE), // r0 = bpf_get_attach_cookie(r1)
        insn(0xbf, 1, 6, 0),             // r1 = r6
        insn(0x18, 2, 1, table),         // r2 = the table
        insn(0, 0, 0, 0),                //   (second half)
        insn(0xbc, 3, 0, 0),             // w3 = w0
        insn(0x85, 0, 0, TAIL_CALL),     // bpf_tail_call(r1, r2, r3)
        insn(0xb7, 0, 0, 0),             // r0 = 0
        insn(0x95, 0, 0, 0),             // exit
    ]
    .concat()
}
