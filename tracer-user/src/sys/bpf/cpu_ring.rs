//! The reader's side of a CPU's ring ([`tracer_abi::ring`]).

use std::{
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use memmap2::{MmapOptions, MmapRaw};
use rustix::time::{ClockId, clock_gettime};
use tracer_abi::ring::{
    DATA, MAX_RECORD, RING_EXTRA, RingWords, begin_reading, committed, payload_of, record_words, reserved,
    start_overwriting, stop_overwriting, time_of, word,
};

use super::{
    map::{Map, MapKind, MapSpec, flag},
    ring::{Drained, RingMemory, Seen},
};
use crate::sys::{Errno, errno_of};

/// Bytes of records after which their space is released to the programs.
const RELEASE_EVERY: u64 = 64 * 1024;

/// Largest number of bytes of records in a ring: the verifier refuses larger offsets (`BPF_MAX_VAR_OFF`).
pub const RING_MAX: u32 = 1 << 29;
/// How often the reader looks for a moment without writers.
const LOOKS: u32 = 64;

/// The ring of a CPU, and the ring buffer of its control records.
#[derive(Debug)]
pub struct CpuRing {
    words: MappedWords,
    /// Bytes of records that it holds, a power of two.
    bytes: usize,
    /// Position up to which records were read, and the position that the programs know.
    position: u64,
    released: u64,
    /// Whether the programs may overwrite records that were not read.
    overwrites: bool,
    /// Whether they did, since the last [`CpuRing::was_overwritten`].
    overwritten: bool,
    controls: RingMemory,
    /// Number of times that the ring held malformed data; 0 unless a program is broken.
    malformed: u64,
}

/// The complete records of a ring at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Position after the last one.
    end: u64,
    /// Position after the last one that is wanted.
    wanted: u64,
    /// The clock at that moment, from which the times are completed.
    now: u64,
    /// Whether a program was writing a record.
    pub busy: bool,
    /// Whether no record is older than one before it.
    pub is_sorted: bool,
    /// Time of the last one.
    pub last: Option<u64>,
}

impl Run {
    /// Wants all records.
    pub fn want_all(&mut self) {
        self.wanted = self.end;
    }
}

/// The memory of a ring.
#[derive(Debug)]
struct MappedWords(MmapRaw);

impl MappedWords {
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.0.len() && offset.is_multiple_of(8));
        // SAFETY: an aligned word of the protocol or of a record, inside the mapping, which lives as long as `self`. While
        // this process reads it, it is only accessed atomically or not written.
        unsafe { AtomicU64::from_ptr(self.0.as_mut_ptr().add(offset).cast()) }
    }
}

impl RingWords for MappedWords {
    fn load(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    fn store(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Release);
    }

    fn compare_exchange(&self, word: usize, old: u64, new: u64) -> u64 {
        let order = Ordering::SeqCst;
        self.word(word).compare_exchange(old, new, order, order).unwrap_or_else(|was| was)
    }

    fn fetch_add(&self, word: usize, value: u64) -> u64 {
        self.word(word).fetch_add(value, Ordering::SeqCst)
    }
}

impl CpuRing {
    /// Creates the rings of this many CPUs: a mapped array, with a ring for each CPU. Each is for records of this many bytes, a
    /// power of two of at least a page.
    ///
    /// # Errors
    /// `ENOMEM`, `EPERM`; `E2BIG` for rings above 2 MiB before Linux 6.0.
    pub fn create(bytes: u32, cpus: u32) -> Result<Map, Errno> {
        let page = rustix::param::page_size() as u32;
        let size = bytes.checked_add(RING_EXTRA as u32).filter(|_| bytes.is_power_of_two());
        Map::create(&MapSpec {
            kind: MapKind::Array,
            key_size: 4,
            // Each ring begins at a page, so that it can be mapped alone.
            value_size: size.and_then(|size| size.checked_next_multiple_of(page)).ok_or(Errno::INVAL)?,
            max_entries: cpus,
            flags: flag::MMAPABLE,
            inner: None,
            name: "tracer_rings",
        })
    }

    /// Maps a CPU's ring of an array that was made with [`Self::create`].
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` for another map or CPU.
    pub fn new(map: &Map, cpu: u32, controls: RingMemory) -> Result<Self, Errno> {
        let size = map.value_size();
        // The rest of the last page is less than a page, and so less than the records.
        let bytes = size.checked_sub(RING_EXTRA).and_then(usize::checked_ilog2).map_or(0, |bits| 1 << bits);
        if map.kind() != MapKind::Array || cpu >= map.max_entries() || bytes < DATA {
            return Err(Errno::INVAL);
        }
        let memory = MmapOptions::new()
            .offset(size as u64 * u64::from(cpu))
            .len(size)
            .map_raw(&map.as_fd())
            .map_err(|error| errno_of(&error))?;
        let words = MappedWords(memory);
        let position = words.load(word::TAIL);
        Ok(Self {
            words,
            bytes,
            position,
            released: position,
            overwrites: false,
            overwritten: false,
            controls,
            malformed: 0,
        })
    }

    /// The ring buffer of control records, which wakes the reader.
    pub fn controls(&self) -> &RingMemory {
        &self.controls
    }

    /// Bytes not yet read, also of records that are being written.
    pub fn pending(&self) -> u64 {
        (reserved(&self.words).saturating_sub(self.position) * 8).min(self.bytes as u64)
    }

    /// Bytes of the youngest records that are kept while programs overwrite the others; 0 for a ring that is too small for
    /// that.
    pub fn kept(&self) -> usize {
        if self.spare() * 8 < MAX_RECORD as u64 { 0 } else { self.bytes - self.bytes / 4 }
    }

    /// Words that are free when overwriting ends.
    fn spare(&self) -> u64 {
        self.bytes as u64 / 8 / 16
    }

    /// Whether the programs may overwrite records that were not read.
    pub fn overwrites(&self) -> bool {
        self.overwrites
    }

    /// Lets the programs overwrite the oldest records until records are read again, without waking the reader.
    pub fn overwrite(&mut self) {
        if !self.overwrites && self.kept() > 0 {
            self.overwrites = true;
            start_overwriting(&self.words, self.position);
        }
    }

    /// Ends overwriting. Returns whether records were overwritten before those that are in the ring, since the last call;
    /// `None` if that is not known at this moment, and no record can be read.
    pub fn was_overwritten(&mut self) -> Option<bool> {
        self.keep().then(|| std::mem::take(&mut self.overwritten))
    }

    /// Ends overwriting. Returns false if that is impossible at this moment.
    fn keep(&mut self) -> bool {
        if self.overwrites {
            let (capacity, spare) = (self.bytes as u64 / 8, self.spare());
            let start =
                stop_overwriting(&self.words, self.position, capacity, spare, || fence(Ordering::SeqCst));
            let Some(start) = start else {
                // An attempt may have ended it.
                start_overwriting(&self.words, self.position);
                return false;
            };
            self.overwrites = false;
            self.overwritten |= start != self.position;
            (self.position, self.released) = (start, start);
        }
        true
    }

    /// Number of records, of those for which `counts` is true, that were not read. `None` while a program writes one,
    /// because some before it are not known to be complete then.
    pub fn waiting(&mut self, mut counts: impl FnMut(&[u8]) -> bool) -> Option<u64> {
        let run = self.look();
        if run.busy {
            return None;
        }
        let (mut position, mut records) = (self.position, 0);
        while let Some(head) = self.head(position, run.end) {
            records += u64::from(counts(self.payload(position, head)));
            position += record_words(payload_of(head) as u64);
        }
        Some(records)
    }

    /// Number of times that the ring held something else than records, and all of it was skipped.
    #[cfg(any(test, feature = "internals"))]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// The complete records at this moment, of which those up to `limit` are wanted.
    pub fn scan(&mut self, limit: u64) -> Run {
        let mut run = self.look();
        let (mut position, mut last) = (self.position, 0);
        while position < run.end {
            let Some(head) = self.head(position, run.end) else {
                run.end = self.skip_malformed(run.end);
                run.wanted = run.end;
                return run;
            };
            let time = time_of(head, run.now);
            position += record_words(payload_of(head) as u64);
            run.is_sorted &= last <= time;
            last = time;
            run.last = Some(time);
            if time <= limit {
                run.wanted = position;
            }
        }
        run
    }

    /// The next record of a run: time and payload.
    pub fn peek(&self, run: &Run) -> Option<(u64, &[u8])> {
        let head = self.head(self.position, run.end)?;
        Some((time_of(head, run.now), self.payload(self.position, head)))
    }

    /// Whether the records of a run that were not read take half of the ring or more.
    pub fn is_crowded(&self, run: &Run) -> bool {
        run.end.saturating_sub(self.position) * 16 >= self.bytes as u64
    }

    /// Whether the next record is one of the wanted records of a run, or before one.
    pub fn is_wanted(&self, run: &Run) -> bool {
        self.position < run.wanted
    }

    /// Steps over a record of a run with this payload's length. Its space is released later.
    pub fn step(&mut self, length: usize) {
        self.position += record_words(length as u64);
        if (self.position - self.released) * 8 >= RELEASE_EVERY {
            self.release();
        }
    }

    /// Releases the space of the records that were read.
    pub fn release(&mut self) {
        if self.released != self.position {
            self.words.store(word::TAIL, self.position);
            self.released = self.position;
        }
    }

    /// Passes time (nanoseconds of `CLOCK_MONOTONIC`) and payload of every complete record to `show`, in the order in
    /// which programs reserved their space. Stops when the caller leaves a record, when a record is still being written,
    /// or at the end of the data present at the start. The caller must not keep the slice.
    pub fn drain(&mut self, mut show: impl FnMut(u64, &[u8]) -> Seen) -> Drained {
        let run = self.look();
        let outcome = loop {
            if self.position >= run.end {
                break if run.busy { Drained::Busy } else { Drained::Empty };
            }
            let Some((time, payload)) = self.peek(&run) else {
                self.skip_malformed(run.end);
                continue;
            };
            let length = payload.len();
            if show(time, payload) == Seen::Left {
                break Drained::Left;
            }
            self.step(length);
        };
        self.release();
        outcome
    }

    /// The position up to which records are complete.
    fn look(&mut self) -> Run {
        if !self.keep() {
            let end = self.position;
            return Run { end, busy: true, now: 0, wanted: end, is_sorted: true, last: None };
        }
        begin_reading(&self.words, || fence(Ordering::SeqCst));
        let mut looks = (0..LOOKS).map(|_| committed(&self.words)).inspect(|_| std::hint::spin_loop());
        let idle = looks.by_ref().find(|(_, busy)| !*busy);
        let (end, busy) = idle.unwrap_or_else(|| committed(&self.words));
        let now = if self.position < end { now() } else { 0 };
        Run { end, busy, now, wanted: self.position, is_sorted: true, last: None }
    }

    /// The head of the record at a position before `end`; `None` if none is there.
    fn head(&self, position: u64, end: u64) -> Option<u64> {
        if position >= end {
            return None;
        }
        let head = self.words.word(self.offset(position)).load(Ordering::Relaxed);
        let length = payload_of(head);
        // No program writes other records.
        let is_record = position + record_words(length as u64) <= end && length + 8 <= MAX_RECORD;
        is_record.then_some(head)
    }

    /// The payload of the record with this head at a position.
    fn payload(&self, position: u64, head: u64) -> &[u8] {
        let at = self.offset(position) + 8;
        // SAFETY: the record is complete, so no program writes it before its space is released, which takes `&mut self`.
        // It is at most `MAX_RECORD` bytes long and begins before the ring's end, so it is inside the mapping.
        unsafe { std::slice::from_raw_parts(self.words.0.as_ptr().add(at), payload_of(head)) }
    }

    fn offset(&self, position: u64) -> usize {
        DATA + (position * 8) as usize % self.bytes
    }

    /// Skips malformed data and everything up to `end`, because nothing after it can be trusted.
    fn skip_malformed(&mut self, end: u64) -> u64 {
        self.malformed += 1;
        self.position = end;
        self.release();
        end
    }

    /// Passes time and kind of every control record to `show`.
    pub fn drain_controls(&mut self, mut show: impl FnMut(u64, u16)) {
        self.controls.drain(|record| {
            if let Some((time, kind)) = record.split_first_chunk()
                && let Some(kind) = kind.first_chunk()
            {
                show(u64::from_ne_bytes(*time), u16::from_ne_bytes(*kind));
            }
            Seen::Taken
        });
    }
}

/// The time of the clock that programs read.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
