//! A histogram in the kernel: its table, its program, and the hook that this hangs on. All of it goes with the value.

use std::os::fd::{AsFd, AsRawFd};

use super::{AttachError, Cause, Link, Via, raw_tp, tracepoint};
use crate::{
    code::{
        asm::{Function, Insn, LD_IMM64, PSEUDO_FUNC},
        lower::hist::{self, DROPS, SCRATCH, SCRATCH_SIZE, TABLE},
    },
    lang::hist::Hist,
    plan::hist::{COMM_SIZE, Layout, word},
    sys::{
        map::{Map, MapKind, MapSpec},
        prog::Prog,
    },
};

/// A histogram's table, which stays while what counts in it comes and goes.
#[derive(Debug)]
pub struct Counts {
    table: Map,
    drops: Map,
    layout: Layout,
    cpus: usize,
}

/// A program that counts in a table.
#[derive(Debug)]
pub struct Counting {
    _scratch: Option<Map>,
    _program: Prog,
    _link: Link,
}

/// What has been counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Keys and entries, of all CPUs together.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// Hits that found the table full.
    pub drops: u64,
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

impl Counting {
    /// Loads a histogram's program and hangs it on a tracepoint, perf or raw.
    ///
    /// Programs that share a table must hang on perf tracepoints, where none runs inside another on a CPU.
    ///
    /// # Errors
    /// When a value is not to be had at the hook, or the kernel refuses a map, the program or the hook.
    pub fn start(request: &hist::Request<'_>, via: &Via, counts: &Counts) -> Result<Self, AttachError> {
        let name = request.hist.event.full_name();
        Self::try_start(request, via, counts).map_err(|cause| AttachError::new(name, cause))
    }

    fn try_start(request: &hist::Request<'_>, via: &Via, counts: &Counts) -> Result<Self, Cause> {
        let program = hist::hist(request).map_err(Cause::Lower)?;
        let scratch = program.scratch.then(|| make(MapKind::PerCpuArray, 4, SCRATCH_SIZE, 1)).transpose()?;
        let mut insns = joined(&program.functions);
        for insn in insns.iter_mut().filter(|insn| insn.op == LD_IMM64) {
            let map = match insn.imm {
                TABLE => &counts.table,
                DROPS => &counts.drops,
                SCRATCH => scratch.as_ref().unwrap_or(&counts.table),
                _ => continue,
            };
            insn.imm = map.as_fd().as_raw_fd();
        }
        let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
        let kind = via.kind();
        let program = Prog::load(kind, &bytes, hist::PROGRAM).map_err(|error| Cause::Load(kind, error))?;
        let link = match via {
            Via::Tracepoint(id) => tracepoint::attach(&program, *id),
            Via::RawTracepoint(name) => raw_tp::attach(&program, name),
            _ => Err(Cause::NoHook("histograms hang on tracepoints only".to_owned())),
        }?;
        Ok(Self { _scratch: scratch, _program: program, _link: link })
    }
}

impl Counts {
    /// Makes the table of a histogram; `cpus` is one more than the highest number of a CPU.
    ///
    /// # Errors
    /// When the kernel refuses a map.
    pub fn of(hist: &Hist, cpus: u32) -> Result<Self, AttachError> {
        let layout = Layout::of(hist);
        let make = |kind, key_size, value_size, entries| {
            make(kind, key_size, value_size, entries).map_err(|cause| AttachError::new("histogram", cause))
        };
        let table = make(MapKind::PerCpuHash, layout.key_size, layout.size, layout.entries)?;
        let drops = make(MapKind::Array, 4, 8, 1)?;
        Ok(Self { table, drops, layout, cpus: cpus as usize })
    }

    /// Reads the table, while it is counted on.
    ///
    /// # Errors
    /// When the kernel refuses to show it.
    pub fn read(&self) -> Result<Counted, AttachError> {
        let failed = |errno| AttachError::new("histogram", Cause::System("reading the table", errno));
        let mut counted = Counted::default();
        for key in self.table.keys().map_err(failed)? {
            let Some(values) = self.table.lookup_per_cpu(&key, self.cpus).map_err(failed)? else { continue };
            let entry = self.together(&values);
            counted.rows.push((key, entry));
        }
        let drops = self.drops.lookup(&[0; 4]).map_err(failed)?.unwrap_or_default();
        counted.drops = word(&drops, 0);
        Ok(counted)
    }

    /// Forgets all entries. Hits that happen meanwhile are in one of the two counts or in none.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn clear(&self) -> Result<(), AttachError> {
        let failed = |errno| AttachError::new("histogram", Cause::System("clearing the table", errno));
        for key in self.table.keys().map_err(failed)? {
            self.table.delete(&key).map_err(failed)?;
        }
        self.drops.update(&[0; 4], &[0; 8]).map_err(failed)
    }

    /// One entry of what each CPU has.
    fn together(&self, values: &[Vec<u8>]) -> Vec<u8> {
        let mut entry = vec![0; self.layout.size];
        for sum in 0..self.layout.sums {
            let total = values.iter().map(|value| self.layout.sum(value, sum)).fold(0, u64::wrapping_add);
            entry[8 * sum..8 * sum + 8].copy_from_slice(&total.to_ne_bytes());
        }
        // Only the CPU that made the entry has the name.
        if let Some(at) = self.layout.comm
            && let Some(named) = values.iter().find(|value| value.get(at).is_some_and(|byte| *byte != 0))
        {
            entry[at..at + COMM_SIZE].copy_from_slice(&named[at..at + COMM_SIZE]);
        }
        entry
    }
}

/// Functions one behind the other, the addresses of those that are called back filled in.
fn joined(functions: &[Function]) -> Vec<Insn> {
    let mut starts = Vec::new();
    let mut insns: Vec<Insn> = Vec::new();
    for function in functions {
        starts.push((function.name.as_str(), insns.len()));
        insns.extend(&function.insns);
    }
    for (function, (_, start)) in functions.iter().zip(&starts) {
        for (slot, name) in &function.addresses {
            let at = start + slot;
            let target = starts.iter().find(|(known, _)| known == name).map_or(at + 1, |(_, start)| *start);
            insns[at].src = PSEUDO_FUNC;
            insns[at].imm = target as i32 - at as i32 - 1;
        }
    }
    insns
}
