//! Merging the CPUs' records by time.

use std::{collections::VecDeque, time::Duration};

use tracer_abi::STAMP_SIZE;

use crate::sys::ring::{Drained, RingMemory, Seen};

/// How long a record is held back for older ones of other CPUs: a program stamps its record at most this long
/// before it becomes visible, unless its CPU is taken away from the machine meanwhile.
pub const SETTLE: Duration = Duration::from_millis(2);

/// A record in order.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// CPU that hit.
    pub cpu: u32,
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time: u64,
    /// The payload, common fields first.
    pub payload: &'a [u8],
}

/// One CPU's records that were taken from its ring and not handed on yet.
#[derive(Debug, Default)]
struct Held {
    /// End of each record in `bytes`, counted like `start`.
    ends: VecDeque<(u64, usize)>,
    bytes: Vec<u8>,
    start: usize,
}

impl Held {
    fn push(&mut self, time: u64, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        self.ends.push_back((time, self.bytes.len()));
    }

    fn first(&self) -> Option<u64> {
        self.ends.front().map(|(time, _)| *time)
    }

    /// Takes the first record, unless it is younger than `limit`: its time and payload.
    fn pop(&mut self, limit: u64) -> Option<(u64, &[u8])> {
        let (time, end) = *self.ends.front().filter(|(time, _)| *time <= limit)?;
        self.ends.pop_front();
        let start = std::mem::replace(&mut self.start, end);
        Some((time, self.bytes.get(start..end)?))
    }

    /// Gives the memory of handed-on records back.
    fn compact(&mut self) {
        if self.ends.is_empty() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            for (_, end) in &mut self.ends {
                *end -= self.start;
            }
            self.start = 0;
        }
    }
}

/// The rings of all CPUs, and what was taken from them.
#[derive(Debug)]
pub struct Drain {
    rings: Vec<RingMemory>,
    held: Vec<Held>,
    /// Records shorter than a stamp and common fields; there are none unless a program is broken.
    malformed: u64,
}

impl Drain {
    /// Takes the rings, by CPU number.
    pub fn new(rings: Vec<RingMemory>) -> Self {
        let held = rings.iter().map(|_| Held::default()).collect();
        Self { rings, held, malformed: 0 }
    }

    /// The rings, for waiting.
    pub fn rings(&self) -> &[RingMemory] {
        &self.rings
    }

    /// Records that could not be one.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Takes what is there and hands on, in order of time, all that is old enough: `now` is the clock's time before
    /// the call, in nanoseconds. Returns how many records were handed on.
    pub fn merge(&mut self, now: u64, hand_on: impl FnMut(Record<'_>)) -> u64 {
        let settled = now.saturating_sub(SETTLE.as_nanos() as u64);
        let limit = self.take(settled);
        self.hand_on(limit, hand_on)
    }

    /// Takes and hands on everything that is left; for the end, when no program runs any more.
    pub fn finish(&mut self, hand_on: impl FnMut(Record<'_>)) -> u64 {
        self.take(u64::MAX);
        self.hand_on(u64::MAX, hand_on)
    }

    /// Empties the rings and gives the time up to which no ring can bring an older record.
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
                // The record being written is younger than the last one here.
                limit = limit.min(last);
            }
        }
        limit
    }

    fn hand_on(&mut self, limit: u64, mut hand_on: impl FnMut(Record<'_>)) -> u64 {
        let mut count = 0;
        loop {
            // A handful of CPUs have something at any time; a scan beats a heap that is rebuilt each time.
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
            // All that this CPU has up to the next CPU's first goes on in one run.
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

    /// A drain without rings whose held records are given.
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
