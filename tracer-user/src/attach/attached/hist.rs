//! A histogram in the kernel: its table, and the program that counts in it. Dropping the two values removes them.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    chain::Sort,
    emission::Block,
    entry::OwnGate,
    lifecycle::{Attached, Dispatch},
};
use crate::{
    attach::{
        AttachError, AttachPoint, Calls, Cause, PerfEvent, Session,
        hooks::{self, syscalls::DispatcherLink},
        link::Link,
        maps,
        program::{builder::LoadedProgram, load},
    },
    code::{
        asm::{Helper, Insn, MapRef},
        join,
        lower::hist::{self, SCRATCH_SIZE},
    },
    lang::hist::{Hist, action::ActionKind},
    plan::hist::{
        COMM_SIZE, Layout, snapshot,
        table::{CLOSED, SEED, SLOTS, TableLayout, USED},
        word,
    },
    sys::{
        Errno,
        bpf::{
            map::{Map, MapKind, MapSpec, MappedArray, flag},
            prog::{ProgKind, Purpose},
            quiesce,
        },
    },
};

/// A histogram's table. It persists while programs that count in it are attached and detached.
#[derive(Debug)]
pub struct Counts {
    table: Map,
    words: MappedArray,
    drops: Map,
    /// State of the last snapshot.
    snapshot: Option<Map>,
    layout: Layout,
    place: TableLayout,
    /// Whether its program has a link of its own, and does not share the link of the tracepoint's other consumers.
    is_apart: AtomicBool,
}

/// Objects outside of a histogram that its program refers to.
#[derive(Debug, Default)]
pub struct HistContext<'a> {
    /// Tables of the variables it looks up, in the order of [`crate::plan::hist::References::owners`].
    pub owners: Vec<&'a Counts>,
    /// The session whose snapshots its actions request, and whose chains of tracepoints it joins.
    pub session: Option<&'a Session>,
    /// Dispatchers for histograms on system calls.
    pub calls: Option<&'a Calls>,
    /// By action, the code that emits its synthetic event.
    pub emissions: Vec<Option<Block>>,
}

impl HistContext<'_> {
    /// The value for [`hist::Request::emits`].
    pub fn emits(&self) -> Vec<bool> {
        self.emissions.iter().map(Option::is_some).collect()
    }
}

/// The contents of a histogram's table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistContents {
    /// Keys and entries, summed over all CPUs.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// Hits that found the table full.
    pub drops: u64,
    /// The entry of the last snapshot: the value, the key, and the name of the entry's task.
    pub snapshot: Option<(u64, Vec<u8>, Vec<u8>)>,
}

/// Attaches a histogram to a tracepoint, perf or raw, or to a system call. At a tracepoint it joins the chain of the
/// session. At a system call it has an entry of a dispatcher. Elsewhere it has its own gate if its actions emit
/// synthetic events. In these cases, [`replace`] can exchange its program when those events change.
///
/// Programs that share a table must be attached to perf tracepoints, where none runs inside another on a CPU.
/// `opened` is the perf event of the tracepoint ([`open_perf_event`](crate::attach::open_perf_event)), if it is open
/// already.
///
/// # Errors
/// When a value is not available at the hook, or the kernel refuses a map, the program or the hook.
pub fn attach(
    request: &hist::Request<'_>,
    point: &AttachPoint,
    counts: &Counts,
    context: &HistContext<'_>,
    opened: Option<Result<PerfEvent, Cause>>,
) -> Result<Attached, AttachError> {
    let failed = |cause| AttachError::new(request.hist.event.full_name(), cause);
    try_attach(request, point, counts, context, opened).map_err(failed)
}

fn try_attach(
    request: &hist::Request<'_>,
    point: &AttachPoint,
    counts: &Counts,
    context: &HistContext<'_>,
    opened: Option<Result<PerfEvent, Cause>>,
) -> Result<Attached, Cause> {
    let kind = point.kind();
    // The loaded program keeps the maps.
    let (insns, _scratch) = assembled(request, counts, context)?;
    // At a raw tracepoint the stack has the frames of programs. Their number must be known, and it is not known in a
    // sequence.
    let counts_frames = !point.is_tracepoint() && insns.contains(&Insn::call(Helper::GetStack));
    let program = loaded(insns, point, context)?;
    // A histogram that reads a variable must run after the histogram that sets it. If the setter has its own link, the
    // reader gets a later link of its own.
    let is_apart = counts_frames || context.owners.iter().any(|owner| owner.is_apart.load(Ordering::Relaxed));
    // Histograms with the same name share the counts.
    counts.is_apart.fetch_or(is_apart, Ordering::Relaxed);
    let session = context.session.filter(|_| !is_apart);
    if let Some(chain) = session.map(|session| session.join(point, Dispatch::Gate)).transpose()?.flatten() {
        chain.set(Arc::clone(&program.program))?;
        chain.connect(opened, false)?;
        let mut attached = Attached::new(point.clone(), Dispatch::Table, program);
        attached.chain = Some(chain);
        return Ok(attached);
    }
    // A dispatcher of system calls has an entry for the program.
    let emits =
        request.hist.synthetic_events().next().is_some() && kind != ProgKind::Syscall && !point.is_call();
    let dispatch = if emits { Dispatch::Gate } else { Dispatch::Direct };
    let mut attached = Attached::new(point.clone(), dispatch, Arc::clone(&program));
    if emits {
        let (gate, entry) = OwnGate::new(kind, point.purpose(), false, "tracer_hist")?;
        (attached.gate, attached.entry) = (Some(gate), Some(entry));
        attached.set_program(program)?;
    }
    let linked = &Arc::clone(attached.linked_program());
    attached.link = match (point, point.call()) {
        (_, Some((enter, number))) => {
            let calls = context.calls.ok_or(Cause::NoRegisters)?;
            attached.pages =
                calls.pages().filter(|_| enter).and_then(|pages| pages.want(number, request.context));
            let link = session.map_or_else(
                || DispatcherLink::alone(Arc::default(), calls.pages().cloned()),
                |session| session.dispatcher_link(Sort::Trigger),
            );
            let (place, entry) = calls.attach_hook(enter, number, linked, &link)?;
            attached.entry = Some(entry);
            Link::Call { place }
        }
        (
            AttachPoint::Tracepoint(_)
            | AttachPoint::CallTracepoint(_)
            | AttachPoint::RawTracepoint(_)
            | AttachPoint::Inject,
            None,
        ) => hooks::attach(linked, point, opened)?,
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
    context: &HistContext<'_>,
) -> Result<(), AttachError> {
    let failed = |cause| AttachError::new(request.hist.event.full_name(), cause);
    let made = assembled(request, counts, context);
    // The loaded program keeps the maps.
    let program = made.and_then(|(insns, _scratch)| loaded(insns, attached.point(), context));
    program.and_then(|program| attached.set_program(program)).map_err(failed)
}

/// Builds the histogram update as a part of programs that emit the histogram's synthetic event.
///
/// # Errors
/// When a value is not available, or the kernel refuses a map.
pub fn part(
    request: &hist::Request<'_>,
    counts: &Counts,
    context: HistContext<'_>,
) -> Result<Block, AttachError> {
    let made = assembled(request, counts, &context);
    let (insns, scratch) = made.map_err(|cause| AttachError::new(request.hist.event.full_name(), cause))?;
    let inner = context.emissions.into_iter().flatten().flat_map(Block::into_maps);
    Ok(Block::new(insns, inner.chain(scratch.map(Arc::new)).collect()))
}

fn loaded(
    insns: Vec<Insn>,
    point: &AttachPoint,
    context: &HistContext<'_>,
) -> Result<Arc<LoadedProgram>, Cause> {
    let insns = match context.session {
        Some(session) => session.context().guarded(point, insns)?,
        None => insns,
    };
    let program = load::load(point.kind(), Purpose::Any, &insns, hist::PROGRAM)?;
    Ok(Arc::new(LoadedProgram { program: Arc::new(program), scratch: None }))
}

/// The instructions with descriptors in them, and their scratch memory.
fn assembled(
    request: &hist::Request<'_>,
    counts: &Counts,
    context: &HistContext<'_>,
) -> Result<(Vec<Insn>, Option<Map>), Cause> {
    let mut program = hist::hist(request).map_err(Cause::Lower)?;
    let scratch = program.scratch.then(|| {
        let scratch = maps::spec(MapKind::PerCpuArray, SCRATCH_SIZE, 1, "tracer_hist");
        Map::create(&scratch).map_err(|errno| Cause::Map("histogram", errno))
    });
    let scratch = scratch.transpose()?;
    let of_session = |name| context.session.and_then(|session| session.map(name));
    // The program may request snapshots.
    context.session.map_or(Ok(()), |session| session.maps.complete())?;
    let owner = |number: u16| context.owners.get(usize::from(number)).map(|counts| counts.table.as_fd());
    load::bind(&mut program.functions, |map| match map {
        MapRef::HistTable => Some(counts.table.as_fd()),
        MapRef::HistDrops => Some(counts.drops.as_fd()),
        MapRef::HistScratch => scratch.as_ref().map(AsFd::as_fd),
        MapRef::HistSnapshot => counts.snapshot.as_ref().map(AsFd::as_fd),
        MapRef::HistOwner(number) => owner(number),
        MapRef::Controls => of_session(tracer_abi::CONTROLS),
        MapRef::Switches => of_session(tracer_abi::SWITCHES),
        MapRef::Pids => of_session(tracer_abi::PIDS),
        _ => None,
    })?;
    let blocks = context.emissions.iter().enumerate();
    let blocks: Vec<(String, &Block)> =
        blocks.filter_map(|(number, block)| Some((hist::emission(number), block.as_ref()?))).collect();
    let parts: Vec<join::Part<'_>> =
        blocks.iter().map(|(name, block)| (name.as_str(), block.insns())).collect();
    Ok((join::join(&program.functions, &parts), scratch))
}

impl Counts {
    /// Makes the table of a histogram on a machine with this many CPU ids.
    ///
    /// # Errors
    /// When the kernel refuses a map.
    pub fn of(hist: &Hist, cpus: u32) -> Result<Self, AttachError> {
        let layout = Layout::of(hist);
        let place = TableLayout::of(&layout, cpus);
        let failed = |cause| AttachError::new("histogram", cause);
        let system = |errno| failed(Cause::Map("histogram", errno));
        let array = |size, flags| {
            u32::try_from(size).map_err(|_| system(Errno::TOOBIG))?;
            let spec = maps::spec(MapKind::Array, size, 1, "tracer_hist");
            Map::create(&MapSpec { flags, ..spec }).map_err(system)
        };
        let table = array(place.size(), flag::MMAPABLE)?;
        let words = table.mapped().map_err(system)?;
        let seed = RandomState::new().build_hasher().finish();
        let _ = words.store_long(SEED, seed);
        let drops = array(8, 0)?;
        let takes = hist.actions.iter().any(|action| action.kind == ActionKind::Snapshot);
        let snapshot = takes.then(|| array(snapshot::KEY + layout.key_size, 0)).transpose()?;
        Ok(Self { table, words, drops, snapshot, layout, place, is_apart: AtomicBool::new(false) })
    }

    /// Reads the table while programs count in it.
    ///
    /// # Errors
    /// When the kernel refuses to read the drops or the state of a snapshot.
    pub fn read(&self) -> Result<HistContents, AttachError> {
        let failed = |errno| AttachError::new("histogram", Cause::System("reading the table", errno));
        let mut contents = HistContents::default();
        for slot in 0..self.place.slots() as usize {
            let word = self.words.load(SLOTS + 8 * slot).unwrap_or(0);
            // An entry that is being made is omitted.
            let Some(number) = (word & u64::from(u32::MAX)).checked_sub(1) else { continue };
            let number = number as usize;
            let key = self.bytes(self.place.keys() + number * self.place.key_size, self.place.key_size);
            contents.rows.push((key, self.entry(number)));
        }
        let drops = self.drops.lookup(&[0; 4]).map_err(failed)?.unwrap_or_default();
        contents.drops = word(&drops, 0);
        if let Some(map) = &self.snapshot {
            let state = map.lookup(&[0; 4]).map_err(failed)?.unwrap_or_default();
            let taken = word(&state, snapshot::TAKEN) != 0;
            contents.snapshot = taken.then(|| {
                let comm = state.get(snapshot::COMM..snapshot::COMM + COMM_SIZE).unwrap_or_default();
                let comm = comm.split(|byte| *byte == 0).next().unwrap_or_default();
                let key = state.get(snapshot::KEY..).unwrap_or_default();
                (word(&state, snapshot::VALUE), key.to_vec(), comm.to_vec())
            });
        }
        Ok(contents)
    }

    /// Deletes all entries. A hit during the deletion is in the old count, in the new one, or in neither.
    ///
    /// # Errors
    /// When the kernel refuses to change the table, or to wait for the programs that count.
    pub fn clear(&self) -> Result<(), AttachError> {
        let failed = |errno| AttachError::new("histogram", Cause::System("clearing the table", errno));
        let _ = self.words.store_long(CLOSED, 1);
        // From here on no program counts, so nothing is changed behind the deletion.
        let quiet = quiesce::wait_for_programs();
        if quiet.is_ok() {
            for at in (SLOTS..self.place.size()).step_by(8) {
                let _ = self.words.store_long(at, 0);
            }
            let _ = self.words.store_long(USED, 0);
        }
        let _ = self.words.store_long(CLOSED, 0);
        quiet.map_err(failed)?;
        self.drops.update(&[0; 4], &[0; 8]).map_err(failed)
    }

    /// Bytes of the table.
    fn bytes(&self, start: usize, length: usize) -> Vec<u8> {
        let words = (start..start + length).step_by(8);
        words.flat_map(|at| self.words.load(at).unwrap_or(0).to_ne_bytes()).collect()
    }

    /// The entry with this number; the sum of the CPUs' copies.
    fn entry(&self, number: usize) -> Vec<u8> {
        let start = self.place.values() + number * self.place.entry_size;
        let copy = |cpu: usize| self.bytes(start + cpu * self.place.region(), self.place.entry_size);
        if self.layout.is_shared() {
            return copy(0);
        }
        let copies: Vec<_> = (0..self.place.copies as usize).map(copy).collect();
        self.together(&copies)
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
