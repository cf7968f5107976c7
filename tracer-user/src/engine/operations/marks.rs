//! Marks that the owner records, and how other threads record the rest: `trace_marker` and `trace_marker_raw`.

use std::sync::Arc;

use rustix::io::Errno;
use tracer_abi::{COMMON_SIZE, asked};

use crate::{
    attach,
    buffer::clock::{Clock, Conversion, monotonic},
    engine::{
        Engine,
        attachments::desired,
        facts::Facts,
        histograms::programs as hist_programs,
        instances::instance::Instance,
        records::{
            mark::{COPY, Mark, TEXT_AT, Writer, Written},
            marks::{MarkRules, Marks},
        },
        registry::catalogue::{SPECIAL, STACKS},
    },
    event::InstanceId,
};

impl Engine {
    /// Records what was written to `trace_marker` or `trace_marker_raw`, and says how much of it.
    ///
    /// # Errors
    /// `EINVAL` when the option `markers` is off or raw data has no number, `EBADF` while recording is off.
    pub fn mark(
        &mut self,
        instance: InstanceId,
        mark: Mark,
        written: &[u8],
        writer: Writer,
    ) -> Result<usize, Errno> {
        let options = &self.get(instance).ok_or(Errno::NODEV)?.options;
        if !options.is("markers") {
            return Err(Errno::INVAL);
        }
        if instance != InstanceId::TOP || options.find(COPY).is_none() {
            return self.mark_one(instance, mark, written, writer);
        }
        // Those of the top go to all instances that want them (6.16 and later); the last to ask is the first to get it.
        let mut done = Err(Errno::NODEV);
        for instance in self.numbers().rev().collect::<Vec<_>>() {
            if self.get(instance).is_some_and(|state| state.options.is(COPY)) {
                done = self.mark_one(instance, mark, written, writer);
                if done.is_err() {
                    break;
                }
            }
        }
        done
    }

    fn mark_one(
        &mut self,
        instance: InstanceId,
        mark: Mark,
        written: &[u8],
        writer: Writer,
    ) -> Result<usize, Errno> {
        let (facts, events) = (self.facts.clone(), self.registry.events().clone());
        let system = events.find_system(SPECIAL).ok_or(Errno::INVAL)?;
        let event = events.find(system, mark.name()).ok_or(Errno::INVAL)?;
        let format = events.format(event, &facts).ok_or(Errno::INVAL)?;
        // What came before in the kernel comes before in the buffer.
        self.collect(instance);
        self.tasks.meet(writer.pid as i32, true);
        let counted = self.histograms.counts_event(instance, event);
        let records = self.status(instance).is_some_and(|status| status.records());
        let state = self.state(instance)?;
        let made = mark.record(written, format.id, facts.mark_writer(), writer.pid, state.page())?;
        let Written { mut record, taken: done } = made;
        let recorded_cpu = state.cpus.get(writer.cpu as usize).copied().unwrap_or_default();
        if !records || !recorded_cpu {
            return Err(Errno::BADF);
        }
        state.counted += 1;
        let now = Conversion::now(state.clock).time(monotonic(), state.counted);
        let buffer = state.buffer.cpu_mut(writer.cpu).ok_or(Errno::BADF)?;
        if !buffer.push(now, &record) {
            return Err(Errno::BADF);
        }
        let triggers = !state.triggers.of(event).is_empty();
        if mark == Mark::Text && (triggers || counted) {
            // Triggers see the text without the newline that is added.
            record.truncate(TEXT_AT + done);
            record.push(0);
            let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
            hist_programs::count_record(self, instance, event, &record, &hit);
            if triggers {
                self.run_triggers(instance, &record, writer);
            }
        }
        Ok(done)
    }

    /// Runs the triggers of `ftrace:print` on a record that lies in the buffer.
    fn run_triggers(&mut self, instance: InstanceId, record: &[u8], writer: Writer) {
        let Some(live) = self.attachments.session(instance) else { return };
        let hit = attach::Writer { cpu: writer.cpu, comm: writer.comm };
        let asked = match live.marked(record, &hit) {
            Ok(asked) => asked,
            Err(error) => return tracing::warn!("{error}"),
        };
        // A snapshot is taken before anything more is recorded.
        self.collect(instance);
        if asked & asked::STACK != 0 {
            self.stack_of_writer(instance, record, writer);
        }
    }

    /// Records the kernel's stack of who wrote a record.
    pub(in crate::engine) fn stack_of_writer(&mut self, instance: InstanceId, record: &[u8], writer: Writer) {
        let facts = self.facts.clone();
        let kind = desired::stack_kinds(self)[0];
        if !self.status(instance).is_some_and(|status| status.records()) {
            return;
        }
        let Ok(state) = self.state(instance) else { return };
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

    /// The marks of an instance.
    pub fn marks(&self, instance: InstanceId) -> Option<Arc<Marks>> {
        self.get(instance).map(|state| Arc::clone(&state.marks))
    }

    /// The rules of marks may have changed.
    pub fn stale_marks(&mut self) {
        self.marks_stale = true;
    }

    /// Reads the formats of marks and stacks, which every instance needs. The kernel may take long to show them, while it closes
    /// other tracers' events, and no request is to wait for that.
    pub fn read_special_formats(&self) {
        let Some(system) = self.registry.events().find_system(SPECIAL) else { return };
        for name in [Mark::Text.name(), Mark::Raw.name()].into_iter().chain(STACKS) {
            let event = self.registry.events().find(system, name);
            let _ = event.and_then(|event| self.registry.events().format(event, &self.facts));
        }
    }

    /// Publishes how a mark is recorded in each instance, if that may have changed.
    pub(in crate::engine) fn publish_marks(&mut self) {
        if !std::mem::take(&mut self.marks_stale) {
            return;
        }
        for (instance, state) in &self.instances {
            state.marks.publish(self.mark_rules(*instance, state));
        }
    }

    /// How a mark is recorded in an instance; None where the owner has more to do than that.
    fn mark_rules(&self, instance: InstanceId, state: &Instance) -> Option<MarkRules> {
        let options = &state.options;
        let plain =
            options.is("markers") && options.is("overwrite") && state.clock != Clock::Counter && !state.armed;
        if !plain {
            return None;
        }
        // Marks of the top go to all instances that copy them.
        if instance == InstanceId::TOP && options.find(COPY).is_some() {
            let alone =
                self.numbered().all(|(other, state)| state.options.is(COPY) == (other == InstanceId::TOP));
            if !alone {
                return None;
            }
        }
        let system = self.registry.events().find_system(SPECIAL)?;
        let [text, raw] =
            [Mark::Text, Mark::Raw].map(|mark| self.registry.events().find(system, mark.name()));
        let (text, raw) = (text?, raw?);
        if !state.triggers.of(text).is_empty() || self.histograms.counts_event(instance, text) {
            return None;
        }
        let session = self.attachments.session(instance);
        let kind = |event| Some(self.registry.events().format(event, &self.facts)?.id);
        Some(MarkRules {
            kinds: [kind(text)?, kind(raw)?],
            // Not before the symbols were read, which takes long.
            ip: self.facts.known_mark_writer()?,
            page: state.page(),
            cpus: state.cpus.clone(),
            on: session.is_some() || state.on,
            switch: session.map(|session| session.kernel().tracing_switch()),
        })
        .filter(|_| state.stops == 0)
    }
}

/// The kernel's stack of a thread that waits for its write to be done, from where it would have come to the kernel's own
/// `trace_marker`.
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
    text.lines().skip_while(|line| !line.contains(" vfs_write+")).filter_map(address).collect()
}
