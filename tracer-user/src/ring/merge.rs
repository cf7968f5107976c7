//! Merging the CPUs' records by time.

use std::{collections::VecDeque, ops::Range, time::Duration};

use tracer_abi::{COMMON_SIZE, control};

use crate::sys::bpf::{
    cpu_ring::{CpuRing, Run},
    ring::Seen,
};

/// How long a record is held back for older records of other CPUs. A program stamps its record at most this long before
/// it becomes visible, unless the hypervisor takes its CPU away meanwhile.
pub const SETTLE: Duration = Duration::from_millis(2);

/// A record in time order.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The CPU of the hit.
    pub cpu: u32,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time: u64,
    /// The payload, common fields first.
    pub payload: &'a [u8],
}

/// Records taken from one CPU's ring and not passed on yet.
#[derive(Debug, Default)]
struct Held {
    /// Time of each record and its range in `bytes`, in time order.
    records: VecDeque<(u64, Range<usize>)>,
    bytes: Vec<u8>,
}

impl Held {
    fn push(&mut self, time: u64, payload: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        let record = (time, start..self.bytes.len());
        // If a program was interrupted before it reserved space in the ring, younger records precede its own.
        let younger = self.records.iter().rev().take_while(|(other, _)| *other > time).count();
        if younger == 0 {
            self.records.push_back(record);
        } else {
            self.records.insert(self.records.len().saturating_sub(younger), record);
        }
    }

    fn first(&self) -> Option<u64> {
        self.records.front().map(|(time, _)| *time)
    }

    /// Takes the first record as time and payload, unless it is younger than `limit`.
    fn pop(&mut self, limit: u64) -> Option<(u64, &[u8])> {
        self.records.front().filter(|(time, _)| *time <= limit)?;
        let (time, place) = self.records.pop_front()?;
        Some((time, self.bytes.get(place)?))
    }

    /// Releases the memory of records that were passed on.
    fn compact(&mut self) {
        let Some((_, first)) = self.records.front() else {
            self.bytes.clear();
            return;
        };
        if first.start <= self.bytes.len() / 2 {
            return;
        }
        // An older record may have a range after younger ones.
        let start = self.records.iter().map(|(_, place)| place.start).min().unwrap_or(0);
        self.bytes.drain(..start);
        for (_, place) in &mut self.records {
            *place = place.start - start..place.end - start;
        }
    }
}

/// Records that were taken from the rings of all CPUs and not passed on yet.
#[derive(Debug, Default)]
pub struct Merge {
    /// By CPU number; the last one holds the requests for snapshots.
    held: Vec<Held>,
}

impl Merge {
    /// Holds no records of this many CPUs yet.
    pub fn new(cpus: usize) -> Self {
        Self { held: std::iter::repeat_with(Held::default).take(cpus + 1).collect() }
    }

    /// Holds a record of a CPU. A CPU's records arrive roughly in order of time.
    pub fn push(&mut self, cpu: u32, time: u64, payload: &[u8]) {
        if let Some(held) = self.held.get_mut(cpu as usize) {
            held.push(time, payload);
        }
    }

    /// Holds a request for a snapshot: a record of the kind [`control::SNAPSHOT`], which is passed on after the records
    /// of the same time.
    pub fn push_snapshot(&mut self, time: u64) {
        if let Some(held) = self.held.last_mut() {
            held.push(time, &u64::from(control::SNAPSHOT).to_ne_bytes());
        }
    }

    /// Whether no record is held.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.held.iter().all(|held| held.records.is_empty())
    }

    /// Drops all records.
    pub fn clear(&mut self) {
        self.held.fill_with(Held::default);
    }

    /// Passes on, in time order, the records that are not younger than `limit`, until `consume` returns false. Returns
    /// whether it passed on all of them.
    pub fn pass_on(&mut self, limit: u64, mut consume: impl FnMut(Record<'_>) -> bool) -> bool {
        let all = self.pass(limit, &mut consume);
        for held in &mut self.held {
            held.compact();
        }
        all
    }

    fn pass(&mut self, limit: u64, consume: &mut impl FnMut(Record<'_>) -> bool) -> bool {
        while let Some((cpu, until)) = oldest(self.held.iter().map(Held::first), limit) {
            let Some(held) = self.held.get_mut(cpu) else { return true };
            while let Some((time, payload)) = held.pop(until) {
                if !consume(Record { cpu: cpu as u32, time, payload }) {
                    return false;
                }
            }
        }
        true
    }
}

/// The CPU with the oldest of the first records that are not younger than `limit`, and the time up to which its records
/// precede those of the other CPUs. They are passed on in one run.
fn oldest(firsts: impl Iterator<Item = Option<u64>>, limit: u64) -> Option<(usize, u64)> {
    // Only a few CPUs have records at any time, so a scan is faster than a heap that is rebuilt each time.
    let mut oldest: Option<(u64, usize)> = None;
    let mut second = limit;
    for (cpu, time) in firsts.enumerate() {
        let Some(time) = time.filter(|time| *time <= limit) else { continue };
        match oldest {
            Some((best, _)) if time >= best => second = second.min(time),
            Some((best, _)) => {
                second = second.min(best);
                oldest = Some((time, cpu));
            }
            None => oldest = Some((time, cpu)),
        }
    }
    oldest.map(|(_, cpu)| (cpu, second))
}

/// The rings of all CPUs, and the records taken from them.
#[derive(Debug)]
pub struct Drain {
    rings: Vec<CpuRing>,
    merge: Merge,
    /// The data in the rings at the last call, by CPU.
    runs: Vec<Run>,
    /// Records too short for common fields; 0 unless a program is broken.
    malformed: u64,
}

impl Drain {
    /// Takes the rings, by CPU number.
    pub fn new(rings: Vec<CpuRing>) -> Self {
        let merge = Merge::new(rings.len());
        Self { rings, merge, runs: Vec::new(), malformed: 0 }
    }

    /// The rings.
    pub fn rings(&self) -> &[CpuRing] {
        &self.rings
    }

    /// The rings, and the records taken from them, for a reader that takes records in its own way.
    pub fn parts(&mut self) -> (&mut [CpuRing], &mut Merge) {
        (&mut self.rings, &mut self.merge)
    }

    /// The rings, without the records that were taken from them.
    #[cfg(any(test, feature = "internals"))]
    pub fn into_rings(self) -> Vec<CpuRing> {
        self.rings
    }

    /// Number of malformed records.
    #[cfg(any(test, feature = "internals"))]
    pub fn malformed(&self) -> u64 {
        self.malformed + self.rings.iter().map(CpuRing::malformed).sum::<u64>()
    }

    /// Passes on all available records that are old enough, in time order. `now` is the clock's time before the call, in
    /// nanoseconds.
    pub fn merge(&mut self, now: u64, consume: impl FnMut(Record<'_>)) {
        self.pass_on(now.saturating_sub(SETTLE.as_nanos() as u64), consume);
    }

    /// Passes on all remaining records. To be called at the end, when no program runs any more.
    pub fn finish(&mut self, consume: impl FnMut(Record<'_>)) {
        self.pass_on(u64::MAX, consume);
    }

    /// Passes on the records that are not younger than `until`, nor than the last record of a ring in which a record is
    /// being written. `u64::MAX` passes on all.
    ///
    /// Records are read in place. They are copied where a ring's records are not in order of time, or where they would
    /// stay in a ring that has little space.
    fn pass_on(&mut self, until: u64, mut consume: impl FnMut(Record<'_>)) {
        let mut limit = until;
        self.runs.clear();
        for (ring, held) in self.rings.iter_mut().zip(&self.merge.held) {
            ring.drain_controls(|_, _| {});
            let run = ring.scan(limit);
            if run.busy && until != u64::MAX {
                // The record being written is younger than the last one here. Or its program was interrupted, and it is
                // older by the length of the interrupt, which `SETTLE` covers.
                limit = limit.min(run.last.or(held.first()).unwrap_or(0));
            }
            self.runs.push(run);
        }
        for ((ring, run), held) in self.rings.iter_mut().zip(&self.runs).zip(&mut self.merge.held) {
            if !run.is_sorted || held.first().is_some() {
                self.malformed += take(ring, run, held);
            }
        }
        self.pass_in_order(limit, &mut consume);
        for ((ring, run), held) in self.rings.iter_mut().zip(&mut self.runs).zip(&mut self.merge.held) {
            if ring.is_crowded(run) {
                run.want_all();
                self.malformed += take(ring, run, held);
            }
            held.compact();
            ring.release();
        }
    }

    /// Passes on records, each CPU's from the copies if there are any, else from its run.
    fn pass_in_order(&mut self, limit: u64, consume: &mut impl FnMut(Record<'_>)) {
        let Self { rings, merge, runs, malformed } = self;
        let sources = rings.iter().zip(&*runs).zip(&merge.held);
        let first = |((ring, run), held): ((&CpuRing, &Run), &Held)| {
            held.first().or_else(|| ring.peek(run).map(|(time, _)| time))
        };
        let mut firsts: Vec<Option<u64>> = sources.map(first).collect();
        while let Some((cpu, until)) = oldest(firsts.iter().copied(), limit) {
            let (Some(ring), Some(run), Some(held)) =
                (rings.get_mut(cpu), runs.get(cpu), merge.held.get_mut(cpu))
            else {
                return;
            };
            let mut next = None;
            if held.first().is_some() {
                while let Some((time, payload)) = held.pop(until) {
                    consume(Record { cpu: cpu as u32, time, payload });
                }
                next = held.first();
            } else {
                while let Some((time, payload)) = ring.peek(run) {
                    if time > until {
                        next = Some(time);
                        break;
                    }
                    let length = payload.len();
                    if length < COMMON_SIZE {
                        *malformed += 1;
                    } else {
                        consume(Record { cpu: cpu as u32, time, payload });
                    }
                    ring.step(length);
                }
            }
            if let Some(first) = firsts.get_mut(cpu) {
                *first = next;
            }
        }
    }

    /// Drops all records, also those in the rings.
    pub fn discard(&mut self) {
        self.merge.clear();
        for ring in &mut self.rings {
            ring.drain_controls(|_, _| {});
            ring.drain(|_, _| Seen::Taken);
            let _ = ring.was_overwritten();
        }
    }
}

/// Takes the wanted records of a run out of a ring. Returns the number of malformed ones.
fn take(ring: &mut CpuRing, run: &Run, held: &mut Held) -> u64 {
    let mut malformed = 0;
    while ring.is_wanted(run)
        && let Some((time, payload)) = ring.peek(run)
    {
        let length = payload.len();
        if length < COMMON_SIZE {
            malformed += 1;
        } else {
            held.push(time, payload);
        }
        ring.step(length);
    }
    malformed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds these records.
    fn merge(cpus: &[&[u64]]) -> Merge {
        let mut merge = Merge::new(cpus.len());
        for (cpu, times) in (0..).zip(cpus) {
            for time in *times {
                merge.push(cpu, *time, &time.to_ne_bytes());
            }
        }
        merge
    }

    #[test]
    fn records_come_in_order_of_time_up_to_the_limit() {
        let mut merge = merge(&[&[1, 4, 5, 9], &[], &[2, 3, 6, 12]]);
        let mut seen = Vec::new();
        let all = merge.pass_on(9, |record| {
            assert_eq!(record.payload, record.time.to_ne_bytes());
            seen.push((record.time, record.cpu));
            true
        });
        assert_eq!(seen, [(1, 0), (2, 2), (3, 2), (4, 0), (5, 0), (6, 2), (9, 0)]);
        assert!(all && !merge.is_empty());
        seen.clear();
        merge.pass_on(u64::MAX, |record| {
            seen.push((record.time, record.cpu));
            true
        });
        assert_eq!(seen, [(12, 2)]);
        assert!(merge.is_empty());
    }

    #[test]
    fn passing_on_stops_and_continues() {
        let mut merge = merge(&[&[1, 3], &[2, 4]]);
        let mut seen = Vec::new();
        assert!(!merge.pass_on(u64::MAX, |record| {
            seen.push(record.time);
            record.time < 3
        }));
        assert!(merge.pass_on(u64::MAX, |record| {
            seen.push(record.time);
            true
        }));
        assert_eq!(seen, [1, 2, 3, 4]);
        merge.push(1, 5, &[]);
        merge.clear();
        assert!(merge.is_empty());
    }

    #[test]
    fn a_snapshot_comes_after_the_records_of_its_time() {
        let mut merge = merge(&[&[1, 4, 5], &[2, 4]]);
        for time in [4, 3] {
            merge.push_snapshot(time);
        }
        let mut seen = Vec::new();
        // The caller stops at each snapshot.
        while !merge.pass_on(u64::MAX, |record| {
            seen.push((record.time, record.cpu));
            record.cpu < 2
        }) {}
        assert_eq!(seen, [(1, 0), (2, 1), (3, 2), (4, 0), (4, 1), (4, 2), (5, 0)]);
    }

    #[test]
    fn a_record_of_a_program_that_was_interrupted_gets_its_place() {
        let mut merge = merge(&[&[1, 5, 7, 3, 3, 9], &[2, 4, 8]]);
        let mut seen = Vec::new();
        merge.pass_on(u64::MAX, |record| {
            assert_eq!(record.payload, record.time.to_ne_bytes());
            seen.push(record.time);
            true
        });
        assert_eq!(seen, [1, 2, 3, 3, 4, 5, 7, 8, 9]);
        assert!(merge.held.iter().all(|held| held.bytes.is_empty()));
        let mut held = Held::default();
        for time in [10, 20, 30, 15, 40] {
            held.push(time, &[time as u8; 8]);
        }
        assert_eq!(held.pop(12), Some((10, &[10; 8][..])));
        assert_eq!(held.pop(12), None);
        assert_eq!(held.pop(40), Some((15, &[15; 8][..])));
        held.compact();
        assert_eq!(held.pop(40), Some((20, &[20; 8][..])));
        assert_eq!(held.pop(40), Some((30, &[30; 8][..])));
        held.compact();
        assert_eq!(held.bytes.len(), 8);
        assert_eq!(held.pop(40), Some((40, &[40; 8][..])));
    }

    #[test]
    fn memory_of_handed_on_records_is_given_back() {
        let mut held = Held::default();
        for time in 0..100 {
            held.push(time, &[time as u8; 16]);
        }
        for _ in 0..60 {
            held.pop(u64::MAX);
        }
        held.compact();
        assert_eq!(held.bytes.len(), 40 * 16);
        assert_eq!(held.pop(59), None);
        assert_eq!(held.pop(60), Some((60, &[60; 16][..])));
        assert_eq!(held.first(), Some(61));
    }
}
