//! The kernel stack of a thread that writes a record from user space.

use tracer_abi::{COMMON_SIZE, requested};

use crate::{
    buffer::clock::{Conversion, monotonic},
    engine::{attachments::desired, dependents::delivery::Delivery, facts::Facts},
};

impl Delivery<'_> {
    /// Performs the actions that the record's programs requested, bits of [`requested`]. Programs take snapshots and
    /// change switches themselves, but a stack must be the one of the writer.
    pub(crate) fn perform(&mut self, actions: u64) {
        if actions & requested::STACK != 0 {
            // The stack follows the records from before, and a snapshot that was requested with it.
            self.engine.collect(self.instance);
            self.record_stack();
        }
    }

    /// Records the kernel stack of the record's writer.
    fn record_stack(&mut self) {
        let Self { engine, instance, record, writer } = self;
        let facts = engine.facts.clone();
        let kind = desired::stack_kinds(&engine.facts, engine.registry.events())[0];
        if !engine.status(*instance).is_some_and(|status| status.records()) {
            return;
        }
        let Ok(state) = engine.instances.state(*instance) else { return };
        let addresses = writers_stack(writer.pid, &facts);
        let common = record.get(2..COMMON_SIZE).unwrap_or(&[0; COMMON_SIZE - 2]);
        let mut record = [kind.to_ne_bytes().as_slice(), common].concat();
        record.extend((addresses.len() as u32).to_ne_bytes());
        record.extend([0; 4]);
        record.extend(addresses.iter().flat_map(|address| address.to_ne_bytes()));
        state.counted += 1;
        let now = Conversion::now(state.clock).time(monotonic(), state.counted);
        if let Some(buffer) = state.buffer.cpu_mut(writer.cpu) {
            buffer.push(now, &record);
        }
    }
}

/// The functions that would call the kernel's `trace_marker` or `user_events_data`: for write(2) and for writev(2).
const WRITES: [&str; 2] = [" vfs_write+", " vfs_writev+"];

/// The kernel stack of a thread that waits for its write to complete. It begins at one of [`WRITES`].
fn writers_stack(pid: u32, facts: &Facts) -> Vec<u64> {
    let Some(symbols) = facts.symbols() else { return Vec::new() };
    let text = std::fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default();
    let address = |line: &str| {
        // `[<0>] name+0xoffset/0xsize [module]`
        let (name, rest) = line.split_once("] ")?.1.split_once('+')?;
        let offset = rest.split('/').next()?.strip_prefix("0x")?;
        let start = symbols.addresses(name).into_iter().min()?;
        start.checked_add(u64::from_str_radix(offset, 16).ok()?)
    };
    let is_before = |line: &&str| !WRITES.iter().any(|function| line.contains(function));
    text.lines().skip_while(is_before).filter_map(address).collect()
}
