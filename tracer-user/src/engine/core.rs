//! All instances, and the state that they share: the catalogue of events, facts of the kernel, names of threads.

use std::{os::fd::OwnedFd, sync::Arc};

use crate::{
    buffer::PageSize,
    engine::{
        attachments::{
            AttachOptions,
            session::{InstanceSession, SessionFactory},
            sessions::Attachments,
        },
        command::effects::PendingEffects,
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        histograms::tables::Histograms,
        instances::{Instances, instance::Instance, options::TraceOptions},
        quota::Quotas,
        records::{names::Names, objects::Maps},
        registry::{EventRegistry, published::PublishedEvents},
        scheduler::{Cooperative, Scheduler},
        tasks::TaskNames,
        user::user_events::UserEvents,
    },
    event::InstanceId,
    kernel::Error,
    sys::bpf::{cpu_ring::CpuRing, ring::RingMemory},
};

/// The engine: all instances and their shared state.
#[derive(Debug)]
pub struct Engine {
    /// Facts of the kernel.
    pub facts: Arc<Facts>,
    /// The events.
    pub registry: EventRegistry,
    /// The instances.
    pub instances: Instances,
    pub(crate) attachments: Attachments,
    pub(crate) names: Option<Names>,
    /// Effects that the front end has not applied yet.
    pub(crate) effects: PendingEffects,
    /// Names of threads, shared with readers that print records in other threads.
    pub tasks: Arc<TaskNames>,
    /// The synthetic events that programs outside the engine emit.
    pub(crate) published: Option<PublishedEvents>,
    pub(crate) histograms: Histograms,
    /// The user events.
    pub user: UserEvents,
    /// The quotas of the clients' payers.
    pub quotas: Quotas,
    pub(crate) scheduler: Scheduler<Self>,
    /// The mapped files of processes.
    pub(crate) maps: Maps,
}

impl Engine {
    /// Creates the top instance, with the kernel's initial settings.
    ///
    /// # Errors
    /// The kernel's events cannot be read.
    pub fn new(facts: Arc<Facts>) -> Result<Self, Error> {
        Self::with_options(facts, AttachOptions::default())
    }

    /// Like [`Engine::new`], for commands that trace without a mirror.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_options(facts: Arc<Facts>, options: AttachOptions) -> Result<Self, Error> {
        let attachments = Attachments::new(options);
        // First, so that no change of modules is missed.
        let registry = EventRegistry::read(&facts)?;
        let options = facts.tracefs.read("trace_options")?.unwrap_or_default();
        let mut options = TraceOptions::named(&options);
        if facts.has_newest_language() {
            options = options.and("bitmask-list");
        }
        let options = options.and_of_tracers(facts.tracefs.options()?);
        Ok(engine_of(facts, registry, attachments, options))
    }

    /// Detaches everything. Some perf events without effect remain, because they take long to close: the guard closes
    /// many, and the caller closes the returned ones.
    pub fn end(&mut self) -> Vec<OwnedFd> {
        let left = self.attachments.end();
        if self.attachments.sessions().next().is_none() {
            self.names = None;
        }
        left
    }

    /// Creates an instance's session, if it has none.
    pub(crate) fn make_session(&mut self, instance: InstanceId) -> Result<(), CommandError> {
        self.instances.state(instance)?;
        if self.attachments.session(instance).is_some() {
            return Ok(());
        }
        if self.facts.is_frozen() {
            return Err(ErrorKind::Unsupported.into());
        }
        let (facts, options) = (self.facts.clone(), self.attachments.options());
        let factory = match self.attachments.factory() {
            Some(factory) => Arc::clone(factory),
            None => Arc::new(self.run_off_thread(|| SessionFactory::find(&facts, options))?),
        };
        self.attachments.set_factory(Arc::clone(&factory));
        if self.names.is_none() && !options.without_names {
            self.names = Some(self.run_off_thread(|| Names::follow(&factory, &facts))?);
        }
        let task_pid = self.facts.task_pid();
        let mut session = self.run_off_thread(|| InstanceSession::new(&factory, &facts))?;
        self.effects.add_session();
        let state = self.instances.state(instance)?;
        state.threads.write_to(&mut session, task_pid)?;
        session.kernel().switches().pause(state.stops > 0);
        session.kernel().switches().set_tracing(state.on);
        session.kernel().switches().set_user_data(state.user_data);
        self.attachments.insert(instance, session);
        Ok(())
    }

    /// The ring buffers that wake the reader of an instance or of names, and the one of the processes with user events.
    pub fn rings(&self) -> impl Iterator<Item = &RingMemory> {
        let names = self.names.iter().flat_map(Names::rings).map(CpuRing::controls);
        self.attachments.rings().chain(names).chain(self.user.ring())
    }
}

/// An engine with these events and options.
fn engine_of(
    facts: Arc<Facts>,
    registry: EventRegistry,
    attachments: Attachments,
    options: TraceOptions,
) -> Engine {
    let mut top = Instance::new("", options, facts.cpus(), PageSize::LEAST);
    top.user_data = facts.later_files().user_data.unwrap_or_default();
    Engine {
        facts,
        registry,
        instances: Instances::new(top),
        attachments,
        names: None,
        effects: PendingEffects::default(),
        tasks: Arc::default(),
        published: None,
        histograms: Histograms::default(),
        user: UserEvents::default(),
        quotas: Quotas::default(),
        scheduler: Scheduler::default(),
        maps: Maps::default(),
    }
}

/// An engine for a recording. It has none of the kernel's options, and only those of the kernel's events that are
/// added because they are recorded.
pub(crate) fn for_recording(facts: Arc<Facts>) -> Engine {
    let attachments = Attachments::default();
    engine_of(facts, EventRegistry::default(), attachments, TraceOptions::named(""))
}
