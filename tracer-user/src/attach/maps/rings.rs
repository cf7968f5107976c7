//! The rings of a session: for each CPU one for records, and a ring buffer for control records.

use std::{
    os::fd::AsFd,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread::JoinHandle,
};

use tracer_abi::CONTROL_BYTES;

use crate::{
    attach::{Cause, maps},
    sys::{
        Errno,
        bpf::{
            cpu_ring::{CpuRing, RING_MAX},
            map::{Map, MapKind, MapSpec},
            ring::RingMemory,
        },
        errno_of,
    },
};

/// The maps by which programs find the rings of their CPU.
#[derive(Debug)]
pub(super) struct RingMaps {
    /// Rings of records by CPU.
    pub(super) rings: Map,
    /// Ring buffers of control records by CPU. They are separate, so that no CPU waits for another one's lock, which
    /// would be an event.
    pub(super) controls: Arc<Map>,
    /// Bytes of records in a ring.
    pub(super) bytes: u32,
    /// The thread that enters the ring buffers into the map of them.
    entering: Mutex<Option<JoinHandle<Result<(), Errno>>>>,
    entered: OnceLock<Result<(), Errno>>,
}

impl RingMaps {
    /// Makes the rings of this many CPUs. Each holds this many bytes of records, rounded up to a power of two of at least
    /// a page, or as many as the kernel allows. Programs find the control records' ring buffers once
    /// [`Self::complete`] has returned.
    pub(super) fn new(bytes: u32, cpus: u32) -> Result<(Self, Vec<CpuRing>), Cause> {
        let page = rustix::param::page_size() as u32;
        let wanted = bytes.clamp(page, RING_MAX).next_power_of_two();
        let mut bytes = wanted;
        let rings = loop {
            match CpuRing::create(bytes, cpus) {
                Err(Errno::TOOBIG) if bytes > page => bytes /= 2,
                made => break made.map_err(|errno| Cause::Map("ring", errno))?,
            }
        };
        if bytes < wanted {
            tracing::warn!("this kernel allows rings of {} KiB only", bytes / 1024);
        }
        let buffers = (0..cpus).map(|_| maps::ring_buffer(CONTROL_BYTES, "tracer_control"));
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        let controls = Arc::new(by_cpu(&buffers)?);
        let entering = enter(&controls, &buffers).map_err(|errno| Cause::Map("array of maps", errno))?;
        let of_cpu = |(cpu, control)| CpuRing::new(&rings, cpu, RingMemory::new(control)?);
        let memory = (0..).zip(buffers).map(of_cpu).collect::<Result<Vec<_>, _>>();
        let memory = memory.map_err(|errno| Cause::Map("mapped ring", errno))?;
        let entering = Mutex::new(Some(entering));
        Ok((Self { rings, controls, bytes, entering, entered: OnceLock::new() }, memory))
    }

    /// Waits until programs find all ring buffers of control records. Before, they can wake no reader: the next record
    /// tries again, and a request for a snapshot is lost.
    pub(super) fn complete(&self) -> Result<(), Cause> {
        let entered = self.entered.get_or_init(|| {
            let thread = self.entering.lock().unwrap_or_else(PoisonError::into_inner).take();
            match thread.map(JoinHandle::join) {
                Some(Ok(entered)) => entered,
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                // It panicked in an earlier wait.
                None => Err(Errno::IO),
            }
        });
        entered.map_err(|errno| Cause::Map("array of maps", errno))
    }
}

/// Enters maps into a map of maps in another thread, because the kernel waits for a grace period (5 to 20 ms).
fn enter(outer: &Arc<Map>, inner: &[Map]) -> Result<JoinHandle<Result<(), Errno>>, Errno> {
    let copies = inner.iter().map(|map| map.as_fd().try_clone_to_owned()).collect::<Result<Vec<_>, _>>();
    let (outer, copies) = (Arc::clone(outer), copies.map_err(|error| errno_of(&error))?);
    let thread = std::thread::Builder::new().name("tracer-maps".to_owned());
    let entering = move || {
        let entered = outer.set_fds(&copies);
        entered.inspect_err(|errno| tracing::error!("programs cannot wake readers: array of maps: {errno}"))
    };
    thread.spawn(entering).map_err(|error| errno_of(&error))
}

/// An empty map from the CPU's number to its map.
fn by_cpu(inner: &[Map]) -> Result<Map, Cause> {
    let inner_map = inner.first().map(AsFd::as_fd);
    let spec = maps::spec(MapKind::ArrayOfMaps, 4, inner.len() as u32, "tracer_controls");
    maps::create(&MapSpec { inner: inner_map, ..spec })
}
