//! Dispatch tables: arrays of programs for events that are attached, changed and detached while others run.
//!
//! A hook runs a gate, which tail-calls the program at the event's slot. Hooks that pass an attach cookie share one gate, which
//! takes the slot from the cookie. The programs take it from there too, so events with the same code share one program. At a raw
//! tracepoint each event has its own gate with a fixed slot. A system call's entry or exit has its entry in the array of a system
//! call dispatcher, which acts as the gate. Events of many functions can share one link (`functions.rs`).

use std::{
    collections::HashMap,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::entry::{self, Entry, EntrySource, OwnGate};
use crate::{
    attach::{
        AttachPoint, Cause,
        hooks::uprobe::{self, FilePlace},
        program::builder::{Key, LoadedProgram},
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
/// Name of arrays and gates.
const NAME: &str = "tracer_gate";

/// Programs of one type, in one array.
#[derive(Debug)]
pub(in crate::attach) struct DispatchTable {
    kind: ProgKind,
    /// Whether its programs are loaded for kprobe.multi.
    multi: bool,
    array: Arc<Map>,
    /// Copies of the gate that reads its attach cookie. A hook does not take the same program twice, and an event that
    /// was just turned off may still have it attached.
    gates: Vec<Prog>,
    programs: HashMap<Key, Weak<LoadedProgram>>,
    /// Hits missed by own gates that are detached.
    missed: Arc<AtomicU64>,
}

/// The dispatch tables of a session, one for each type of program.
#[derive(Debug)]
pub(in crate::attach) struct DispatchTables {
    entries: u32,
    tables: Vec<DispatchTable>,
    missed: Arc<AtomicU64>,
}

impl DispatchTable {
    fn is_for(&self, via: &AttachPoint) -> bool {
        self.kind == via.kind() && self.multi == is_function(via)
    }

    /// The entry of a slot.
    pub(in crate::attach) fn entry(&self, slot: Slot) -> Entry {
        Entry::new(Arc::clone(&self.array), slot.get())
    }

    fn load(&self, source: EntrySource) -> Result<Prog, Cause> {
        let purpose = match self.kind {
            _ if self.multi => Purpose::Multi,
            // Of the hooks with this program type, only probes of files use this gate.
            ProgKind::Kprobe => uprobe::purpose(),
            _ => Purpose::Any,
        };
        entry::load_gate(self.kind, purpose, &self.array, source, None, NAME)
    }

    /// A gate that reads its attach cookie.
    pub(in crate::attach) fn gate(&mut self) -> Result<&Prog, Cause> {
        if self.gates.is_empty() {
            let source = if self.multi { EntrySource::CookieOfMany } else { EntrySource::Cookie };
            self.gates.push(self.load(source)?);
        }
        self.gates.first().ok_or(Cause::Misplaced("no gate"))
    }

    /// Plans the gate's link at an instruction of a file.
    pub(in crate::attach) fn plan_file(
        &mut self,
        cookie: u64,
        place: &FilePlace,
    ) -> Result<uprobe::Planned, Cause> {
        uprobe::Planned::new(self.gate()?, place, false, cookie)
    }

    /// Links the gate to a perf event.
    pub(in crate::attach) fn link_perf(
        &mut self,
        cookie: u64,
        event: BorrowedFd<'_>,
    ) -> Result<OwnedFd, Cause> {
        let refused = |errno| Cause::Hook("link to the perf event (5.15 and later)", errno);
        for tried in 0..=COPIES {
            if tried == self.gates.len() {
                self.gates.push(self.load(EntrySource::Cookie)?);
            }
            let Some(gate) = self.gates.get(tried) else { break };
            match gate.link_perf_event(event, cookie) {
                Ok(link) => return Ok(link),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(refused(errno)),
            }
        }
        Err(refused(Errno::EXIST))
    }

    /// A gate for the entry of a slot.
    pub(in crate::attach) fn own_gate(&self, slot: Slot) -> Result<OwnGate, Cause> {
        let gate = self.load(EntrySource::Fixed(slot.get()))?;
        Ok(OwnGate::in_table(gate, Arc::clone(&self.missed)))
    }
}

/// Whether an event can share a link with events of other functions.
fn is_function(via: &AttachPoint) -> bool {
    matches!(via, AttachPoint::Shared { .. })
}

impl DispatchTables {
    /// No tables yet; each will have this many entries.
    pub(in crate::attach) fn new(entries: u32) -> Self {
        Self { entries, tables: Vec::new(), missed: Arc::default() }
    }

    /// The table of a hook's programs, created on first use.
    pub(in crate::attach) fn table(&mut self, via: &AttachPoint) -> Result<&mut DispatchTable, Cause> {
        if !self.tables.iter().any(|table| table.is_for(via)) {
            let array = Arc::new(entry::program_array(self.entries, NAME)?);
            let missed = Arc::clone(&self.missed);
            self.tables.push(DispatchTable {
                kind: via.kind(),
                multi: is_function(via),
                array,
                gates: Vec::new(),
                programs: HashMap::new(),
                missed,
            });
        }
        let made = self.tables.iter_mut().find(|table| table.is_for(via));
        made.ok_or(Cause::Misplaced("a table that was just made"))
    }

    /// The program of a key, if an event uses it.
    pub(in crate::attach) fn find(&self, via: &AttachPoint, key: &Key) -> Option<Arc<LoadedProgram>> {
        let table = self.tables.iter().find(|table| table.is_for(via))?;
        table.programs.get(key).and_then(Weak::upgrade)
    }

    /// All programs in use, by type and key.
    pub(in crate::attach) fn all_known(&self) -> HashMap<(u32, Key), Arc<LoadedProgram>> {
        let known = self.tables.iter().flat_map(|table| {
            let programs = table.programs.iter();
            programs.filter_map(|(key, known)| Some(((table.kind as u32, key.clone()), known.upgrade()?)))
        });
        known.collect()
    }

    /// Remembers the program of a key while an event uses it.
    pub(in crate::attach) fn remember(
        &mut self,
        via: &AttachPoint,
        key: Key,
        program: &Arc<LoadedProgram>,
    ) -> Result<(), Cause> {
        let programs = &mut self.table(via)?.programs;
        programs.retain(|_, known| known.strong_count() > 0);
        programs.insert(key, Arc::downgrade(program));
        Ok(())
    }

    /// Hits for which the kernel did not run a gate that events share, and those of own gates that are detached.
    pub(in crate::attach) fn missed(&self) -> u64 {
        let gates = self.tables.iter().flat_map(|table| &table.gates).map(entry::missed);
        gates.sum::<u64>() + self.missed.load(Ordering::Relaxed)
    }
}
