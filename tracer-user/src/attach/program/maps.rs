//! The maps that all programs of a session share.

use std::{
    mem::offset_of,
    os::fd::{AsFd, BorrowedFd},
    sync::OnceLock,
};

use tracer_abi as abi;
use tracer_abi::{Counters, Switches};

use crate::{
    attach::{AttachError, Cause},
    event::Slot,
    sys::bpf::{
        map::{Map, MapKind, MapSpec, MappedArray, flag},
        ring::RingMemory,
    },
};

/// Sizes and options of a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of each CPU's ring buffer; rounded up to a power of two of at least a page.
    pub ring_bytes: u32,
    /// Bytes in a CPU's ring at which its reader is woken.
    pub watermark: u32,
    /// Number of possible CPUs (`possible`).
    pub cpus: u32,
    /// Number of events that can be attached.
    pub slots: u32,
    /// Whether only threads given by [`crate::attach::Session::add_pid`] are traced.
    pub pid_gate: bool,
    /// Whether thread lists can be used ([`crate::attach::Session::set_lists`]).
    pub pid_lists: bool,
    /// This process's id in the initial pid namespace.
    pub own_tgid: u32,
    /// Whether this process is traced like any other.
    pub trace_own: bool,
}

/// The shared maps.
#[derive(Debug)]
pub(in crate::attach) struct Shared {
    options: Options,
    rings: Map,
    counters: Map,
    /// Whether the counters are one value.
    one_table: bool,
    counts: MappedArray,
    switches: Map,
    words: MappedArray,
    pids: Map,
    scratch: Map,
    cpu_bases: Map,
    calls: Map,
    /// Scratch memory that hits claim, and the table of claims.
    nesting: OnceLock<(Map, Map)>,
    #[cfg(feature = "bpf-log")]
    logs: Map,
}

/// Byte offset of an event's word. Slots after the last word share words with other slots, and nothing reads these.
fn soft_offset(slot: Slot) -> usize {
    offset_of!(Switches, soft) + 4 * (slot.index() % abi::SOFT_SLOTS)
}

fn paused_offset(place: u16) -> usize {
    offset_of!(Switches, paused) + 4 * (usize::from(place) % abi::HISTS)
}

fn awaited_offset(place: u16) -> usize {
    offset_of!(Switches, awaited) + 4 * (usize::from(place) % abi::HISTS)
}

fn count_offset(place: u16) -> usize {
    offset_of!(Switches, counts) + 8 * usize::from(place)
}

/// Capacity of the pid table.
const PID_ENTRIES: u32 = 32_768;

impl Shared {
    /// Creates the maps and maps their memory. The second value is each CPU's ring buffer.
    pub(in crate::attach) fn new(options: &Options) -> Result<(Self, Vec<RingMemory>), AttachError> {
        let fail = |kind| move |errno| AttachError::new("session", Cause::Map(kind, errno));
        let page = rustix::param::page_size() as u32;
        let ring_bytes = options.ring_bytes.max(page).next_power_of_two();
        let ring = |bytes, name| {
            Map::create(&MapSpec {
                kind: MapKind::RingBuf,
                key_size: 0,
                value_size: 0,
                max_entries: bytes,
                flags: 0,
                inner: None,
                name,
            })
            .map_err(fail("ring buffer"))
        };
        let first = ring(ring_bytes, "tracer_ring")?;
        let rings = Map::create(&MapSpec {
            kind: MapKind::ArrayOfMaps,
            key_size: 4,
            value_size: 4,
            max_entries: options.cpus,
            flags: 0,
            inner: Some(first.as_fd()),
            name: "tracer_rings",
        })
        .map_err(fail("array of maps"))?;
        let mut inner = vec![first];
        for _ in 1..options.cpus {
            inner.push(ring(ring_bytes, "tracer_ring")?);
        }
        rings.set_fds(&inner).map_err(fail("array of maps"))?;
        let memory = inner
            .into_iter()
            .map(RingMemory::new)
            .collect::<Result<Vec<_>, _>>()
            .map_err(fail("ring buffer"))?;
        let array = |name, value_size: usize, max_entries, flags| {
            Map::create(&MapSpec {
                kind: MapKind::Array,
                key_size: 4,
                value_size: value_size as u32,
                max_entries,
                flags,
                inner: None,
                name,
            })
            .map_err(fail("array"))
        };
        // All rows are in one value, which programs access by its address. Older kernels refuse values above 4 MiB.
        let (rows, row) = (options.slots.max(1) * options.cpus, size_of::<Counters>());
        let whole = array("tracer_counts", rows as usize * row, 1, flag::MMAPABLE);
        let one_table = whole.is_ok();
        let counters = whole.or_else(|_| array("tracer_counts", row, rows, flag::MMAPABLE))?;
        let switches = array("tracer_switch", size_of::<Switches>(), 1, flag::MMAPABLE)?;
        let pids = Map::create(&MapSpec {
            kind: MapKind::Hash,
            key_size: 4,
            value_size: 1,
            max_entries: if options.pid_gate || options.pid_lists { PID_ENTRIES } else { 1 },
            // Preallocated: an allocation at a fork would show among the traced events.
            flags: 0,
            inner: None,
            name: "tracer_pids",
        })
        .map_err(fail("hash"))?;
        let mut options = options.clone();
        options.ring_bytes = ring_bytes;
        let shared = Self {
            counts: counters.mapped().map_err(fail("mapped array"))?,
            words: switches.mapped().map_err(fail("mapped array"))?,
            scratch: array("tracer_scratch", abi::SCRATCH_SIZE, options.cpus, 0)?,
            cpu_bases: array("tracer_cpus", 8, options.cpus, 0)?,
            calls: array("tracer_calls", 8, 2 * abi::CALL_NUMBERS, 0)?,
            // aya-log finds the map by its name.
            #[cfg(feature = "bpf-log")]
            logs: ring(1 << 17, "AYA_LOGS")?,
            nesting: OnceLock::new(),
            rings,
            counters,
            one_table,
            switches,
            pids,
            options,
        };
        shared.halt(abi::halted::OFF, true);
        Ok((shared, memory))
    }

    /// The map for a name in a template; `scratch` replaces the shared scratch map if given.
    pub(in crate::attach) fn named<'a>(
        &'a self,
        name: &str,
        scratch: Option<&'a Map>,
    ) -> Option<BorrowedFd<'a>> {
        Some(match name {
            abi::RINGS => self.rings.as_fd(),
            abi::COUNTERS => self.counters.as_fd(),
            abi::SWITCHES => self.switches.as_fd(),
            abi::PIDS => self.pids.as_fd(),
            abi::SCRATCH => scratch.unwrap_or(&self.scratch).as_fd(),
            abi::CLAIMED => self.nesting.get()?.1.as_fd(),
            abi::CPU_BASES => self.cpu_bases.as_fd(),
            abi::CALLS => self.calls.as_fd(),
            #[cfg(feature = "bpf-log")]
            "AYA_LOGS" => self.logs.as_fd(),
            _ => return None,
        })
    }

    /// Creates scratch memory for one program, with this many extra bytes.
    pub(in crate::attach) fn scratch(&self, event: &str, more: usize) -> Result<Map, AttachError> {
        Map::create(&MapSpec {
            kind: MapKind::Array,
            key_size: 4,
            value_size: (abi::SCRATCH_SIZE + more) as u32,
            max_entries: self.options.cpus,
            flags: 0,
            inner: None,
            name: "tracer_scratch",
        })
        .map_err(|errno| AttachError::new(event, Cause::Map("array", errno)))
    }

    /// Creates the maps for programs that can preempt their own kind, on first use.
    pub(in crate::attach) fn prepare_nesting(&self) -> Result<(), Cause> {
        if self.nesting.get().is_some() {
            return Ok(());
        }
        let max_entries = self.options.cpus * abi::CLAIMS;
        let spec = MapSpec {
            kind: MapKind::Array,
            key_size: 4,
            value_size: abi::SCRATCH_SIZE as u32,
            max_entries,
            flags: 0,
            inner: None,
            name: "tracer_scratch",
        };
        let scratch = Map::create(&spec).map_err(|errno| Cause::Map("array", errno))?;
        let value_size = (abi::CLAIM_WORDS * size_of::<u64>()) as u32;
        let claims = MapSpec { value_size, name: "tracer_claims", ..spec };
        let claims = Map::create(&claims).map_err(|errno| Cause::Map("array", errno))?;
        let _ = self.nesting.set((scratch, claims));
        Ok(())
    }

    /// Scratch memory that hits claim.
    pub(in crate::attach) fn nesting_scratch(&self) -> Option<&Map> {
        self.nesting.get().map(|(scratch, _)| scratch)
    }

    /// Sets or clears one of the reasons in [`abi::halted`] not to take hits.
    pub(in crate::attach) fn halt(&self, reason: u32, halt: bool) {
        let _ = self.words.change(offset_of!(Switches, halted), reason, halt);
    }

    pub(in crate::attach) fn halted(&self) -> u32 {
        self.words.load_word(offset_of!(Switches, halted)).unwrap_or(0)
    }

    pub(in crate::attach) fn soft(&self, slot: Slot) -> bool {
        self.words.load_word(soft_offset(slot)).is_some_and(|word| word != 0)
    }

    pub(in crate::attach) fn set_soft(&self, slot: Slot, off: bool) {
        let _ = self.words.store(soft_offset(slot), u32::from(off));
    }

    pub(in crate::attach) fn count(&self, place: u16) -> u64 {
        self.words.load(count_offset(place)).unwrap_or(0)
    }

    pub(in crate::attach) fn set_count(&self, place: u16, count: u64) {
        let _ = self.words.store_long(count_offset(place), count);
    }

    pub(in crate::attach) fn hist_paused(&self, place: u16) -> bool {
        self.words.load_word(paused_offset(place)).is_some_and(|word| word != 0)
    }

    pub(in crate::attach) fn pause_hist(&self, place: u16, paused: bool) {
        let _ = self.words.store(paused_offset(place), u32::from(paused));
    }

    pub(in crate::attach) fn await_hist(&self, place: u16, what: u32) -> bool {
        self.words.swap(awaited_offset(place), what) == Some(0)
    }

    pub(in crate::attach) fn lost_snapshot(&self) -> bool {
        self.words.swap(offset_of!(Switches, snapshot), 0).is_some_and(|word| word != 0)
    }

    /// Sets the event of a system call's entry or exit.
    pub(in crate::attach) fn set_call(&self, enter: bool, number: u32, cookie: u64) -> Result<(), Cause> {
        let row = if enter { number } else { number + abi::CALL_NUMBERS };
        self.calls
            .update(&row.to_ne_bytes(), &cookie.to_ne_bytes())
            .map_err(|errno| Cause::System("update of the table of calls", errno))
    }

    /// Sets the address of a CPU's preempt count.
    pub(in crate::attach) fn set_cpu_base(&self, cpu: u32, address: u64) -> Result<(), Cause> {
        self.cpu_bases
            .update(&cpu.to_ne_bytes(), &address.to_ne_bytes())
            .map_err(|errno| Cause::System("update of the CPU table", errno))
    }

    pub(in crate::attach) fn add_pid(&self, pid: u32) -> Result<(), AttachError> {
        self.set_pid(pid, abi::lists::TRACED)
    }

    pub(in crate::attach) fn set_pid(&self, pid: u32, lists: u8) -> Result<(), AttachError> {
        let done = if lists == 0 {
            self.pids.delete(&pid.to_ne_bytes()).map(drop)
        } else {
            self.pids.update(&pid.to_ne_bytes(), &[lists])
        };
        done.map_err(|errno| AttachError::new(format!("pid {pid}"), Cause::System("pid table", errno)))
    }

    pub(in crate::attach) fn listed(&self) -> Result<Vec<(u32, u8)>, AttachError> {
        let fail = |errno| AttachError::new("threads", Cause::System("pid table", errno));
        let mut listed = Vec::new();
        for key in self.pids.keys().map_err(fail)? {
            let value = self.pids.lookup(&key).map_err(fail)?;
            if let (Some(pid), Some(lists)) = (key.first_chunk(), value.as_deref().and_then(<[u8]>::first)) {
                listed.push((u32::from_ne_bytes(*pid), *lists));
            }
        }
        Ok(listed)
    }

    pub(in crate::attach) fn set_lists(&self, in_force: u8) {
        let _ = self.words.store(offset_of!(Switches, lists), u32::from(in_force));
    }

    /// Clears an event's row. No program may use the row meanwhile.
    pub(in crate::attach) fn clear_counters(&self, slot: Slot) {
        let row = self.options.cpus as usize * size_of::<Counters>();
        for at in (slot.index() * row..(slot.index() + 1) * row).step_by(4) {
            let _ = self.counts.store(at, 0);
        }
    }

    pub(in crate::attach) fn counters(&self, slot: Slot, cpu: u32) -> Counters {
        let row = slot.index() * self.options.cpus as usize + cpu as usize;
        let word = |at: usize| self.counts.load(row * size_of::<Counters>() + at).unwrap_or(0);
        Counters { passed: word(0), filtered: word(8), recorded: word(16), dropped: word(24) }
    }

    pub(in crate::attach) fn one_table(&self) -> bool {
        self.one_table
    }

    pub(in crate::attach) fn slots(&self) -> u32 {
        self.options.slots
    }

    pub(in crate::attach) fn cpus(&self) -> u32 {
        self.options.cpus
    }

    pub(in crate::attach) fn watermark(&self) -> u32 {
        self.options.watermark.min(self.options.ring_bytes / 2)
    }

    pub(in crate::attach) fn pid_gate(&self) -> bool {
        self.options.pid_gate
    }

    pub(in crate::attach) fn pid_lists(&self) -> bool {
        self.options.pid_lists
    }

    /// The process whose threads are not traced; 0 if there is none.
    pub(in crate::attach) fn excluded_tgid(&self) -> u32 {
        if self.options.trace_own { 0 } else { self.options.own_tgid }
    }

    pub(in crate::attach) fn pids(&self) -> BorrowedFd<'_> {
        self.pids.as_fd()
    }

    pub(in crate::attach) fn own_tgid(&self) -> u32 {
        self.options.own_tgid
    }
}
