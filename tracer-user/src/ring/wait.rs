//! Waiting for records: epoll over the rings, with a timeout.

use std::{
    os::fd::{AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
};

use crate::sys::bpf::{cpu_ring::CpuRing, ring::RingMemory};

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A ring passed its watermark, or another descriptor is ready.
    Ready,
    /// The timeout expired.
    Timeout,
    /// A signal arrived.
    Signal,
}

/// Waits on rings and other descriptors.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
}

impl Waiter {
    /// Waits on these rings. Programs wake the reader when a ring passes its watermark.
    ///
    /// # Errors
    /// When epoll fails.
    pub fn new(rings: &[CpuRing]) -> Result<Self, Errno> {
        let waiter = Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? };
        rings.iter().try_for_each(|ring| waiter.watch(ring.controls()))?;
        Ok(waiter)
    }

    /// Waits on one more ring buffer of control records.
    ///
    /// # Errors
    /// When epoll fails; `EEXIST` if this ring is already watched.
    pub fn watch(&self, ring: &RingMemory) -> Result<(), Errno> {
        // Edge-triggered: a ring whose reader leaves some records must not wake it again for these.
        let how = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, ring, epoll::EventData::new_u64(0), how)
    }

    /// Waits on one more descriptor until it is readable.
    ///
    /// # Errors
    /// When epoll fails.
    pub fn add(&self, fd: impl std::os::fd::AsFd) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(1), epoll::EventFlags::IN)
    }

    /// Waits at most this long.
    ///
    /// # Errors
    /// When epoll fails, except for signals.
    pub fn wait(&self, at_most: Duration) -> Result<Woken, Errno> {
        let mut events = Vec::with_capacity(8);
        let timeout =
            Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(0) => Ok(Woken::Timeout),
            Ok(_) => Ok(Woken::Ready),
            Err(Errno::INTR) => Ok(Woken::Signal),
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for Waiter {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}
