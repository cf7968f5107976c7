//! The maps that all programs of a session share, and the memory that user space shares with them.

mod counters;
mod create;
mod rings;
mod switches;
mod threads;

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::OnceLock,
};

use tracer_abi as abi;
use tracer_abi::Counters;

pub(crate) use self::create::{array, create, per_cpu, ring_buffer, spec};
pub use self::{counters::CounterTable, switches::Switches, threads::ThreadTable};

use self::rings::RingMaps;
use crate::{
    attach::{AttachError, Cause},
    sys::bpf::{
        cpu_ring::CpuRing,
        map::{Map, MapKind, MapSpec, flag},
    },
};

/// Sizes and options of a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of records in each CPU's ring; rounded up to a power of two of at least a page.
    pub ring_bytes: u32,
    /// Bytes in a CPU's ring at which its reader is woken.
    pub watermark: u32,
    /// Number of CPU ids: the highest possible id plus one.
    pub cpus: u32,
    /// Number of events that can be attached at the same time: rows of the counters.
    pub slots: u32,
    /// Whether only threads given by [`ThreadTable::set`] are traced.
    pub pid_gate: bool,
    /// Whether thread lists can be used ([`Switches::set_lists`]).
    pub pid_lists: bool,
    /// This process's id in the initial pid namespace.
    pub own_tgid: u32,
    /// Whether this process is traced like any other.
    pub trace_own: bool,
}

/// The maps of a session.
#[derive(Debug)]
pub(crate) struct SessionMaps {
    options: Options,
    rings: RingMaps,
    counters: CounterTable,
    switches: Switches,
    threads: ThreadTable,
    scratch: Map,
    cpu_bases: Map,
    calls: Map,
    /// Scratch memory that hits claim, and the table of claims.
    nesting: OnceLock<(Map, Map)>,
    /// Scratch memory of the programs behind the dispatchers of system calls: those that begin, and those that end. One of them runs
    /// at a time on a CPU, because the kernel does not run a dispatcher inside itself.
    calls_scratch: (OnceLock<Map>, OnceLock<Map>),
    #[cfg(feature = "bpf-log")]
    logs: Map,
}

/// Capacity of the pid table.
const PID_ENTRIES: u32 = 32_768;
const SCRATCH: &str = "tracer_scratch";

impl SessionMaps {
    /// Creates the maps and maps their memory. The second value is each CPU's ring.
    pub(crate) fn new(options: &Options) -> Result<(Self, Vec<CpuRing>), AttachError> {
        let failed = |cause| AttachError::new("session", cause);
        let (rings, memory) = RingMaps::new(options.ring_bytes, options.cpus).map_err(failed)?;
        let mmapable = |value_size, max_entries, name| {
            let spec = spec(MapKind::Array, value_size, max_entries, name);
            create(&MapSpec { flags: flag::MMAPABLE, ..spec }).map_err(failed)
        };
        // All rows are in one value, which programs access by its address. Older kernels refuse values above 4 MiB.
        let (rows, row) = (options.slots.max(1) * options.cpus, size_of::<Counters>());
        let whole = mmapable(rows as usize * row, 1, "tracer_counts");
        let one_table = whole.is_ok();
        let counters = whole.or_else(|_| mmapable(row, rows, "tracer_counts"))?;
        let switches = mmapable(size_of::<abi::Switches>(), 1, "tracer_switch")?;
        let pids = if options.pid_gate || options.pid_lists { PID_ENTRIES } else { 1 };
        // Preallocated: an allocation at a fork would show among the traced events.
        let pids = create(&spec(MapKind::Hash, 1, pids, "tracer_pids")).map_err(failed)?;
        let mapped = |map: &Map| map.mapped().map_err(|errno| failed(Cause::Map("mapped array", errno)));
        let (counts, words) = (mapped(&counters)?, mapped(&switches)?);
        let shared = Self {
            counters: CounterTable::new(counters, counts, one_table, options.cpus),
            switches: Switches::new(switches, words),
            threads: ThreadTable::new(pids),
            scratch: array(abi::SCRATCH_SIZE, options.cpus, SCRATCH).map_err(failed)?,
            cpu_bases: array(8, options.cpus, "tracer_cpus").map_err(failed)?,
            calls: array(8, 2 * abi::CALL_NUMBERS, "tracer_calls").map_err(failed)?,
            // aya-log finds the map by its name.
            #[cfg(feature = "bpf-log")]
            logs: ring_buffer(1 << 17, "AYA_LOGS").map_err(failed)?,
            nesting: OnceLock::new(),
            calls_scratch: Default::default(),
            rings,
            options: options.clone(),
        };
        Ok((shared, memory))
    }

    /// Waits until programs can request snapshots, which takes 5 to 20 ms after the maps were made.
    pub(crate) fn complete(&self) -> Result<(), Cause> {
        self.rings.complete()
    }

    pub(crate) fn switches(&self) -> &Switches {
        &self.switches
    }

    pub(crate) fn counters(&self) -> &CounterTable {
        &self.counters
    }

    pub(crate) fn threads(&self) -> &ThreadTable {
        &self.threads
    }

    /// The map for a name in a template; `scratch` replaces the shared scratch map if given.
    pub(crate) fn named<'a>(&'a self, name: &str, scratch: Option<&'a Map>) -> Option<BorrowedFd<'a>> {
        Some(match name {
            abi::RINGS => self.rings.rings.as_fd(),
            abi::CONTROLS => self.rings.controls.as_fd(),
            abi::COUNTERS => self.counters.as_fd(),
            abi::SWITCHES => self.switches.as_fd(),
            abi::PIDS => self.threads.as_fd(),
            abi::SCRATCH => scratch.unwrap_or(&self.scratch).as_fd(),
            abi::CLAIMED => self.nesting.get()?.1.as_fd(),
            abi::CPU_BASES => self.cpu_bases.as_fd(),
            abi::CALLS => self.calls.as_fd(),
            #[cfg(feature = "bpf-log")]
            "AYA_LOGS" => self.logs.as_fd(),
            _ => return None,
        })
    }

    pub(crate) fn scratch(&self, event: &str) -> Result<Map, AttachError> {
        array(abi::SCRATCH_SIZE, self.options.cpus, SCRATCH).map_err(|cause| AttachError::new(event, cause))
    }

    /// The memory of the programs behind the dispatcher of system calls that begin, or end. It is made on first use.
    pub(crate) fn call_scratch(&self, enter: bool) -> Result<&Map, Cause> {
        let (begin, end) = &self.calls_scratch;
        let place = if enter { begin } else { end };
        if let Some(known) = place.get() {
            return Ok(known);
        }
        let made = array(abi::SCRATCH_SIZE, self.options.cpus, SCRATCH)?;
        Ok(place.get_or_init(|| made))
    }

    /// Creates the maps for programs that can preempt their own kind, on first use.
    pub(crate) fn prepare_nesting(&self) -> Result<(), Cause> {
        if self.nesting.get().is_some() {
            return Ok(());
        }
        let max_entries = self.options.cpus * abi::CLAIMS;
        let scratch = array(abi::SCRATCH_SIZE, max_entries, SCRATCH)?;
        let claims = array(abi::CLAIM_WORDS * size_of::<u64>(), max_entries, "tracer_claims")?;
        let _ = self.nesting.set((scratch, claims));
        Ok(())
    }

    pub(crate) fn nesting_scratch(&self) -> Option<&Map> {
        self.nesting.get().map(|(scratch, _)| scratch)
    }

    /// Sets the event of a system call's entry or exit.
    pub(crate) fn set_call(&self, enter: bool, number: u32, cookie: u64) -> Result<(), Cause> {
        let row = if enter { number } else { number + abi::CALL_NUMBERS };
        self.calls
            .update(&row.to_ne_bytes(), &cookie.to_ne_bytes())
            .map_err(|errno| Cause::System("update of the table of calls", errno))
    }

    pub(crate) fn set_cpu_base(&self, cpu: u32, address: u64) -> Result<(), Cause> {
        self.cpu_bases
            .update(&cpu.to_ne_bytes(), &address.to_ne_bytes())
            .map_err(|errno| Cause::System("update of the CPU table", errno))
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// In words of eight bytes.
    pub(crate) fn watermark(&self) -> u32 {
        self.options.watermark.min(self.rings.bytes / 2) / 8
    }

    pub(crate) fn ring_words(&self) -> u32 {
        self.rings.bytes / 8
    }

    /// The process whose threads are not traced; 0 if there is none.
    pub(crate) fn excluded_tgid(&self) -> u32 {
        if self.options.trace_own { 0 } else { self.options.own_tgid }
    }
}
