//! Trace buffers of an instance: a row of pages a CPU, in the kernel's ring-buffer format, so that `trace_pipe_raw` is
//! those pages and `trace` decodes them when somebody reads.
//!
//! [`page`] is one page, [`cpu`] one CPU's row with its counts, [`reader`] reads across CPUs in order of time, and
//! [`clock`] turns the stamps of records into those of the trace clock. Nothing here knows what a record means.

pub mod clock;
mod cpu;
mod page;
mod reader;

pub use cpu::{CpuBuffer, Stats};
pub use page::{HEAD, Page, PageSize};
pub use reader::{Entry, Reader};

/// The buffers of all CPUs.
#[derive(Debug)]
pub struct TraceBuffer {
    cpus: Vec<CpuBuffer>,
}

impl TraceBuffer {
    /// Buffers for so many CPUs, each of so many bytes, in pages of a size.
    pub fn new(cpus: u32, bytes: usize, page: PageSize) -> Self {
        Self { cpus: (0..cpus).map(|_| CpuBuffer::new(bytes, page)).collect() }
    }

    /// Empty buffers of the same sizes.
    #[must_use]
    pub fn alike(&self) -> Self {
        Self { cpus: self.cpus.iter().map(CpuBuffer::alike).collect() }
    }

    /// Exchanges the buffers of one CPU or of all for those of another.
    pub fn swap(&mut self, other: &mut Self, cpu: Option<u32>) {
        for ((_, one), (_, other)) in self.select_mut(cpu).zip(other.select_mut(cpu)) {
            std::mem::swap(one, other);
        }
    }

    /// One CPU's buffer.
    pub fn cpu(&self, cpu: u32) -> Option<&CpuBuffer> {
        self.cpus.get(cpu as usize)
    }

    /// One CPU's buffer, to be written.
    pub fn cpu_mut(&mut self, cpu: u32) -> Option<&mut CpuBuffer> {
        self.cpus.get_mut(cpu as usize)
    }

    /// The buffers of one CPU or of all.
    pub fn select(&self, cpu: Option<u32>) -> impl Iterator<Item = (u32, &CpuBuffer)> {
        (0..).zip(&self.cpus).filter(move |(number, _)| cpu.is_none_or(|cpu| cpu == *number))
    }

    /// As [`TraceBuffer::select`], to be written.
    pub fn select_mut(&mut self, cpu: Option<u32>) -> impl Iterator<Item = (u32, &mut CpuBuffer)> {
        (0..).zip(&mut self.cpus).filter(move |(number, _)| cpu.is_none_or(|cpu| cpu == *number))
    }

    /// Takes the oldest record of one CPU or of all, if it is not younger than `until`, and shows it: CPU, records lost
    /// in front of it, time and payload.
    pub fn consume<T>(
        &mut self,
        cpu: Option<u32>,
        until: u64,
        show: impl FnOnce(u32, u64, u64, &[u8]) -> T,
    ) -> Option<T> {
        let mut oldest: Option<(u64, u32)> = None;
        for (number, buffer) in self.select(cpu) {
            if let Some(time) = buffer.first_time().filter(|time| *time <= until) {
                // Of two of the same time the lower CPU's comes first.
                if oldest.is_none_or(|(best, _)| time < best) {
                    oldest = Some((time, number));
                }
            }
        }
        let (_, number) = oldest?;
        self.cpu_mut(number)?.consume(|lost, time, payload| show(number, lost, time, payload))
    }
}
