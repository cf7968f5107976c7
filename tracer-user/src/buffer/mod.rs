//! Trace buffers of an instance: a queue of pages per CPU, in the kernel's ring-buffer format. `trace_pipe_raw` returns
//! these pages, and `trace` decodes them on read.
//!
//! [`page`] is one page, [`cpu`] one CPU's buffer with its counts. [`reader`] reads across CPUs in time order, and
//! [`clock`] converts the stamps of records into times of the trace clock. [`kinds`] counts the pages with records of
//! defined events. Otherwise this module does not interpret records.

pub mod clock;
mod cpu;
mod kinds;
mod page;
mod reader;

pub use cpu::{CpuBuffer, Stats};
pub use kinds::KindCounts;
pub use page::{HEAD, Page, PageSize};
pub use reader::{Entry, Reader};

/// The buffers of all CPUs.
#[derive(Debug)]
pub struct TraceBuffer {
    cpus: Vec<CpuBuffer>,
}

impl TraceBuffer {
    /// Creates buffers for this many CPUs, each of this many bytes, in pages of this size.
    pub fn new(cpus: u32, bytes: usize, page: PageSize) -> Self {
        Self { cpus: (0..cpus).map(|_| CpuBuffer::new(bytes, page)).collect() }
    }

    /// Counts the kinds of records that are added from now on.
    pub fn count_kinds(&mut self, counts: &KindCounts) {
        self.cpus.iter_mut().for_each(|buffer| buffer.count_kinds(counts));
    }

    /// Empty buffers with the same settings.
    #[must_use]
    pub fn empty_copy(&self) -> Self {
        Self { cpus: self.cpus.iter().map(CpuBuffer::empty_copy).collect() }
    }

    /// Swaps the buffers of one CPU or of all with another trace buffer.
    pub fn swap(&mut self, other: &mut Self, cpu: Option<u32>) {
        for ((_, one), (_, other)) in self.select_mut(cpu).zip(other.select_mut(cpu)) {
            std::mem::swap(one, other);
        }
    }

    /// One CPU's buffer.
    pub fn cpu(&self, cpu: u32) -> Option<&CpuBuffer> {
        self.cpus.get(cpu as usize)
    }

    /// One CPU's buffer, mutable.
    pub fn cpu_mut(&mut self, cpu: u32) -> Option<&mut CpuBuffer> {
        self.cpus.get_mut(cpu as usize)
    }

    /// The buffers of one CPU or of all.
    pub fn select(&self, cpu: Option<u32>) -> impl Iterator<Item = (u32, &CpuBuffer)> {
        (0..).zip(&self.cpus).filter(move |(number, _)| cpu.is_none_or(|cpu| cpu == *number))
    }

    /// As [`TraceBuffer::select`], mutable.
    pub fn select_mut(&mut self, cpu: Option<u32>) -> impl Iterator<Item = (u32, &mut CpuBuffer)> {
        (0..).zip(&mut self.cpus).filter(move |(number, _)| cpu.is_none_or(|cpu| cpu == *number))
    }

    /// Takes the oldest record of one CPU or of all, if it is not younger than `until`. Passes `show` the CPU, the
    /// number of records lost before it, its time and its payload.
    pub fn consume<T>(
        &mut self,
        cpu: Option<u32>,
        until: u64,
        show: impl FnOnce(u32, u64, u64, &[u8]) -> T,
    ) -> Option<T> {
        let firsts = self.select(cpu).filter_map(|(number, buffer)| Some((buffer.first_time()?, number)));
        // At the same time the record of the lower CPU is first.
        let (_, number) = firsts.min().filter(|(time, _)| *time <= until)?;
        self.cpu_mut(number)?.consume(|lost, time, payload| show(number, lost, time, payload))
    }
}
