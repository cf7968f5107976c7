//! The rings of an instance, and the records that were taken out of them but are not in the buffers yet.
//!
//! Records wait here only if they must be sorted across all CPUs. The collection of records
//! (`records/record_intake.rs`) empties the rings and moves the records on.

use crate::{ring::Drain, sys::bpf::cpu_ring::CpuRing};

/// Rings by CPU, and the records taken out of them.
#[derive(Debug)]
pub(crate) struct RingQueue {
    pub(crate) drain: Drain,
    /// Whether the records that were taken are complete, so that they are moved to the buffers.
    pub(crate) settled: bool,
    /// Times of requests for snapshots that are not among the records yet.
    pub(crate) requests: Vec<u64>,
    /// Number of times that the collection waited for records which belong between those that were taken.
    pub(crate) waits: u32,
    /// By CPU.
    pub(crate) tallies: Vec<Tally>,
    complete_until: u64,
}

/// Counts of a CPU's ring since its buffer was last emptied.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Records of events that were taken out of the ring.
    pub(crate) taken: u64,
    /// Records of events that were overwritten in the ring.
    overwritten: u64,
    /// Whether records were ever overwritten.
    any: bool,
    /// Whether records were overwritten before the next one.
    pub(crate) gap: bool,
}

impl Tally {
    pub(crate) fn add_gap(&mut self) {
        (self.any, self.gap) = (true, true);
    }
}

impl RingQueue {
    pub(crate) fn new(rings: Vec<CpuRing>) -> Self {
        let tallies = vec![Tally::default(); rings.len()];
        Self {
            drain: Drain::new(rings),
            settled: false,
            requests: Vec::new(),
            waits: 0,
            tallies,
            complete_until: 0,
        }
    }

    pub(crate) fn rings(&self) -> &[CpuRing] {
        self.drain.rings()
    }

    pub(crate) fn cpus(&self) -> u32 {
        self.rings().len() as u32
    }

    /// The time up to which all records were moved to the buffers (`CLOCK_MONOTONIC`), except those that a program made
    /// later than its hit.
    pub(crate) fn complete_until(&self) -> u64 {
        self.complete_until
    }

    pub(crate) fn set_complete_until(&mut self, time: u64) {
        self.complete_until = self.complete_until.max(time);
    }

    /// Lets programs overwrite the oldest records until they are collected, if each ring keeps at least the `bytes` of
    /// its CPU. Returns whether they do. Passes the payloads that wait by now to `show`.
    pub(crate) fn overwrite(&mut self, bytes: impl Fn(u32) -> usize, mut show: impl FnMut(&[u8])) -> bool {
        let (rings, _) = self.drain.parts();
        if (0..).zip(&*rings).any(|(cpu, ring)| ring.kept() < bytes(cpu)) {
            return false;
        }
        for ring in rings {
            ring.drain_controls(|_, _| {});
            if !ring.overwrites() {
                ring.waiting(|payload| {
                    show(payload);
                    false
                });
                ring.overwrite();
            }
        }
        true
    }

    pub(crate) fn reset_tally(&mut self, cpu: u32) {
        if let Some(tally) = self.tallies.get_mut(cpu as usize) {
            *tally = Tally::default();
        }
    }

    /// Number of records of events on a CPU that were overwritten in the ring since the last call. Programs have made
    /// `recorded` of them. `is_event` says whether a payload is an event's. While events fire it can be too small; the
    /// next call makes up for it.
    pub(crate) fn newly_overwritten(
        &mut self,
        cpu: u32,
        recorded: u64,
        is_event: impl Fn(&[u8]) -> bool,
    ) -> u64 {
        let ring = self.drain.parts().0.get_mut(cpu as usize);
        let Some((tally, ring)) = self.tallies.get_mut(cpu as usize).zip(ring) else { return 0 };
        if !tally.any {
            return 0;
        }
        let Some(waiting) = ring.waiting(is_event) else { return 0 };
        let there = tally.taken + waiting;
        let all = recorded.saturating_sub(there).max(tally.overwritten);
        all - std::mem::replace(&mut tally.overwritten, all)
    }

    /// Drops all records that are not in the buffers yet.
    pub(crate) fn discard(&mut self) {
        self.drain.discard();
        self.settled = false;
        self.requests.clear();
    }
}
