//! Dispatch tables: arrays of programs for events that are attached, changed and detached while others run.
//!
//! A hook runs a gate, which tail-calls the program at the event's slot. Hooks that pass an attach cookie share one
//! gate, which takes the slot from the cookie. The programs take it from there too, so events with the same code
//! share one program. A raw tracepoint, and a perf tracepoint that is enabled alone, has its own gate with a fixed
//! slot. Sessions share the tables of tracepoints (`chain`). A system call's entry or exit has its entry in the array
//! of a system call dispatcher, which acts as the gate. Events of many functions can share one link (`functions.rs`).

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
};

use super::{
    entry::{self, Entry, EntrySource, OwnGate},
    gate_pair::GatePairs,
};
use crate::{
    attach::{
        AttachPoint, Cause,
        hooks::uprobe::{self, FilePlace},
        link::not_linked,
        program::{
            builder::{Key, LoadedProgram},
            load,
        },
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
const NAME: &str = "tracer_dispatch";

/// Programs of one type, in one array.
#[derive(Debug)]
pub(crate) struct DispatchTable {
    kind: ProgKind,
    /// Whether its programs are loaded for links to many functions.
    multi: bool,
    array: Arc<Map>,
    /// Copies of the gate that reads its attach cookie. A hook does not take the same program twice, and the old link
    /// of an event that was just disabled may still exist.
    gates: Vec<Prog>,
    /// A program that does nothing, made on first use.
    empty: Option<Arc<Prog>>,
}

/// The dispatch tables of a session, one for each type of program.
#[derive(Debug)]
pub(crate) struct DispatchTables {
    entries: u32,
    tables: Vec<DispatchTable>,
}

/// The programs of a session that events share, by type and key. A program is known while an event uses it.
#[derive(Debug, Default)]
pub(crate) struct ProgramCache(HashMap<(u32, bool, Key), Weak<LoadedProgram>>);

impl DispatchTable {
    fn is_for(&self, point: &AttachPoint) -> bool {
        self.kind == point.kind() && self.multi == is_function(point)
    }

    pub(crate) fn kind(&self) -> ProgKind {
        self.kind
    }

    /// A program that does nothing, for entries that gates jump to directly ([`Entry::replace_by`]).
    pub(crate) fn empty(&mut self) -> Result<Arc<Prog>, Cause> {
        if let Some(empty) = &self.empty {
            return Ok(Arc::clone(empty));
        }
        let empty =
            Arc::new(load::load(self.kind, self.purpose(), &load::nothing("empty").insns, "tracer_empty")?);
        self.empty = Some(Arc::clone(&empty));
        Ok(empty)
    }

    pub(crate) fn entry(&self, slot: Slot) -> Entry {
        self.entry_at(slot.get())
    }

    pub(crate) fn entry_at(&self, index: u32) -> Entry {
        Entry::new(Arc::clone(&self.array), index)
    }

    pub(crate) fn array(&self) -> BorrowedFd<'_> {
        self.array.as_fd()
    }

    fn purpose(&self) -> Purpose<'static> {
        match self.kind {
            ProgKind::Tracing => Purpose::Exits,
            _ if self.multi => Purpose::Multi,
            // Of the hooks with this program type, only probes of files use this gate.
            ProgKind::Kprobe => uprobe::purpose(),
            _ => Purpose::Any,
        }
    }

    fn load(&self, source: EntrySource) -> Result<Prog, Cause> {
        entry::load_gate(self.kind, self.purpose(), &self.array, source, None, NAME)
    }

    /// A gate that reads its attach cookie.
    pub(crate) fn gate(&mut self) -> Result<&Prog, Cause> {
        if self.gates.is_empty() {
            let source = match self.kind {
                ProgKind::Tracing => EntrySource::CookieOfExits,
                _ if self.multi => EntrySource::CookieOfMany,
                _ => EntrySource::Cookie,
            };
            self.gates.push(self.load(source)?);
        }
        self.gates.first().ok_or(Cause::Misplaced("no gate"))
    }

    /// Plans the gate's link at an instruction of a file.
    pub(crate) fn plan_file(&mut self, cookie: u64, place: &FilePlace) -> Result<uprobe::Planned, Cause> {
        uprobe::Planned::new(self.gate()?, place, false, cookie)
    }

    /// Links the gate to a perf event.
    pub(crate) fn link_perf(&mut self, cookie: u64, event: BorrowedFd<'_>) -> Result<OwnedFd, Cause> {
        for tried in 0..=COPIES {
            if tried == self.gates.len() {
                self.gates.push(self.load(EntrySource::Cookie)?);
            }
            let Some(gate) = self.gates.get(tried) else { break };
            match gate.link_perf_event(event, cookie) {
                Ok(link) => return Ok(link),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(not_linked(errno)),
            }
        }
        Err(not_linked(Errno::EXIST))
    }

    /// A gate for one hook, or two gates with `pairs`.
    pub(crate) fn own_gate(&self, slot: Slot, pairs: Option<&GatePairs>) -> Result<OwnGate, Cause> {
        let Some(pairs) = pairs else {
            return Ok(OwnGate::in_table(self.load(EntrySource::Fixed(slot.get()))?, None));
        };
        let (first, second) = pairs.load(&self.array, slot.get(), NAME)?;
        Ok(OwnGate::in_table(first, Some(second)))
    }
}

/// Whether an event can share a link with events of other functions.
fn is_function(point: &AttachPoint) -> bool {
    matches!(point, AttachPoint::Shared { .. } | AttachPoint::SharedExit(_))
}

impl DispatchTables {
    /// No tables yet; each will have this many entries.
    pub(crate) fn new(entries: u32) -> Self {
        Self { entries, tables: Vec::new() }
    }

    /// The table of a hook's programs, created on first use.
    pub(crate) fn table(&mut self, point: &AttachPoint) -> Result<&mut DispatchTable, Cause> {
        if !self.tables.iter().any(|table| table.is_for(point)) {
            let array = Arc::new(entry::program_array(self.entries, NAME)?);
            let (kind, multi) = (point.kind(), is_function(point));
            self.tables.push(DispatchTable { kind, multi, array, gates: Vec::new(), empty: None });
        }
        let made = self.tables.iter_mut().find(|table| table.is_for(point));
        made.ok_or(Cause::Misplaced("a table that was just made"))
    }

    /// Hits for which the kernel did not run a gate that events share.
    pub(crate) fn missed(&self) -> u64 {
        self.tables.iter().flat_map(|table| &table.gates).map(entry::missed).sum()
    }
}

impl ProgramCache {
    /// The program of a key, if an event uses it.
    pub(crate) fn find(&self, point: &AttachPoint, key: &Key) -> Option<Arc<LoadedProgram>> {
        self.0.get(&(point.kind() as u32, is_function(point), key.clone())).and_then(Weak::upgrade)
    }

    pub(crate) fn all(&self) -> HashMap<(u32, Key), Arc<LoadedProgram>> {
        let known = self.0.iter();
        known
            .filter_map(|((kind, _, key), program)| Some(((*kind, key.clone()), program.upgrade()?)))
            .collect()
    }

    pub(crate) fn remember(&mut self, point: &AttachPoint, key: Key, program: &Arc<LoadedProgram>) {
        self.0.retain(|_, known| known.strong_count() > 0);
        self.0.insert((point.kind() as u32, is_function(point), key), Arc::downgrade(program));
    }
}
