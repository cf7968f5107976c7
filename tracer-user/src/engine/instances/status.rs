//! The current state of an instance: its own state combined with the state of its programs in the kernel.
//!
//! Triggers change recording and events without user space, so the kernel's side has the current values.

use tracer_abi::Counters;

use crate::{
    engine::{
        Engine, attachments::session::InstanceSession, histograms::tables::Histograms,
        instances::instance::Instance,
    },
    event::{EventId, InstanceId},
    lang::hist::TriggerId,
};

/// An instance and its session.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a> {
    instance: InstanceId,
    state: &'a Instance,
    histograms: &'a Histograms,
    session: Option<&'a InstanceSession>,
}

impl Engine {
    /// The current state of an instance.
    pub fn status(&self, instance: InstanceId) -> Option<Status<'_>> {
        Some(Status {
            instance,
            state: self.instances.get(instance)?,
            histograms: &self.histograms,
            session: self.attachments.session(instance),
        })
    }
}

impl Status<'_> {
    /// Whether it has a session in the kernel.
    pub(crate) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Whether recording is on (`tracing_on`).
    pub fn is_on(&self) -> bool {
        self.session.map_or(self.state.on, |session| session.kernel().switches().is_tracing())
    }

    /// Whether hits are recorded at this moment.
    pub(crate) fn records(&self) -> bool {
        self.is_on() && self.state.stops == 0
    }

    /// The counts of hits on a CPU since its buffer was last emptied.
    pub fn counts(&self, cpu: u32) -> Counters {
        self.session.map_or(Counters::default(), |session| session.counts(cpu))
    }

    /// Number of hits for which the kernel ran no program since the buffers were last emptied. At a perf tracepoint
    /// the kernel runs no program while another one runs on that CPU. It counts such hits for all CPUs together.
    pub fn missed(&self) -> u64 {
        self.session.map_or(0, InstanceSession::missed)
    }

    /// Whether an attached event is disabled, by a trigger or by a client.
    pub(crate) fn is_soft_off(&self, event: EventId) -> bool {
        // An enabled event without a program is disabled, and its references for soft mode need none.
        self.state.is_enabled(event)
            && self.session.is_some_and(|session| session.is_off(event).unwrap_or(true))
    }

    /// Whether an event is enabled, and no trigger has disabled it.
    #[cfg(any(test, feature = "internals"))]
    pub fn takes_hits(&self, event: EventId) -> bool {
        self.state.is_enabled(event) && !self.is_soft_off(event)
    }

    /// The content of an event's `enable` file: whether it is recorded, and whether triggers may enable and disable
    /// it (`event_enable_read()`).
    pub fn enable_text(&self, event: EventId) -> &'static [u8] {
        let off = self.is_soft_off(event);
        match (self.state.is_enabled(event) && !off, off || self.state.triggers.is_soft(event)) {
            (true, true) => b"1*\n",
            (true, false) => b"1\n",
            (false, true) => b"0*\n",
            (false, false) => b"0\n",
        }
    }

    /// How often a counted trigger can still act.
    pub(crate) fn trigger_count(&self, place: u16) -> u64 {
        self.session.map_or(0, |session| session.kernel().switches().count(place))
    }

    /// The content of an event's `trigger` file, including its histograms.
    pub(crate) fn trigger_text(
        &self,
        event: EventId,
        hists: Vec<u8>,
        name: impl Fn(EventId) -> String,
    ) -> Vec<u8> {
        if !hists.is_empty() && self.state.triggers.of(event).is_empty() {
            return hists;
        }
        // Histograms come last.
        [self.state.triggers.text(event, |place| self.trigger_count(place), name), hists].concat()
    }

    /// Whether a histogram is paused at this moment.
    pub(crate) fn is_paused(&self, trigger: TriggerId) -> bool {
        let place = self.histograms.table(self.instance, trigger).map(|table| table.place);
        self.session.zip(place).is_some_and(|(session, place)| session.kernel().switches().hist_paused(place))
    }
}
