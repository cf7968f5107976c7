//! A BPF ring buffer's memory: the reader's side of `kernel/bpf/ringbuf.c`.
//!
//! One page with the consumer's position (ours to write), one with the producer's, then the data mapped twice in a
//! row, so that a record never wraps. A record is preceded by a length word with two flag bits and is padded to
//! eight bytes. Nothing here copies: the caller sees each record where it lies, and the place is given back after.

use std::{
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::{
    Errno,
    map::{Map, MapKind},
};

/// `BPF_RINGBUF_BUSY_BIT`: reserved, not yet submitted.
const BUSY: u32 = 1 << 31;
/// `BPF_RINGBUF_DISCARD_BIT`: to be skipped.
const DISCARD: u32 = 1 << 30;
/// `BPF_RINGBUF_HDR_SZ`.
const HEADER: u64 = 8;
/// Bytes after which the place that was read is given back to the producer.
const RELEASE_EVERY: u64 = 64 * 1024;

/// What the caller says of a record it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Done with it: go on.
    Taken,
    /// Not now: leave it and stop.
    Left,
}

/// How a [`RingMemory::drain`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Nothing more was there.
    Empty,
    /// The next record is still being written.
    Busy,
    /// The caller left a record.
    Left,
}

/// The mapped memory of one ring buffer.
#[derive(Debug)]
pub struct RingMemory {
    map: Map,
    consumer: NonNull<u8>,
    producer: NonNull<u8>,
    page: usize,
    size: usize,
    position: u64,
}

// SAFETY: the mappings belong to this value alone, and positions are accessed as atomics.
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// Maps a ring buffer.
    ///
    /// # Errors
    /// `ENOMEM`, `EINVAL` for another kind of map.
    pub fn new(map: Map) -> Result<Self, Errno> {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        // What follows believes lengths that stand in the memory: only this kind's are the kernel's own, and no
        // program can write them.
        if map.kind() != MapKind::RingBuf {
            return Err(Errno::INVAL);
        }
        let page = rustix::param::page_size();
        let size = map.max_entries() as usize;
        // SAFETY: fresh mappings at addresses the kernel chooses.
        let consumer = unsafe {
            mmap(std::ptr::null_mut(), page, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &map, 0)?
        };
        // SAFETY: as above; the second half of the data is the first again.
        let producer = match unsafe {
            mmap(std::ptr::null_mut(), page + 2 * size, ProtFlags::READ, MapFlags::SHARED, &map, page as u64)
        } {
            Ok(start) => start,
            Err(error) => {
                // SAFETY: mapped above and not used any more.
                let _ = unsafe { munmap(consumer, page) };
                return Err(error);
            }
        };
        // Nothing is mapped at null, where nobody asked for it.
        let (Some(consumer), Some(producer)) = (NonNull::new(consumer.cast()), NonNull::new(producer.cast()))
        else {
            return Err(Errno::FAULT);
        };
        let mut ring = Self { map, consumer, producer, page, size, position: 0 };
        ring.position = ring.consumer().load(Ordering::Relaxed);
        Ok(ring)
    }

    fn consumer(&self) -> &AtomicU64 {
        // SAFETY: the page starts with the eight-byte position and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.consumer.as_ptr().cast()) }
    }

    fn producer(&self) -> &AtomicU64 {
        // SAFETY: as above; only read, as the page is mapped read-only.
        unsafe { AtomicU64::from_ptr(self.producer.as_ptr().cast()) }
    }

    /// Bytes waiting.
    pub fn pending(&self) -> u64 {
        self.producer().load(Ordering::Acquire).saturating_sub(self.position)
    }

    /// Shows every record that is complete, in order, until the caller leaves one, one is being written, or
    /// nothing is left of what was there at first. The caller must not keep the slice.
    pub fn drain(&mut self, mut show: impl FnMut(&[u8]) -> Seen) -> Drained {
        let mask = self.size as u64 - 1;
        let mut released = self.position;
        // No further: a reader that is slower than the hits would never come to an end.
        let end = self.producer().load(Ordering::Acquire);
        let outcome = loop {
            if self.position >= end {
                break Drained::Empty;
            }
            let at = self.page + (self.position & mask) as usize;
            // SAFETY: inside the mapping: positions are masked, and the header is eight bytes aligned to eight.
            let header = unsafe { AtomicU32::from_ptr(self.producer.as_ptr().add(at).cast()) };
            let word = header.load(Ordering::Acquire);
            if word & BUSY != 0 {
                break Drained::Busy;
            }
            let length = word & !DISCARD;
            if length as usize > self.size {
                // The kernel makes no such record; nothing behind it makes sense.
                self.position = end;
                break Drained::Empty;
            }
            if word & DISCARD == 0 {
                // SAFETY: the producer is done with the record. It begins in the first half of the doubled mapping and is no longer
                // than one half, so that it lies inside in one piece.
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

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: our own mappings, not used after this.
        unsafe {
            let _ = rustix::mm::munmap(self.consumer.as_ptr().cast(), self.page);
            let _ = rustix::mm::munmap(self.producer.as_ptr().cast(), self.page + 2 * self.size);
        }
    }
}
