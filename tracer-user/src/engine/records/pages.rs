//! The reader of `trace_pipe_raw`, which removes the pages that it reads.

use crate::{
    engine::{Engine, instances::Instances},
    event::InstanceId,
};

/// A reader of `trace_pipe_raw`, which removes the pages that it reads.
#[derive(Debug)]
pub struct Pages {
    instance: InstanceId,
    cpu: u32,
    snapshot: bool,
    left: Vec<u8>,
}

impl Pages {
    /// A reader of a CPU's buffer, or of its snapshot.
    pub fn new(instance: InstanceId, cpu: u32, snapshot: bool) -> Self {
        Self { instance, cpu, snapshot, left: Vec::new() }
    }

    /// At most this many bytes of a page. `None` if there is none yet. Empty at the end of a snapshot, to which
    /// nothing is added.
    pub fn read(&mut self, engine: &mut Engine, size: usize) -> Option<Vec<u8>> {
        if self.left.is_empty() {
            engine.collect(self.instance);
            let state = engine.instances.get_mut(self.instance)?;
            let buffers = if self.snapshot { state.snapshot.as_mut() } else { Some(&mut state.buffer) };
            match buffers.and_then(|buffers| buffers.cpu_mut(self.cpu)?.consume_page()) {
                Some(page) => self.left = page,
                None if self.snapshot => return Some(Vec::new()),
                None => return None,
            }
        }
        let rest = self.left.split_off(size.min(self.left.len()));
        Some(std::mem::replace(&mut self.left, rest))
    }

    /// Whether a part of a page waits for the next read.
    pub fn has_rest(&self) -> bool {
        !self.left.is_empty()
    }

    /// Whether to wake a poller: the buffer is as full as `buffer_percent`, based on the records collected so far.
    pub fn is_ready(&self, instances: &Instances) -> bool {
        let Some(state) = instances.get(self.instance).filter(|_| !self.snapshot) else { return true };
        let Some(buffer) = state.buffer.cpu(self.cpu) else { return true };
        let full = state.percent as usize;
        !self.left.is_empty() || (!buffer.is_empty() && (full == 0 || buffer.percent() >= full))
    }
}
