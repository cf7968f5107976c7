//! Marks (`trace_marker` and `trace_marker_raw`): those that the owner records, and the rules by which other threads
//! record the rest.

use std::sync::Arc;

use crate::{
    buffer::clock::{Clock, Conversion, monotonic},
    engine::{
        Cooperative, Engine, Scheduler,
        command::error::{CommandError, ErrorKind},
        dependents::delivery::Delivery,
        facts::Facts,
        instances::{change::InstanceChange, instance::Instance},
        records::{
            mark::{COPY, Mark, TEXT_AT, Writer, Written},
            marks::MarkRules,
        },
        registry::catalogue::{Events, SPECIAL, STACKS},
    },
    event::InstanceId,
};

impl Cooperative for Engine {
    fn scheduler(&self) -> &Scheduler<Self> {
        &self.scheduler
    }

    fn scheduler_mut(&mut self) -> &mut Scheduler<Self> {
        &mut self.scheduler
    }

    fn publish_step(&mut self) {
        publish_marks(self);
    }
}

impl InstanceChange<'_> {
    /// Records a write to `trace_marker` or `trace_marker_raw`. Returns the number of recorded bytes.
    ///
    /// # Errors
    /// `EINVAL` if the option `markers` is off or raw data has no number, `EBADF` while recording is off.
    pub(crate) fn record_mark(
        &mut self,
        mark: Mark,
        written: &[u8],
        writer: Writer,
    ) -> Result<usize, CommandError> {
        let options = &self.engine.instances.get(self.instance).ok_or(ErrorKind::Gone)?.options;
        if !options.is("markers") {
            return Err(ErrorKind::Invalid.into());
        }
        if self.instance != InstanceId::TOP || options.find(COPY).is_none() {
            return self.mark_one(mark, written, writer);
        }
        // Marks of the top instance go to all instances with the option (6.16 and later), the last to set it first.
        let mut done = Err(ErrorKind::Gone.into());
        for instance in self.engine.instances.ids().into_iter().rev() {
            if self.engine.instances.get(instance).is_some_and(|state| state.options.is(COPY)) {
                done = InstanceChange::of(self.engine, instance).mark_one(mark, written, writer);
                if done.is_err() {
                    break;
                }
            }
        }
        done
    }

    fn mark_one(&mut self, mark: Mark, written: &[u8], writer: Writer) -> Result<usize, CommandError> {
        let (facts, events) = (self.engine.facts.clone(), self.engine.registry.events().clone());
        let system = events.find_system(SPECIAL).ok_or(ErrorKind::Invalid)?;
        let event = events.find(system, mark.name()).ok_or(ErrorKind::Invalid)?;
        let format = events.format(event, &facts).ok_or(ErrorKind::Invalid)?;
        // Records from before the mark go into the buffer before it.
        self.engine.collect(self.instance);
        Arc::make_mut(&mut self.engine.tasks).look_up(writer.pid as i32, true);
        let counted = self.engine.histograms.counts_event(self.instance, event);
        let records = self.engine.status(self.instance).is_some_and(|status| status.records());
        let state = self.engine.instances.state(self.instance)?;
        let made = mark.record(written, format.id, facts.mark_writer(), writer.pid, state.page())?;
        let Written { mut record, taken: done } = made;
        let recorded_cpu = state.cpus.get(writer.cpu as usize).copied().unwrap_or_default();
        if !records || !recorded_cpu {
            return Err(ErrorKind::BadFile.into());
        }
        state.counted += 1;
        let now = Conversion::now(state.clock).time(monotonic(), state.counted);
        let buffer = state.buffer.cpu_mut(writer.cpu).ok_or(ErrorKind::BadFile)?;
        if !buffer.push(now, &record) {
            return Err(ErrorKind::BadFile.into());
        }
        let triggers = !state.triggers.of(event).is_empty();
        if mark == Mark::Text && (triggers || counted) {
            // Triggers see the text without the added newline.
            record.truncate(TEXT_AT + done);
            record.push(0);
            let mut delivery = Delivery::of(self.engine, self.instance, &record, writer);
            delivery.count_in_histograms(event);
            if triggers {
                delivery.run_marker_triggers(event);
            }
        }
        Ok(done)
    }
}

/// Reads the formats of marks and stacks, which every instance needs, and the address that marks show. While the kernel
/// closes other tracers' events, reading formats takes long, and no request must wait for it.
pub fn prepare_marks(facts: &Facts, events: &Events) {
    let _ = facts.mark_writer();
    let Some(system) = events.find_system(SPECIAL) else { return };
    for name in [Mark::Text.name(), Mark::Raw.name()].into_iter().chain(STACKS) {
        let _ = events.find(system, name).and_then(|event| events.format(event, facts));
    }
}

/// Publishes the rules for marks of each instance, if they may have changed.
pub(crate) fn publish_marks(engine: &mut Engine) {
    if !engine.effects.take_stale_marks() {
        return;
    }
    for (instance, state) in engine.instances.iter() {
        state.marks.publish(mark_rules(engine, instance, state));
    }
}

/// The rules for marks of an instance; `None` if the owner must record them.
fn mark_rules(engine: &Engine, instance: InstanceId, state: &Instance) -> Option<MarkRules> {
    let options = &state.options;
    let plain =
        options.is("markers") && options.is("overwrite") && state.clock != Clock::Counter && !state.armed;
    if !plain {
        return None;
    }
    // Marks of the top instance go to all instances that copy them.
    if instance == InstanceId::TOP && options.find(COPY).is_some() {
        let alone = engine
            .instances
            .iter()
            .all(|(other, state)| state.options.is(COPY) == (other == InstanceId::TOP));
        if !alone {
            return None;
        }
    }
    let system = engine.registry.events().find_system(SPECIAL)?;
    let [text, raw] = [Mark::Text, Mark::Raw].map(|mark| engine.registry.events().find(system, mark.name()));
    let (text, raw) = (text?, raw?);
    if !state.triggers.of(text).is_empty() || engine.histograms.counts_event(instance, text) {
        return None;
    }
    let session = engine.attachments.session(instance);
    let kind = |event| Some(engine.registry.events().format(event, &engine.facts)?.id);
    Some(MarkRules {
        kinds: [kind(text)?, kind(raw)?],
        // The address takes long to read, so it must have been read before.
        ip: engine.facts.known_mark_writer()?,
        page: state.page(),
        cpus: state.cpus.clone(),
        on: session.is_some() || state.on,
        switch: session.map(|session| session.kernel().tracing_switch()),
    })
    .filter(|_| state.stops == 0)
}
