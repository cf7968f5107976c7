//! A histogram in the kernel: its table, and the program that counts in it. Dropping the values removes both.

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
};

use super::{
    emission::Block,
    entry::OwnGate,
    lifecycle::{Attached, Dispatch},
};
use crate::{
    attach::{
        AttachError, AttachPoint, Calls, Cause, PerfEvent, Session, hooks, link::Link,
        program::builder::LoadedProgram,
    },
    code::{
        asm::{self, Insn, MapRef},
        join,
        lower::hist::{self, SCRATCH_SIZE},
    },
    lang::hist::{Hist, action::Deed},
    plan::hist::{COMM_SIZE, Layout, snapshot, word},
    sys::bpf::{
        map::{Map, MapKind, MapSpec},
        prog::{Prog, ProgKind},
    },
};

/// A histogram's table. It persists while programs that count in it are attached and detached.
#[derive(Debug)]
pub struct Counts {
    table: Map,
    drops: Map,
    /// An empty entry, if all CPUs share entries.
    empty: Option<Map>,
    /// State of the last snapshot.
    snapshot: Option<Map>,
    layout: Layout,
}

/// Objects outside of a histogram that its program refers to.
#[derive(Debug, Default)]
pub struct Around<'a> {
    /// Tables of the variables it looks up, in the order of [`crate::plan::hist::References::owners`].
    pub owners: Vec<&'a Counts>,
    /// The session whose snapshots its actions request.
    pub session: Option<&'a Session>,
    /// Dispatchers for histograms on system calls.
    pub calls: Option<&'a Calls>,
    /// By action, the code that emits its synthetic event.
    pub emissions: Vec<Option<Block>>,
}

impl Around<'_> {
    /// The value for [`hist::Request::emits`].
    pub fn emits(&self) -> Vec<bool> {
        self.emissions.iter().map(Option::is_some).collect()
    }
}

/// The contents of a histogram's table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Keys and entries, summed over all CPUs.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// Hits that found the table full.
    pub drops: u64,
    /// The entry of the last snapshot: the value, the key, and the name of the entry's task.
    pub snapshot: Option<(u64, Vec<u8>, Vec<u8>)>,
}

fn make(kind: MapKind, key_size: usize, value_size: usize, entries: u32) -> Result<Map, Cause> {
    let spec = MapSpec {
        kind,
        key_size: key_size as u32,
        value_size: value_size as u32,
        max_entries: entries,
        flags: 0,
        inner: None,
        name: "tracer_hist",
    };
    Map::create(&spec).map_err(|errno| Cause::Map("histogram", errno))
}

/// Attaches a histogram to a tracepoint, perf or raw, or to a system call. If its actions emit synthetic events, it is attached
/// behind a gate, so that its program can be replaced when those events change ([`replace`]).
///
/// Programs that share a table must be attached to perf tracepoints, where none runs inside another on a CPU. `opened` is
/// the perf event of the tracepoint ([`open_perf_event`](crate::attach::open_perf_event)), if it is open already.
///
/// # Errors
/// When a value is not available at the hook, or the kernel refuses a map, the program or the hook.
pub fn attach(
    request: &hist::Request<'_>,
    via: &AttachPoint,
    counts: &Counts,
    around: &Around<'_>,
    opened: Option<Result<PerfEvent, Cause>>,
) -> Result<Attached, AttachError> {
    let failed = |cause| AttachError::new(request.hist.event.full_name(), cause);
    try_attach(request, via, counts, around, opened).map_err(failed)
}

fn try_attach(
    request: &hist::Request<'_>,
    via: &AttachPoint,
    counts: &Counts,
    around: &Around<'_>,
    opened: Option<Result<PerfEvent, Cause>>,
) -> Result<Attached, Cause> {
    let kind = via.kind();
    let program = load(request, kind, counts, around)?;
    let emits = request.hist.synthetic_events().next().is_some() && kind != ProgKind::Syscall;
    let dispatch = if emits { Dispatch::Gate } else { Dispatch::Direct };
    let mut attached = Attached::new(via.clone(), dispatch, Arc::clone(&program));
    if emits {
        let (gate, entry) = OwnGate::new(kind, via.purpose(), false, "tracer_hist")?;
        (attached.gate, attached.entry) = (Some(gate), Some(entry));
        attached.set_program(program)?;
    }
    let linked = attached.linked_program();
    attached.link = match via {
        AttachPoint::SysEnter(number) | AttachPoint::SysExit(number) => {
            let calls = around.calls.ok_or(Cause::NoRegisters)?;
            let place = calls.attach_hook(matches!(via, AttachPoint::SysEnter(_)), *number, linked)?;
            Link::Call { _place: place }
        }
        AttachPoint::Tracepoint(_) | AttachPoint::RawTracepoint(_) | AttachPoint::Inject => {
            hooks::attach(linked, via, opened)?
        }
        _ => return Err(Cause::NoHook("histograms are attached to tracepoints only".to_owned())),
    };
    Ok(attached)
}

/// Replaces the program of a histogram: every hit runs either the old one or the new one.
///
/// # Errors
/// As [`attach`]; the old program stays.
pub fn replace(
    attached: &mut Attached,
    request: &hist::Request<'_>,
    counts: &Counts,
    around: &Around<'_>,
) -> Result<(), AttachError> {
    let failed = |cause| AttachError::new(request.hist.event.full_name(), cause);
    let program = load(request, attached.via().kind(), counts, around).map_err(failed)?;
    attached.set_program(program).map_err(failed)
}

/// Builds the histogram update as a part of programs that emit the histogram's synthetic event.
///
/// # Errors
/// When a value is not available, or the kernel refuses a map.
pub fn part(request: &hist::Request<'_>, counts: &Counts, around: Around<'_>) -> Result<Block, AttachError> {
    let made = assembled(request, counts, &around);
    let (insns, scratch) = made.map_err(|cause| AttachError::new(request.hist.event.full_name(), cause))?;
    let inner = around.emissions.into_iter().flatten().flat_map(Block::into_maps);
    Ok(Block::new(insns, inner.chain(scratch.map(Arc::new)).collect()))
}

fn load(
    request: &hist::Request<'_>,
    kind: ProgKind,
    counts: &Counts,
    around: &Around<'_>,
) -> Result<Arc<LoadedProgram>, Cause> {
    // The loaded program keeps the maps.
    let (insns, _scratch) = assembled(request, counts, around)?;
    let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
    let program = Prog::load(kind, &bytes, hist::PROGRAM).map_err(|error| Cause::Load(kind, error))?;
    Ok(Arc::new(LoadedProgram { program, scratch: None }))
}

/// The instructions with descriptors in them, and their scratch memory.
fn assembled(
    request: &hist::Request<'_>,
    counts: &Counts,
    around: &Around<'_>,
) -> Result<(Vec<Insn>, Option<Map>), Cause> {
    let mut program = hist::hist(request).map_err(Cause::Lower)?;
    let scratch = program.scratch.then(|| make(MapKind::PerCpuArray, 4, SCRATCH_SIZE, 1)).transpose()?;
    let of_session = |name| around.session.and_then(|session| session.map(name));
    let owner = |number: u16| around.owners.get(usize::from(number)).map(|counts| counts.table.as_fd());
    let descriptor = |map| {
        let map = match map {
            MapRef::HistTable => Some(counts.table.as_fd()),
            MapRef::HistDrops => Some(counts.drops.as_fd()),
            MapRef::HistScratch => scratch.as_ref().map(AsFd::as_fd),
            MapRef::HistEmpty => counts.empty.as_ref().map(AsFd::as_fd),
            MapRef::HistSnapshot => counts.snapshot.as_ref().map(AsFd::as_fd),
            MapRef::HistOwner(number) => owner(number),
            MapRef::Rings => of_session(tracer_abi::RINGS),
            MapRef::Switches => of_session(tracer_abi::SWITCHES),
            MapRef::Pids => of_session(tracer_abi::PIDS),
            _ => None,
        };
        map.map(|map| map.as_raw_fd())
    };
    for function in &mut program.functions {
        asm::bind(&mut function.insns, descriptor)
            .map_err(|map| Cause::NoHook(format!("there is no map {map}")))?;
    }
    let blocks = around.emissions.iter().enumerate();
    let blocks: Vec<(String, &Block)> =
        blocks.filter_map(|(number, block)| Some((hist::emission(number), block.as_ref()?))).collect();
    let parts: Vec<join::Part<'_>> =
        blocks.iter().map(|(name, block)| (name.as_str(), block.insns())).collect();
    Ok((join::join(&program.functions, &parts), scratch))
}

impl Counts {
    /// Makes the table of a histogram.
    ///
    /// # Errors
    /// When the kernel refuses a map.
    pub fn of(hist: &Hist) -> Result<Self, AttachError> {
        let layout = Layout::of(hist);
        let make = |kind, key_size, value_size, entries| {
            make(kind, key_size, value_size, entries).map_err(|cause| AttachError::new("histogram", cause))
        };
        let shared = layout.is_shared();
        let kind = if shared { MapKind::Hash } else { MapKind::PerCpuHash };
        let table = make(kind, layout.key_size, layout.size, layout.entries)?;
        let drops = make(MapKind::Array, 4, 8, 1)?;
        let array = |size| make(MapKind::Array, 4, size, 1);
        let empty = shared.then(|| array(layout.size)).transpose()?;
        let takes = hist.actions.iter().any(|action| action.deed == Deed::Snapshot);
        let snapshot = takes.then(|| array(snapshot::KEY + layout.key_size)).transpose()?;
        Ok(Self { table, drops, empty, snapshot, layout })
    }

    /// Reads the table while programs count in it.
    ///
    /// # Errors
    /// When the kernel refuses to read it.
    pub fn read(&self) -> Result<Counted, AttachError> {
        let failed = |errno| AttachError::new("histogram", Cause::System("reading the table", errno));
        let mut counted = Counted::default();
        for key in self.table.keys().map_err(failed)? {
            let entry = if self.layout.is_shared() {
                self.table.lookup(&key).map_err(failed)?
            } else {
                let values = self.table.lookup_per_cpu(&key).map_err(failed)?;
                values.map(|values| self.together(&values))
            };
            // An entry deleted since its key was read is omitted.
            counted.rows.extend(entry.map(|entry| (key, entry)));
        }
        let drops = self.drops.lookup(&[0; 4]).map_err(failed)?.unwrap_or_default();
        counted.drops = word(&drops, 0);
        if let Some(map) = &self.snapshot {
            let state = map.lookup(&[0; 4]).map_err(failed)?.unwrap_or_default();
            let taken = word(&state, snapshot::TAKEN) != 0;
            counted.snapshot = taken.then(|| {
                let comm = state.get(snapshot::COMM..snapshot::COMM + COMM_SIZE).unwrap_or_default();
                let comm = comm.split(|byte| *byte == 0).next().unwrap_or_default();
                let key = state.get(snapshot::KEY..).unwrap_or_default();
                (word(&state, snapshot::VALUE), key.to_vec(), comm.to_vec())
            });
        }
        Ok(counted)
    }

    /// Deletes all entries. A hit during the deletion is in the old count, in the new one, or in neither.
    ///
    /// # Errors
    /// When the kernel refuses to read or change the table.
    pub fn clear(&self) -> Result<(), AttachError> {
        let failed = |errno| AttachError::new("histogram", Cause::System("clearing the table", errno));
        for key in self.table.keys().map_err(failed)? {
            self.table.delete(&key).map_err(failed)?;
        }
        self.drops.update(&[0; 4], &[0; 8]).map_err(failed)
    }

    /// Combines the entries of all CPUs into one.
    fn together(&self, values: &[Vec<u8>]) -> Vec<u8> {
        let mut entry = vec![0; self.layout.size];
        let (words, _) = entry.as_chunks_mut();
        for (sum, place) in words.iter_mut().enumerate().take(self.layout.sums) {
            let total = values.iter().map(|value| Layout::sum(value, sum)).fold(0, u64::wrapping_add);
            *place = total.to_ne_bytes();
        }
        // Only the CPU that created the entry stores the name.
        if let Some(at) = self.layout.comm
            && let Some(named) = values.iter().find(|value| value.get(at).is_some_and(|byte| *byte != 0))
            && let Some(name) = named.get(at..).and_then(<[u8]>::first_chunk::<COMM_SIZE>)
            && let Some(place) = entry.get_mut(at..).and_then(<[u8]>::first_chunk_mut)
        {
            *place = *name;
        }
        entry
    }
}
