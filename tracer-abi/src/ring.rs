//! The ring of a CPU: records that programs write into memory which the reader has mapped.
//!
//! # Layout
//!
//! The ring is a value of a mapped array, by CPU. Its first page has four words; the records follow at [`DATA`]. Positions
//! count words of eight bytes since the ring was made and never wrap. The record at a position is at that position
//! modulo the ring's size, in one piece: [`SLACK`] bytes after the end hold the end of a record that would wrap. A record is its [head],
//! its payload, and padding up to eight bytes.
//!
//! [head]: record_head
//!
//! # Protocol
//!
//! Programs nest (interrupts, NMIs) and are preempted by others on their CPU. A record from user space may be written from
//! another CPU. So several writers can be between reserving and committing at any time.
//!
//! - `HEAD` has the position after the last reserved record, and above it the number of active writers. A writer
//!   [reserves](reserve) with one compare-and-exchange that moves the position and counts the writer.
//! - It writes the record, and [commits](commit) by subtracting itself. The last active writer knows that every record
//!   before the position is complete. It raises `COMMIT` to the position if that is some way ahead.
//! - The reader takes the records up to [`committed`]: to the position in `HEAD` if no writer is active, else to `COMMIT`.
//!   It then moves `TAIL`. A writer that finds too little space between `HEAD` and `TAIL` drops its record.
//! - The last active writer wakes the reader once if enough is unread ([`wants_reader`]). A writer that finds no space does
//!   the same. The reader allows the next wake-up ([`begin_reading`]) before it looks for records.
//!
//! # Overwriting
//!
//! While nobody reads, the reader can let the writers [overwrite] the oldest records: it stores `TAIL` with its highest
//! bit, and every comparison with `TAIL` then says that there is space and that nobody is to be woken. Writers do not
//! overwrite the records after `COMMIT`, because one of them may be unfinished; they drop theirs, as the kernel does
//! (`commit_overrun`).
//!
//! Before it reads, the reader [stops](stop_overwriting) that. Where to begin it finds in `STARTS`: the last active writer
//! stores the position there whenever it raises `COMMIT`. It begins so far after the oldest record that a writer that has loaded
//! the former `TAIL` does not reach the records. There is at most one on the ring's CPU, because such a writer exchanges
//! `HEAD` only if nobody else has since. The reader's process writes no record from user space meanwhile.
//!
//! [overwrite]: start_overwriting
//!
//! # Memory order
//!
//! The exchanges are fully ordered: `lock cmpxchg` and `lock xadd` on x86-64, `casal` and `ldaddal` (or load-exclusive
//! loops with a barrier) on arm64. BPF's other loads and stores are plain, so the following must hold with relaxed ones:
//!
//! - *A record is complete when the reader sees it.* Each writer's stores come before its subtraction from `HEAD`. If no
//!   writer is active, the reader acquires from the last subtraction. That one reads the earlier ones, so all of them also
//!   come before its exchange of `COMMIT`, from which the reader acquires otherwise.
//! - *No record overwrites one that is being read.* The reader's loads come before its release store to `TAIL`. A writer
//!   that sees the new `TAIL` writes only after a branch on it and after its exchange of `HEAD`.
//! - *No wake-up is lost.* A writer subtracts itself from `HEAD` and then loads `WOKEN`. The reader clears `WOKEN`, then a
//!   fence, then it loads `HEAD`. One of them sees the other's store: the reader finds the records, or the writer wakes
//!   it.
//!
//! `tests/ring.rs` checks these with loom, on the functions that the programs use.

#![expect(clippy::inline_always, reason = "a function that is not inlined costs a program a call")]

/// The words of a ring, by byte offset.
pub mod word {
    /// Position after the last reserved record; in the high twelve bits, the number of active writers.
    pub const HEAD: usize = 0;
    /// Position up to which all records are complete.
    pub const COMMIT: usize = 8;
    /// Position up to which the reader has read, or [`OVERWRITE`](super::OVERWRITE) and any position. On a cache line of its
    /// own, with the next word.
    pub const TAIL: usize = 128;
    /// Not 0 once the reader was woken.
    pub const WOKEN: usize = 136;
    /// Positions of records: [`STARTS`](super::STARTS) words.
    pub const START: usize = 1024;
}

/// Bit of `TAIL` while writers overwrite records that were not read.
pub const OVERWRITE: u64 = 1 << 63;
/// Number of known positions of records.
pub const STARTS: usize = 64;

/// Byte offset of the records.
pub const DATA: usize = 4096;
/// Bytes after the end of the ring for the end of the last record: at least [`MAX_RECORD`], and whole pages.
pub const SLACK: usize = 12 * 1024;
/// Largest record in bytes.
pub const MAX_RECORD: usize = crate::STAMP_SIZE + crate::MAX_PAYLOAD;
/// Bytes that a ring has in addition to its records.
pub const RING_EXTRA: usize = DATA + SLACK;

const _: () = assert!(MAX_RECORD <= SLACK);

/// One writer in `HEAD`.
const WRITER: u64 = 1 << 52;
/// `HEAD` with the largest number of writers, and position 0.
const WRITERS_MAX: u64 = WRITER.wrapping_neg();
/// The position in `HEAD`.
const POSITION: u64 = WRITER - 1;

/// How often a writer tries an exchange. It fails if another writer came in between.
pub const TRIES: u32 = 8;

/// Low bits of a record's head: the payload's length in bytes.
const LENGTH_BITS: u32 = 14;
/// Bits of a time in a record's head: 13 days.
const TIME_BITS: u32 = 64 - LENGTH_BITS;

const _: () = assert!(crate::MAX_PAYLOAD < 1 << LENGTH_BITS);

/// The words of a ring.
pub trait RingWords {
    /// Loads a word. A relaxed load is enough for a writer; the reader's is an acquire load.
    fn load(&self, word: usize) -> u64;
    /// Stores a word. A relaxed store is enough for a writer; the reader's is a release store.
    fn store(&self, word: usize, value: u64);
    /// Stores `new` if the word is `old`, fully ordered. Returns what the word was.
    fn compare_exchange(&self, word: usize, old: u64, new: u64) -> u64;
    /// Adds to a word, fully ordered. Returns what the word was.
    fn fetch_add(&self, word: usize, value: u64) -> u64;
    /// The same number. An implementation can hide that from the compiler, so that it does not unroll a loop.
    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        number
    }
}

/// Words by which `COMMIT` may be behind in a ring of `capacity` words.
#[inline(always)]
pub const fn step_of(capacity: u64) -> u64 {
    capacity / STARTS as u64
}

/// Words that a payload takes with its head.
#[inline(always)]
pub const fn record_words(payload: u64) -> u64 {
    payload.div_ceil(8) + 1
}

/// A record's head: its time in the high bits, modulo 13 days, and its payload's length in bytes.
#[inline(always)]
pub const fn record_head(time: u64, payload: u64) -> u64 {
    time << LENGTH_BITS | payload
}

/// The length of the payload in a head.
pub const fn payload_of(head: u64) -> usize {
    (head & ((1 << LENGTH_BITS) - 1)) as usize
}

/// The time in a head, which is less than 6.5 days from `now`.
pub const fn time_of(head: u64, now: u64) -> u64 {
    let distance = (head >> LENGTH_BITS).wrapping_sub(now) << (64 - TIME_BITS);
    now.wrapping_add_signed(distance.cast_signed() >> (64 - TIME_BITS))
}

/// Reserves words in a ring that has `capacity` words. Returns their position; `None` if there is no space, or if other
/// writers came in between each time. A writer that got a position must [`commit`].
#[inline(always)]
pub fn reserve(ring: &impl RingWords, words: u64, capacity: u64) -> Option<u64> {
    let mut tries = TRIES;
    while tries > 0 {
        let head = ring.load(word::HEAD);
        let position = head & POSITION;
        let end = position + words;
        let used = end.wrapping_sub(ring.load(word::TAIL));
        if (used > capacity && !may_overwrite(ring, used, end, capacity)) || head >= WRITERS_MAX {
            return None;
        }
        if ring.compare_exchange(word::HEAD, head, head + WRITER + words) == head {
            return Some(position);
        }
        tries = ring.opaque(tries - 1);
    }
    None
}

/// Whether a writer goes on although `used` is above the capacity. As a signed number, `used` is negative if the ring
/// overwrites. It is negative too if other writers and the reader went on after `HEAD` was loaded; the exchange then
/// fails.
#[inline(always)]
fn may_overwrite(ring: &impl RingWords, used: u64, end: u64, capacity: u64) -> bool {
    let complete = ring.load(word::COMMIT);
    used.cast_signed() < 0 && end.wrapping_sub(complete).cast_signed() <= capacity.cast_signed()
}

/// Completes a writer's record. Returns the position up to which all records are complete; `None` while other writers are
/// active. `COMMIT` is raised if the position is more than `step` words ahead of it. So most records are without this
/// exchange.
#[inline(always)]
pub fn commit(ring: &impl RingWords, step: u64) -> Option<u64> {
    let head = ring.fetch_add(word::HEAD, WRITER.wrapping_neg());
    if head >= 2 * WRITER {
        return None;
    }
    let position = head & POSITION;
    let mut tries = TRIES;
    while tries > 0 {
        let committed = ring.load(word::COMMIT);
        // A later writer may have raised it further.
        if position.wrapping_sub(committed).cast_signed() <= step.cast_signed() {
            break;
        }
        if ring.compare_exchange(word::COMMIT, committed, position) == committed {
            let number = position / if step == 0 { 1 } else { step };
            ring.store(word::START + number as usize % STARTS * 8, position);
            break;
        }
        tries = ring.opaque(tries - 1);
    }
    Some(position)
}

/// Whether the writer that found `position` is to wake the reader: at least `watermark` words before it are unread, and
/// the reader was not woken yet. [`not_woken`] takes that back.
#[inline(always)]
pub fn wants_reader(ring: &impl RingWords, position: u64, watermark: u64) -> bool {
    if position.wrapping_sub(ring.load(word::TAIL)).cast_signed() < watermark.cast_signed()
        || ring.load(word::WOKEN) != 0
    {
        return false;
    }
    ring.store(word::WOKEN, 1);
    true
}

/// The reader was not woken after all: the next writer tries again.
#[inline(always)]
pub fn not_woken(ring: &impl RingWords) {
    ring.store(word::WOKEN, 0);
}

/// The position after the last reserved record.
pub fn reserved(ring: &impl RingWords) -> u64 {
    ring.load(word::HEAD) & POSITION
}

/// A position up to which all records are complete, and whether a writer is active. It can be lower than at an earlier
/// call, because `COMMIT` is raised in steps.
pub fn committed(ring: &impl RingWords) -> (u64, bool) {
    let head = ring.load(word::HEAD);
    if head < WRITER { (head, false) } else { (ring.load(word::COMMIT), true) }
}

/// Lets the writers overwrite the records that the reader has not read.
pub fn start_overwriting(ring: &impl RingWords, position: u64) {
    ring.store(word::TAIL, position | OVERWRITE);
}

/// Ends overwriting, for a reader that has read up to `position`. Returns the position from which it can read: its own,
/// or that of a later record if records were overwritten since. At least `spare` words before the writers' position
/// are then free, which is to be at least the longest record. Returns `None` while no record that is kept is known: a
/// writer is active that reserved its space almost a whole ring ago, or this thread was delayed for as long.
pub fn stop_overwriting(
    ring: &impl RingWords,
    position: u64,
    capacity: u64,
    spare: u64,
    fence: impl Fn(),
) -> Option<u64> {
    loop {
        let oldest = (reserved(ring) + 2 * spare).saturating_sub(capacity);
        let (complete, _) = committed(ring);
        // An unfinished record is at none of these positions nor before it. So no writer that goes on from there reaches it.
        let starts = (0..STARTS).map(|number| ring.load(word::START + number * 8)).chain([complete]);
        let start = if position >= oldest {
            position
        } else {
            starts.filter(|start| (oldest..=complete).contains(start)).min()?
        };
        ring.store(word::TAIL, start);
        fence();
        // If this thread was delayed after it loaded the position, the records may be overwritten.
        if reserved(ring) + spare <= start + capacity {
            return Some(start);
        }
    }
}

/// Allows the next wake-up. The reader then looks for records.
pub fn begin_reading(ring: &impl RingWords, fence: impl FnOnce()) {
    ring.store(word::WOKEN, 0);
    fence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_from_heads() {
        let week = 6 * 86_400_000_000_000_u64;
        for now in [0, 1, week, 3 * week, u64::MAX / 3, 1 << TIME_BITS, (1 << TIME_BITS) - 1] {
            for time in [now, now + 1, now + week, now.saturating_sub(1), now.saturating_sub(week)] {
                for length in [0, 8, 8192] {
                    let head = record_head(time, length);
                    assert_eq!((time_of(head, now), payload_of(head)), (time, length as usize), "{now}");
                }
            }
        }
    }

    #[test]
    fn payloads_take_whole_words() {
        assert_eq!([0, 1, 8, 9, 8192].map(record_words), [1, 2, 2, 3, 1025]);
    }
}
