//! The sessions of all instances, and the objects that all sessions share.
//!
//! An instance gets its session when a program is attached for it for the first time, and keeps it until the instance
//! is removed. All sessions share one factory, one table of chosen hooks and one guard of perf events.

use std::{collections::BTreeMap, os::fd::OwnedFd, sync::Arc};

use crate::{
    attach::{AttachPoint, DETACH_MAX, Guard, INLINE_CLOSE_MAX, take_unused},
    engine::{
        attachments::{
            AttachOptions,
            hook_choices::HookChoices,
            session::{InstanceSession, SessionFactory, table::ProgramRole},
        },
        registry::profile::BySerial,
    },
    event::{EventId, InstanceId},
    sys::bpf::{cpu_ring::CpuRing, ring::RingMemory},
};

/// The sessions of all instances.
#[derive(Debug, Default)]
pub(crate) struct Attachments {
    options: AttachOptions,
    sessions: BTreeMap<InstanceId, InstanceSession>,
    factory: Option<Arc<SessionFactory>>,
    /// The hooks that were chosen for events.
    hooks: HookChoices,
    /// The process that keeps perf events open when this one ends.
    guard: Option<Arc<Guard>>,
}

impl Attachments {
    /// No sessions yet.
    pub(crate) fn new(options: AttachOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// The options that hold for all instances.
    pub(crate) fn options(&self) -> AttachOptions {
        self.options
    }

    /// The session of an instance, if it has one.
    pub(crate) fn session(&self, instance: InstanceId) -> Option<&InstanceSession> {
        self.sessions.get(&instance)
    }

    /// The session of an instance, mutable.
    pub(crate) fn session_mut(&mut self, instance: InstanceId) -> Option<&mut InstanceSession> {
        self.sessions.get_mut(&instance)
    }

    /// All sessions.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (InstanceId, &InstanceSession)> {
        self.sessions.iter().map(|(instance, session)| (*instance, session))
    }

    /// Numbers of the instances that record at this moment.
    pub(crate) fn recording(&self) -> Vec<InstanceId> {
        self.sessions.keys().copied().collect()
    }

    /// Closes the perf events that were opened for an instance and not used.
    pub(crate) fn forget_opened(&mut self, instance: InstanceId) {
        if let Some(session) = self.session_mut(instance) {
            session.kernel_mut().opened().forget();
        }
    }

    /// Hits and misses of an event's probes in an instance.
    pub(crate) fn probe_counts(&self, instance: InstanceId, event: EventId) -> Option<BySerial> {
        Some(self.session(instance)?.table.get(event, ProgramRole::Probe)?.counts())
    }

    /// Adds the session of an instance.
    pub(crate) fn insert(&mut self, instance: InstanceId, session: InstanceSession) {
        self.sessions.insert(instance, session);
    }

    /// Removes the session of an instance. Dropping it detaches everything, which takes the kernel long.
    pub(crate) fn remove(&mut self, instance: InstanceId) -> Option<InstanceSession> {
        self.sessions.remove(&instance)
    }

    /// The factory of sessions; `None` before its first use.
    pub(crate) fn factory(&self) -> Option<&Arc<SessionFactory>> {
        self.factory.as_ref()
    }

    /// Whether a tracepoint has a link that a further event or histogram can share.
    pub(crate) fn is_linked(&self, point: &AttachPoint) -> bool {
        self.factory().is_some_and(|factory| factory.chains().is_linked(point))
    }

    /// Whether two gates keep hits at the raw tracepoint of a hook that the kernel skips for one program.
    pub(crate) fn has_two_gates(&self, point: &AttachPoint) -> bool {
        self.factory().is_some_and(|factory| factory.chains().has_two_gates(point))
    }

    /// Stores the factory for further sessions.
    pub(crate) fn set_factory(&mut self, factory: Arc<SessionFactory>) {
        self.factory = Some(factory);
    }

    /// The hooks of events.
    pub(crate) fn hooks(&self) -> &HookChoices {
        &self.hooks
    }

    /// The hooks of events, mutable.
    pub(crate) fn hooks_mut(&mut self) -> &mut HookChoices {
        &mut self.hooks
    }

    /// The ring buffers of all instances that wake their reader.
    pub(crate) fn rings(&self) -> impl Iterator<Item = &RingMemory> {
        self.sessions.values().flat_map(|session| session.queue.rings()).map(CpuRing::controls)
    }

    /// Sets the socket of the process that guards perf events (it has called [`crate::attach::hold`]). The guard is
    /// used from the next time on that many events are attached.
    pub(crate) fn set_guard(&mut self, socket: OwnedFd) {
        self.guard = Some(Arc::new(Guard::new(socket)));
    }

    /// The guard of perf events, while its process runs.
    pub(crate) fn guard(&self) -> Option<&Arc<Guard>> {
        self.guard.as_ref().filter(|guard| !guard.is_gone())
    }

    /// Passes the perf events of an instance to the guard.
    pub(crate) fn guard_events(&self, instance: InstanceId) {
        if let (Some(guard), Some(session)) = (self.guard(), self.session(instance)) {
            session.kernel().guard(guard);
        }
    }

    /// Detaches everything of all instances. Some perf events without effect remain, because they take long to close:
    /// the guard closes many, and the caller closes the returned ones.
    pub(crate) fn end(&mut self) -> Vec<OwnedFd> {
        match self.guard() {
            // Detaching them takes longer than the end of a daemon may, and this process could not end meanwhile.
            Some(guard) if guard.held() > DETACH_MAX => guard.leave(),
            Some(guard) => guard.dismiss(),
            None => {}
        }
        let sessions = std::mem::take(&mut self.sessions);
        let mut events: Vec<OwnedFd> = sessions.into_values().flat_map(InstanceSession::end).collect();
        // Perf events that were opened for a change that did not complete.
        events.extend(take_unused());
        match self.guard() {
            Some(guard) if events.len() > INLINE_CLOSE_MAX => guard.hand_over(events),
            _ => events,
        }
    }
}
