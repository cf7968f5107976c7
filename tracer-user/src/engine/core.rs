//! All instances, and what they share: the catalogue of events, facts of the kernel, names of threads.

use std::{collections::BTreeMap, os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;

use crate::{
    attach::AttachError,
    buffer::{CpuBuffer, PageSize},
    engine::{
        attachments::{
            session::{self, InstanceSession, SessionFactory},
            sessions::Attachments,
        },
        client_memory::{ClientMemory, Ticket},
        facts::Facts,
        histograms::tables::Histograms,
        instances::{instance::Instance, options::TraceOptions},
        quota::Quotas,
        records::{names::Names, objects::Maps},
        registry::{EventRegistry, Events, published::PublishedEvents},
        scheduler::{Cooperative, Scheduler},
        tasks::TaskNames,
        user::user_events::UserEvents,
    },
    event::{EventId, InstanceId},
    kernel::{Error, proc::memory},
};

/// Numbers of instances: what fits into the number of a file.
const NUMBERS: u32 = 1 << 24;

/// Bytes of a directory's name at most (`NAME_MAX`).
const NAME_MAX: usize = 255;

/// Whether this can be a directory's name.
pub(in crate::engine) fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && name.len() <= NAME_MAX && !name.contains(['/', '\0'])
}

/// Instances below the top at most.
const INSTANCES: usize = 1024;

/// The option that says where `trace_printk()` writes.
const PRINTK: &str = "trace_printk_dest";

/// All instances.
#[derive(Debug)]
pub struct Engine {
    /// Facts of the kernel.
    pub facts: Arc<Facts>,
    pub(in crate::engine) registry: EventRegistry,
    pub(in crate::engine) instances: BTreeMap<InstanceId, Instance>,
    /// The number that the next instance gets.
    next: u32,
    pub(in crate::engine) attachments: Attachments,
    pub(in crate::engine) names: Option<Names>,
    changes: u64,
    /// Names of threads.
    pub tasks: TaskNames,
    /// The synthetic events that other programs emit.
    pub(in crate::engine) published: Option<PublishedEvents>,
    pub(in crate::engine) histograms: Histograms,
    pub(in crate::engine) user: UserEvents,
    /// What each uid's clients have.
    pub quotas: Quotas,
    /// The uid of the client whose write is being done; 0 is the daemon itself, too.
    pub client: u32,
    pub(in crate::engine) scheduler: Scheduler<Self>,
    /// What processes have mapped.
    pub(in crate::engine) maps: Maps,
    /// Whether what a mark comes to may have changed.
    pub(in crate::engine) marks_stale: bool,
}

impl Cooperative for Engine {
    fn scheduler(&self) -> &Scheduler<Self> {
        &self.scheduler
    }

    fn scheduler_mut(&mut self) -> &mut Scheduler<Self> {
        &mut self.scheduler
    }

    fn publish_step(&mut self) {
        self.publish_marks();
    }
}

impl Engine {
    /// The top instance, as the kernel has it at the start.
    ///
    /// # Errors
    /// When the kernel's events cannot be read.
    pub fn new(facts: Arc<Facts>) -> Result<Self, Error> {
        // First, so that no change of modules is missed.
        let registry = EventRegistry::read(&facts)?;
        let options = facts.tracefs.read("trace_options")?.unwrap_or_default();
        let options = TraceOptions::named(&options).and_of_tracers(facts.tracefs.options()?);
        let top = Instance::new("", options, facts.cpus(), PageSize::LEAST);
        Ok(Self {
            facts,
            registry,
            instances: BTreeMap::from([(InstanceId::TOP, top)]),
            next: InstanceId::TOP.get() + 1,
            attachments: Attachments::default(),
            names: None,
            changes: 0,
            tasks: TaskNames::default(),
            published: None,
            histograms: Histograms::default(),
            user: UserEvents::default(),
            quotas: Quotas::default(),
            client: 0,
            scheduler: Scheduler::default(),
            maps: Maps::default(),
            marks_stale: true,
        })
    }

    /// Counts up whenever something may have been set.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The events.
    pub fn registry(&self) -> &EventRegistry {
        &self.registry
    }

    /// The user events.
    pub fn user(&self) -> &UserEvents {
        &self.user
    }

    /// Sets how the memory of programs is reached.
    pub fn reach_programs_by(&mut self, memory: ClientMemory) {
        self.user.reach_by(memory, &self.quotas);
    }

    /// Opens `user_events_data` for a uid.
    ///
    /// # Errors
    /// Those of [`UserEvents::open`].
    pub fn open_user_events(&mut self, uid: u32) -> Result<u64, Errno> {
        self.user.open(uid, &self.quotas)
    }

    /// Ends the reports to programs; the bits that are being cleared.
    pub fn end_user_events(&mut self) -> Option<Ticket> {
        self.user.end_reports()
    }

    /// Whether an event is enabled in an instance, or held, so that it cannot be deleted.
    pub(in crate::engine) fn is_busy(&self, event: EventId) -> bool {
        self.registry.is_held(event) || self.all().any(|state| state.is_enabled(event))
    }

    /// Takes a reference to an event, which then is not deleted.
    pub fn hold_event(&mut self, event: EventId) {
        self.registry.hold(event);
    }

    /// Ends an [`Engine::hold_event`].
    pub fn release_event(&mut self, event: EventId) {
        if self.registry.release(event) {
            self.user.loosen(event);
        }
    }

    /// Says that something was set.
    pub fn touch(&mut self) {
        self.changes += 1;
        self.marks_stale = true;
    }

    /// An instance.
    pub fn get(&self, instance: InstanceId) -> Option<&Instance> {
        self.instances.get(&instance)
    }

    /// An instance, to be read by what takes from it.
    pub fn get_mut(&mut self, instance: InstanceId) -> Option<&mut Instance> {
        self.instances.get_mut(&instance)
    }

    pub(in crate::engine) fn state(&mut self, instance: InstanceId) -> Result<&mut Instance, Errno> {
        self.instances.get_mut(&instance).ok_or(Errno::NODEV)
    }

    /// All instances with their numbers.
    pub(in crate::engine) fn numbered(&self) -> impl Iterator<Item = (InstanceId, &Instance)> {
        self.instances.iter().map(|(number, state)| (*number, state))
    }

    /// All instances.
    pub(in crate::engine) fn all(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values()
    }

    /// What showing an instance's records needs.
    pub(in crate::engine) fn parts(
        &mut self,
        instance: InstanceId,
    ) -> Option<(&Facts, &Events, &TaskNames, &mut Instance)> {
        let Self { facts, registry, tasks, instances, .. } = self;
        Some((facts, registry.events(), tasks, instances.get_mut(&instance)?))
    }

    /// Numbers of all instances, the top first.
    pub(in crate::engine) fn numbers(&self) -> impl DoubleEndedIterator<Item = InstanceId> {
        self.instances.keys().copied()
    }

    /// Numbers and names of the instances below the top.
    pub fn below(&self) -> impl Iterator<Item = (InstanceId, &str)> {
        self.instances.iter().skip(1).map(|(number, instance)| (*number, instance.name.as_str()))
    }

    /// The number of an instance below the top.
    pub fn find(&self, name: &str) -> Option<InstanceId> {
        self.below().find(|(_, known)| *known == name).map(|(number, _)| number)
    }

    /// Makes an instance.
    ///
    /// # Errors
    /// `EEXIST`; `EINVAL` for what can be no directory's name; `ENOSPC` when numbers are used up, and `ENOMEM` where there
    /// are as many instances as there may be.
    pub fn make(&mut self, name: &str) -> Result<InstanceId, Errno> {
        if self.find(name).is_some() {
            return Err(Errno::EXIST);
        }
        if !is_name(name) {
            return Err(Errno::INVAL);
        }
        // A number is given once, and has to fit those of files.
        if self.next >= NUMBERS {
            return Err(Errno::NOSPC);
        }
        if self.instances.len() > INSTANCES {
            return Err(Errno::NOMEM);
        }
        let version = self.facts.version();
        let options = self.state(InstanceId::TOP)?.options.inherited(version);
        let instance = InstanceId::new(self.next);
        self.next += 1;
        self.touch();
        self.instances.insert(instance, Instance::new(name, options, self.facts.cpus(), PageSize::LEAST));
        Ok(instance)
    }

    /// Takes an instance away, with everything it has in the kernel.
    ///
    /// # Errors
    /// `ENOENT`, or `EBUSY` while one of its files is open.
    pub fn remove(&mut self, name: &str) -> Result<(), Errno> {
        let instance = self.find(name).ok_or(Errno::NOENT)?;
        if self.state(instance)?.users > 0 {
            return Err(Errno::BUSY);
        }
        if self.state(instance)?.options.is(PRINTK) {
            self.printk_destination(InstanceId::TOP, true)?;
        }
        let on: Vec<EventId> = self.state(instance)?.enabled.iter().copied().collect();
        self.keep_counts(instance, &on);
        self.forget_hists(instance);
        let removed = (self.instances.remove(&instance), self.attachments.remove(instance));
        self.touch();
        let names = if self.attachments.sessions().next().is_none() { self.names.take() } else { None };
        // The kernel takes up to 0.2 s to release the programs, links and rings of a session.
        self.run_off_thread(move || drop((removed, names)));
        Ok(())
    }

    /// Detaches everything. What is left are perf events that do nothing and take a while to be closed: the guard
    /// ([`Engine::guard_with`]) closes many, the caller closes those that are returned.
    pub fn end(&mut self) -> Vec<OwnedFd> {
        let left = self.attachments.end();
        self.drop_unused_names();
        left
    }

    /// The process at the other end of this socket, which has called [`crate::attach::hold`], guards perf tracepoints
    /// from the next time on that many events are attached.
    pub fn guard_with(&mut self, socket: OwnedFd) {
        self.attachments.set_guard(socket);
    }

    /// Whether there is memory for a buffer, or for those of all CPUs, of so many bytes each. Pages are taken as they are filled:
    /// what buffers were promised and do not have yet counts as taken.
    ///
    /// # Errors
    /// `ENOMEM`, as `ring_buffer_resize()` says when there is not as much memory as it would take.
    pub(in crate::engine) fn find_memory(
        &self,
        instance: InstanceId,
        cpu: Option<u32>,
        bytes: usize,
    ) -> Result<(), Errno> {
        let owed = |buffer: &CpuBuffer, size: usize| size.saturating_sub(buffer.taken()) as u64;
        let (mut more, mut promised) = (0_u64, 0_u64);
        for (number, state) in &self.instances {
            for (at, buffer) in state.buffer.select(None) {
                let resized = *number == instance && cpu.is_none_or(|cpu| cpu == at);
                let size = if resized { bytes } else { buffer.size() };
                more =
                    more.saturating_add(if resized { bytes.saturating_sub(buffer.size()) as u64 } else { 0 });
                promised = promised.saturating_add(owed(buffer, size));
            }
            for (_, spare) in state.snapshot.iter().flat_map(|snapshot| snapshot.select(None)) {
                promised = promised.saturating_add(owed(spare, spare.size()));
            }
        }
        // What makes a buffer no larger is never refused.
        if more == 0 || memory::available().is_none_or(|available| promised <= available) {
            return Ok(());
        }
        Err(Errno::NOMEM)
    }

    /// Counts an open file in.
    ///
    /// # Errors
    /// `ENODEV` when the instance is gone.
    pub fn hold(&mut self, instance: InstanceId) -> Result<(), Errno> {
        self.state(instance)?.users += 1;
        Ok(())
    }

    /// Counts an open file out.
    pub fn release(&mut self, instance: InstanceId) {
        if let Some(state) = self.get_mut(instance) {
            state.users = state.users.saturating_sub(1);
        }
    }

    /// Reserves the reading of one CPU's `trace_pipe`, or of the one of all.
    ///
    /// # Errors
    /// `EBUSY` while somebody else reads it, or one that it takes from.
    pub fn take_pipe(&mut self, instance: InstanceId, cpu: Option<u32>) -> Result<(), Errno> {
        let pipes = &mut self.state(instance)?.pipes;
        let taken = match cpu {
            None => !pipes.is_empty(),
            Some(_) => pipes.contains(&None) || pipes.contains(&cpu),
        };
        if taken {
            return Err(Errno::BUSY);
        }
        pipes.push(cpu);
        Ok(())
    }

    /// Ends a [`Engine::take_pipe`].
    pub fn give_pipe(&mut self, instance: InstanceId, cpu: Option<u32>) {
        if let Some(state) = self.get_mut(instance) {
            state.pipes.retain(|taken| *taken != cpu);
        }
    }

    /// Stops recording for a reader (`pause-on-trace`), or lets it go on.
    pub fn pause(&mut self, instance: InstanceId, on: bool) {
        if let Some(state) = self.instances.get_mut(&instance) {
            state.pause(on);
            if let Some(session) = self.attachments.session(instance) {
                session.kernel().switches().pause(state.stops > 0);
            }
        }
        self.marks_stale = true;
    }

    /// Byte offset of `pid` in the kernel's `struct task_struct`.
    pub(in crate::engine) fn task_pid(&self) -> Option<u32> {
        Some(self.facts.btf()?.member("task_struct", "pid").ok()??.offset)
    }

    /// One instance at a time is where `trace_printk()` writes: one takes it from another, none gives it away but the
    /// top gets it back.
    pub(in crate::engine) fn printk_destination(
        &mut self,
        instance: InstanceId,
        on: bool,
    ) -> Result<(), Errno> {
        let option = self.state(instance)?.options.find(PRINTK).ok_or(Errno::INVAL)?;
        if self.state(instance)?.options.get(option) == on {
            return Ok(());
        }
        if instance == InstanceId::TOP && !on {
            return Err(Errno::INVAL);
        }
        let target = if on { instance } else { InstanceId::TOP };
        for (number, state) in &mut self.instances {
            state.options.set(option, *number == target);
        }
        Ok(())
    }

    /// Makes an instance's session, where it has none yet.
    pub(in crate::engine) fn make_session(&mut self, instance: InstanceId) -> Result<(), Errno> {
        self.state(instance)?;
        if self.attachments.session(instance).is_some() {
            return Ok(());
        }
        if self.facts.is_frozen() {
            return Err(Errno::OPNOTSUPP);
        }
        let refused = |error: AttachError| session::log_to_errno(&error);
        let facts = self.facts.clone();
        let factory = match self.attachments.factory() {
            Some(factory) => Arc::clone(factory),
            None => Arc::new(self.run_off_thread(|| SessionFactory::find(&facts)).map_err(refused)?),
        };
        self.attachments.set_factory(Arc::clone(&factory));
        if self.names.is_none() {
            self.names = Some(self.run_off_thread(|| Names::follow(&factory, &facts)).map_err(refused)?);
        }
        let task_pid = self.task_pid();
        let mut session = self.run_off_thread(|| InstanceSession::new(&factory, &facts)).map_err(refused)?;
        self.marks_stale = true;
        let state = self.state(instance)?;
        state.threads.give_to(&mut session, task_pid)?;
        session.kernel().switches().pause(state.stops > 0);
        session.kernel().switches().set_tracing(state.on);
        self.attachments.insert(instance, session);
        Ok(())
    }

    /// Follows names no more once no instance is left that has anything in the kernel.
    fn drop_unused_names(&mut self) {
        if self.attachments.sessions().next().is_none() {
            self.names = None;
        }
    }

    /// The rings of all instances, and that of the tasks that take part in user events.
    pub fn rings(&self) -> impl Iterator<Item = &crate::sys::bpf::ring::RingMemory> {
        self.attachments.rings().chain(self.user.ring())
    }

    /// Numbers of the instances that record at this moment.
    pub fn recording(&self) -> Vec<InstanceId> {
        self.attachments.sessions().map(|(instance, _)| instance).collect()
    }
}
