//! What is attached to the kernel: the sessions of all instances, and what making them needs.
//!
//! An instance gets its session when something of it must be attached for the first time, and keeps it until the
//! instance goes. All sessions share one factory, one table of chosen hooks and one guard of perf events.

use std::{collections::BTreeMap, os::fd::OwnedFd, sync::Arc};

use crate::{
    attach::{Guard, INLINE_CLOSE_MAX, take_unused},
    engine::attachments::{
        hook_choices::HookChoices,
        session::{InstanceSession, SessionFactory},
    },
    event::{EventId, InstanceId},
    sys::bpf::ring::RingMemory,
};

/// The sessions of all instances.
#[derive(Debug, Default)]
pub(in crate::engine) struct Attachments {
    sessions: BTreeMap<InstanceId, InstanceSession>,
    factory: Option<Arc<SessionFactory>>,
    /// The hooks that were chosen for events.
    hooks: HookChoices,
    /// The process that keeps perf events open when this one ends.
    guard: Option<Arc<Guard>>,
}

impl Attachments {
    /// The session of an instance, if it has one.
    pub(in crate::engine) fn session(&self, instance: InstanceId) -> Option<&InstanceSession> {
        self.sessions.get(&instance)
    }

    /// The session of an instance, to be changed.
    pub(in crate::engine) fn session_mut(&mut self, instance: InstanceId) -> Option<&mut InstanceSession> {
        self.sessions.get_mut(&instance)
    }

    /// All sessions.
    pub(in crate::engine) fn sessions(&self) -> impl Iterator<Item = (InstanceId, &InstanceSession)> {
        self.sessions.iter().map(|(instance, session)| (*instance, session))
    }

    /// Gives an instance its session.
    pub(in crate::engine) fn insert(&mut self, instance: InstanceId, session: InstanceSession) {
        self.sessions.insert(instance, session);
    }

    /// Removes the session of an instance. To drop it detaches everything, for which the kernel takes long.
    pub(in crate::engine) fn remove(&mut self, instance: InstanceId) -> Option<InstanceSession> {
        self.sessions.remove(&instance)
    }

    /// The factory of sessions, once it was needed.
    pub(in crate::engine) fn factory(&self) -> Option<&Arc<SessionFactory>> {
        self.factory.as_ref()
    }

    /// Keeps the factory for further sessions.
    pub(in crate::engine) fn set_factory(&mut self, factory: Arc<SessionFactory>) {
        self.factory = Some(factory);
    }

    /// The hooks of events.
    pub(in crate::engine) fn hooks(&self) -> &HookChoices {
        &self.hooks
    }

    /// The hooks of events, to be added to.
    pub(in crate::engine) fn hooks_mut(&mut self) -> &mut HookChoices {
        &mut self.hooks
    }

    /// Whether an event is attached to no hook although it counts as attached, for it is off and needs no program.
    pub(in crate::engine) fn is_idle(&self, instance: InstanceId, event: EventId) -> bool {
        self.session(instance).is_some_and(|session| session.is_idle(event))
    }

    /// Whether an attached event is turned off, by a trigger or as one would do it.
    pub(in crate::engine) fn is_soft_off(&self, instance: InstanceId, event: EventId) -> bool {
        self.session(instance).is_some_and(|session| session.is_soft_off(event))
    }

    /// The rings of all instances.
    pub(in crate::engine) fn rings(&self) -> impl Iterator<Item = &RingMemory> {
        self.sessions.values().flat_map(|session| &session.queue.rings)
    }

    /// The process at the other end of this socket, which has called [`crate::attach::hold`], guards perf events from
    /// the next time on that many events are attached.
    pub(in crate::engine) fn set_guard(&mut self, socket: OwnedFd) {
        self.guard = Some(Arc::new(Guard::new(socket)));
    }

    /// The process that guards perf events, while it is there.
    pub(in crate::engine) fn guard(&self) -> Option<&Arc<Guard>> {
        self.guard.as_ref().filter(|guard| !guard.is_gone())
    }

    /// Hands the perf events of an instance to the guard.
    pub(in crate::engine) fn guard_events(&mut self, instance: InstanceId) {
        let Some(guard) = self.guard().cloned() else { return };
        if let Some(session) = self.session_mut(instance) {
            session.guard(&guard);
        }
    }

    /// Detaches everything of all instances. What is left are perf events that do nothing and take a while to be closed:
    /// the guard closes many, the caller closes those that are returned.
    pub(in crate::engine) fn end(&mut self) -> Vec<OwnedFd> {
        if let Some(guard) = self.guard() {
            guard.dismiss();
        }
        let sessions = std::mem::take(&mut self.sessions);
        let mut events: Vec<OwnedFd> = sessions.into_values().flat_map(InstanceSession::end).collect();
        // Opened for a change that did not come to its end.
        events.extend(take_unused());
        match self.guard() {
            Some(guard) if events.len() > INLINE_CLOSE_MAX => guard.hand_over(events),
            _ => events,
        }
    }
}
