//! Merging the CPUs' records by time.

use std::{collections::VecDeque, ops::Range, time::Duration};

use tracer_abi::STAMP_SIZE;

use crate::sys::bpf::ring::{Drained, RingMemory, Seen};

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

/// The rings of all CPUs, and the records taken from them.
#[derive(Debug)]
pub struct Drain {
    rings: Vec<RingMemory>,
    held: Vec<Held>,
    /// Records too short for a stamp and common fields; 0 unless a program is broken.
    malformed: u64,
}

impl Drain {
    /// Takes the rings, by CPU number.
    pub fn new(rings: Vec<RingMemory>) -> Self {
        let held = rings.iter().map(|_| Held::default()).collect();
        Self { rings, held, malformed: 0 }
    }

    /// The rings, for waiting.
    #[cfg(any(test, feature = "internals"))]
    pub fn rings(&self) -> &[RingMemory] {
        &self.rings
    }

    /// Number of malformed records.
    #[cfg(any(test, feature = "internals"))]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Takes all available records and passes on, in time order, those that are old enough. `now` is the clock's time
    /// before the call, in nanoseconds. Returns the number of records passed on.
    pub fn merge(&mut self, now: u64, hand_on: impl FnMut(Record<'_>)) -> u64 {
        let settled = now.saturating_sub(SETTLE.as_nanos() as u64);
        let limit = self.take(settled);
        self.hand_on(limit, hand_on)
    }

    /// Takes and passes on everything that is left; for the end, when no program runs any more.
    pub fn finish(&mut self, hand_on: impl FnMut(Record<'_>)) -> u64 {
        self.take(u64::MAX);
        self.hand_on(u64::MAX, hand_on)
    }

    /// Empties the rings. Returns the time up to which no ring can deliver an older record.
    fn take(&mut self, settled: u64) -> u64 {
        let mut limit = settled;
        for (ring, held) in self.rings.iter_mut().zip(&mut self.held) {
            let malformed = &mut self.malformed;
            let mut last = held.first().unwrap_or(0);
            let how = ring.drain(|record| {
                let Some((stamp, payload)) = record.split_first_chunk::<STAMP_SIZE>() else {
                    *malformed += 1;
                    return Seen::Taken;
                };
                if payload.len() < tracer_abi::COMMON_SIZE {
                    *malformed += 1;
                    return Seen::Taken;
                }
                last = u64::from_ne_bytes(*stamp);
                held.push(last, payload);
                Seen::Taken
            });
            if how == Drained::Busy {
                // The record being written is younger than the last one here. Or its program was interrupted, and it is
                // older by the length of the interrupt, which `SETTLE` covers.
                limit = limit.min(last);
            }
        }
        limit
    }

    fn hand_on(&mut self, limit: u64, mut hand_on: impl FnMut(Record<'_>)) -> u64 {
        let mut count = 0;
        loop {
            // Only a few CPUs have records at any time, so a scan is faster than a heap that is rebuilt each time.
            let mut oldest: Option<(u64, usize)> = None;
            let mut second = limit;
            for (cpu, held) in self.held.iter().enumerate() {
                let Some(time) = held.first().filter(|time| *time <= limit) else { continue };
                match oldest {
                    Some((best, _)) if time >= best => second = second.min(time),
                    Some((best, _)) => {
                        second = second.min(best);
                        oldest = Some((time, cpu));
                    }
                    None => oldest = Some((time, cpu)),
                }
            }
            let Some((_, cpu)) = oldest else { break };
            let Some(held) = self.held.get_mut(cpu) else { break };
            // All records of this CPU up to the next CPU's first one are passed on in one run.
            while let Some((time, payload)) = held.pop(second) {
                hand_on(Record { cpu: cpu as u32, time, payload });
                count += 1;
            }
        }
        for held in &mut self.held {
            held.compact();
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drain without rings that holds these records.
    fn drain(cpus: &[&[u64]]) -> Drain {
        let mut drain = Drain { rings: Vec::new(), held: Vec::new(), malformed: 0 };
        for times in cpus {
            let mut held = Held::default();
            for time in *times {
                held.push(*time, &time.to_ne_bytes());
            }
            drain.held.push(held);
        }
        drain
    }

    #[test]
    fn records_come_in_order_of_time_up_to_the_limit() {
        let mut drain = drain(&[&[1, 4, 5, 9], &[], &[2, 3, 6, 12]]);
        let mut seen = Vec::new();
        let count = drain.hand_on(9, |record| {
            assert_eq!(record.payload, record.time.to_ne_bytes());
            seen.push((record.time, record.cpu));
        });
        assert_eq!(seen, [(1, 0), (2, 2), (3, 2), (4, 0), (5, 0), (6, 2), (9, 0)]);
        assert_eq!(count, 7);
        seen.clear();
        drain.finish(|record| seen.push((record.time, record.cpu)));
        assert_eq!(seen, [(12, 2)]);
    }

    #[test]
    fn a_record_of_a_program_that_was_interrupted_gets_its_place() {
        let mut drain = drain(&[&[1, 5, 7, 3, 3, 9], &[2, 4, 8]]);
        let mut seen = Vec::new();
        drain.finish(|record| {
            assert_eq!(record.payload, record.time.to_ne_bytes());
            seen.push(record.time);
        });
        assert_eq!(seen, [1, 2, 3, 3, 4, 5, 7, 8, 9]);
        assert!(drain.held.iter().all(|held| held.bytes.is_empty()));
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
