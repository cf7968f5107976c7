//! The reader's side of a BPF ring buffer (`kernel/bpf/ringbuf.c`).
//!
//! The first page has the consumer's position, which this side writes. The next page has the producer's position.
//! Then the data follows, mapped twice in a row, so that a record never wraps. A header with a length word and two
//! flag bits precedes each record, and records are padded to eight bytes. Nothing is copied: the caller reads each
//! record in place, and its space is released afterwards.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use aya_obj::generated::{
    BPF_RINGBUF_BUSY_BIT as BUSY, BPF_RINGBUF_DISCARD_BIT as DISCARD, BPF_RINGBUF_HDR_SZ,
};

use memmap2::{MmapOptions, MmapRaw};

use super::map::{Map, MapKind};
use crate::sys::{Errno, errno_of};

/// Bytes before each record.
const HEADER: u64 = BPF_RINGBUF_HDR_SZ as u64;
/// Bytes read after which their space is released to the producer.
const RELEASE_EVERY: u64 = 64 * 1024;

/// The caller's verdict on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The record was consumed: continue.
    Taken,
    /// Leave the record and stop.
    Left,
}

/// How a [`RingMemory::drain`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// No record was left.
    Empty,
    /// A program is still writing the next record.
    Busy,
    /// The caller left a record.
    Left,
}

/// The mapped memory of one ring buffer.
#[derive(Debug)]
pub struct RingMemory {
    map: Map,
    consumer: MmapRaw,
    producer: MmapRaw,
    page: usize,
    size: usize,
    position: u64,
}

impl RingMemory {
    /// Maps a ring buffer.
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` for another kind of map.
    pub fn new(map: Map) -> Result<Self, Errno> {
        // `drain` trusts the lengths in the memory. Only in this kind of map does the kernel write them, out
        // of reach of programs.
        if map.kind() != MapKind::RingBuf {
            return Err(Errno::INVAL);
        }
        let page = rustix::param::page_size();
        let size = map.max_entries() as usize;
        let consumer =
            MmapOptions::new().len(page).map_raw(&map.as_fd()).map_err(|error| errno_of(&error))?;
        // The second half of the data mirrors the first.
        let producer = MmapOptions::new()
            .len(page + 2 * size)
            .offset(page as u64)
            .map_raw_read_only(&map.as_fd())
            .map_err(|error| errno_of(&error))?;
        let mut ring = Self { map, consumer, producer, page, size, position: 0 };
        ring.position = ring.consumer().load(Ordering::Relaxed);
        Ok(ring)
    }

    fn consumer(&self) -> &AtomicU64 {
        // SAFETY: the page starts with the eight-byte position and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.consumer.as_mut_ptr().cast()) }
    }

    fn producer(&self) -> &AtomicU64 {
        // SAFETY: as above; only read, as the page is mapped read-only.
        unsafe { AtomicU64::from_ptr(self.producer.as_mut_ptr().cast()) }
    }

    /// Bytes not yet read.
    #[cfg(any(test, feature = "internals"))]
    pub fn pending(&self) -> u64 {
        self.producer().load(Ordering::Acquire).saturating_sub(self.position)
    }

    /// Passes every complete record to `show`, in order. Stops when the caller leaves a record, when a record is
    /// still being written, or at the end of the data present at the start. The caller must not keep the slice.
    pub fn drain(&mut self, mut show: impl FnMut(&[u8]) -> Seen) -> Drained {
        let mask = self.size as u64 - 1;
        let mut released = self.position;
        // The end is fixed here: a reader slower than the hits would otherwise never finish.
        let end = self.producer().load(Ordering::Acquire);
        let outcome = loop {
            if self.position >= end {
                break Drained::Empty;
            }
            let at = self.page + (self.position & mask) as usize;
            // SAFETY: inside the mapping: positions are masked, and the header is eight bytes aligned to eight.
            let header = unsafe { AtomicU32::from_ptr(self.producer.as_mut_ptr().add(at).cast()) };
            let word = header.load(Ordering::Acquire);
            if word & BUSY != 0 {
                break Drained::Busy;
            }
            let length = word & !DISCARD;
            if length as usize > self.size {
                // The kernel writes no such record, so nothing after it can be trusted.
                self.position = end;
                break Drained::Empty;
            }
            if word & DISCARD == 0 {
                // SAFETY: the producer has finished the record. It begins in the first half of the doubled mapping
                // and is at most one half long, so it lies contiguously inside the mapping.
                let record = unsafe {
                    std::slice::from_raw_parts(
                        self.producer.as_ptr().add(at + HEADER as usize),
                        length as usize,
                    )
                };
                if show(record) == Seen::Left {
                    break Drained::Left;
                }
            }
            self.position += (u64::from(length) + HEADER).next_multiple_of(8);
            if self.position - released >= RELEASE_EVERY {
                self.consumer().store(self.position, Ordering::Release);
                released = self.position;
            }
        };
        self.consumer().store(self.position, Ordering::Release);
        outcome
    }
}

impl AsFd for RingMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
