//! From the rings into the buffers: what an instance's programs have recorded so far.
//!
//! Each CPU's records are put into that CPU's buffer as they come. Where triggers may take snapshots, and under the clock
//! that counts records, all CPUs' records are put in order first: a snapshot holds what is older than the control
//! record that asks for it, on whatever CPU.

use std::{borrow::Cow, time::Duration};

use tracer_abi::{COMMON_SIZE, STAMP_SIZE, control};

use super::{live::Live, mirror::Mirror, stack, state::Instance};
use crate::{
    buffer::clock::{Clock, Conversion, monotonic},
    control::{facts::Facts, tasks::TaskNames},
    render::RenderEnv,
    sys::ring::{Drained, Seen},
};

/// How long after a moment a record may still come that is older, in nanoseconds: its stamp was had, and the interrupt or
/// the host of a virtual machine took its time.
const SETTLED: u64 = 2_000_000;
/// How often records that are being written are waited for.
const PATIENCE: u32 = 100;

/// A record out of a ring.
struct Taken {
    stamp: u64,
    cpu: u32,
    payload: Vec<u8>,
}

impl Mirror {
    /// Takes what an instance's programs have recorded into its buffers. What it gives is the trace clock's time up to
    /// which no older record can come any more.
    pub fn collect(&mut self, instance: u32) -> u64 {
        if let Some(names) = &mut self.names {
            names.collect(&mut self.tasks);
        }
        let stack = self.stack_kinds()[0];
        let Some(state) = self.instances.get_mut(&instance) else { return u64::MAX };
        if state.live.is_none() {
            return u64::MAX;
        }
        let mut books = Books { tasks: &mut self.tasks, facts: &self.facts, stack };
        let horizon = if state.armed || state.clock == Clock::Counter {
            in_order(state, &mut books);
            u64::MAX
        } else {
            by_cpu(state, &mut books)
        };
        let Instance { live, buffer, .. } = state;
        if let Some(live) = live {
            for cpu in 0..live.rings.len() as u32 {
                let dropped = live.newly_dropped(cpu);
                if let Some(buffer) = buffer.cpu_mut(cpu) {
                    buffer.add_dropped(dropped);
                }
            }
        }
        horizon
    }

    /// Takes in what the programs of all instances have recorded.
    pub fn collect_all(&mut self) {
        for instance in self.recording() {
            self.collect(instance);
        }
    }
}

/// What is looked up and kept for a record.
struct Books<'a> {
    tasks: &'a mut TaskNames,
    facts: &'a Facts,
    /// Kind of the records of the kernel's stack.
    stack: u16,
}

impl Books<'_> {
    /// Sees a record; the record as it is to be kept.
    fn enter<'r>(&mut self, payload: &'r [u8], wants_groups: bool) -> Cow<'r, [u8]> {
        self.tasks.meet(pid_of(payload), wants_groups);
        if kind_of(payload) == self.stack {
            let name = |address| self.facts.symbol(address).map(|symbol| symbol.name.to_owned());
            Cow::Owned(stack::without_hook(payload, name))
        } else {
            Cow::Borrowed(payload)
        }
    }
}

/// Takes records CPU by CPU.
fn by_cpu(state: &mut Instance, books: &mut Books<'_>) -> u64 {
    let conversion = Conversion::now(state.clock);
    let mut horizon = monotonic();
    let wants_groups = state.options.is("record-tgid");
    let Instance { live: Some(live), buffer, cpus, .. } = state else { return u64::MAX };
    for (cpu, ring) in (0..).zip(&mut live.rings) {
        let (Some(buffer), Some(wanted)) = (buffer.cpu_mut(cpu), cpus.get(cpu as usize)) else {
            continue;
        };
        let mut last = 0;
        let how = ring.drain(|record| {
            if let Some((stamp, payload)) = split(record) {
                last = stamp;
                if *wanted && kind_of(payload) < control::FIRST {
                    buffer.push(conversion.time(stamp, 0), &books.enter(payload, wants_groups));
                }
            }
            Seen::Taken
        });
        if how == Drained::Busy && last > 0 {
            horizon = horizon.min(last);
        }
    }
    conversion.time(horizon, 0)
}

/// Takes the records of all CPUs in the order in which they happened, and the snapshots that triggers asked for in
/// between.
fn in_order(state: &mut Instance, books: &mut Books<'_>) {
    let conversion = Conversion::now(state.clock);
    let wants_groups = state.options.is("record-tgid");
    let Some(live) = &mut state.live else { return };
    let taken = settled(live);
    let lost = live.asked().lost_snapshot();
    for Taken { stamp, cpu, payload } in taken {
        let kind = kind_of(&payload);
        if kind == control::SNAPSHOT {
            state.snap();
        }
        let wanted = state.cpus.get(cpu as usize).copied().unwrap_or_default();
        if !wanted || kind >= control::FIRST {
            continue;
        }
        let payload = books.enter(&payload, wants_groups);
        state.counted += 1;
        if let Some(buffer) = state.buffer.cpu_mut(cpu) {
            buffer.push(conversion.time(stamp, state.counted), &payload);
        }
    }
    if lost {
        state.snap();
    }
}

/// All records in order, with none missing that is older than the last snapshot.
fn settled(live: &mut Live) -> Vec<Taken> {
    let mut all = Vec::new();
    for _ in 0..PATIENCE {
        let mut busy = false;
        for (cpu, ring) in (0..).zip(&mut live.rings) {
            let how = ring.drain(|record| {
                if let Some((stamp, payload)) = split(record) {
                    all.push(Taken { stamp, cpu, payload: payload.to_vec() });
                }
                Seen::Taken
            });
            busy |= how == Drained::Busy;
        }
        let snapshots = all.iter().filter(|taken| kind_of(&taken.payload) == control::SNAPSHOT);
        let early = snapshots.map(|taken| taken.stamp).max();
        let wait = early.map_or(0, |stamp| (stamp + SETTLED).saturating_sub(monotonic()));
        if !busy && wait == 0 {
            break;
        }
        std::thread::sleep(Duration::from_nanos(wait.max(20_000)));
    }
    all.sort_by_key(|taken| taken.stamp);
    all
}

/// Stamp and payload of a record as it lies in a ring.
fn split(record: &[u8]) -> Option<(u64, &[u8])> {
    let (stamp, payload) = record.split_first_chunk::<STAMP_SIZE>()?;
    (payload.len() >= COMMON_SIZE).then(|| (u64::from_ne_bytes(*stamp), payload))
}

fn kind_of(payload: &[u8]) -> u16 {
    u16::from_ne_bytes([payload[0], payload[1]])
}

/// Thread of a record.
fn pid_of(payload: &[u8]) -> i32 {
    i32::from_ne_bytes([payload[4], payload[5], payload[6], payload[7]])
}
