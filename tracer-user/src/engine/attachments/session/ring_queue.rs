//! The rings of an instance, and the records that were taken out of them but are not in the buffers yet.
//!
//! Records wait here only where they must be put in order over all CPUs. The collection of records
//! (`records/record_intake.rs`) empties the rings and moves the records on.

use std::collections::VecDeque;

use crate::sys::bpf::ring::RingMemory;

/// A record out of a ring.
#[derive(Debug)]
pub(in crate::engine) struct RingRecord {
    pub(in crate::engine) stamp: u64,
    pub(in crate::engine) cpu: u32,
    pub(in crate::engine) payload: Vec<u8>,
}

/// Rings by CPU, and what was taken out of them.
#[derive(Debug)]
pub(in crate::engine) struct RingQueue {
    pub(in crate::engine) rings: Vec<RingMemory>,
    /// Records in the order in which they were taken.
    pub(in crate::engine) taken: Vec<RingRecord>,
    /// Records in the order of their stamps, with none missing in between.
    pub(in crate::engine) ordered: VecDeque<RingRecord>,
    /// How many times the collection waited for records that belong between those in `taken`.
    pub(in crate::engine) waits: u32,
}

impl RingQueue {
    /// A queue of these rings.
    pub(in crate::engine) fn new(rings: Vec<RingMemory>) -> Self {
        Self { rings, taken: Vec::new(), ordered: VecDeque::new(), waits: 0 }
    }

    /// Number of CPUs.
    pub(in crate::engine) fn cpus(&self) -> u32 {
        self.rings.len() as u32
    }

    /// Throws away everything that is not in the buffers yet.
    pub(in crate::engine) fn discard(&mut self) {
        self.taken.clear();
        self.ordered.clear();
        for ring in &mut self.rings {
            ring.drain(|_| crate::sys::bpf::ring::Seen::Taken);
        }
    }
}
