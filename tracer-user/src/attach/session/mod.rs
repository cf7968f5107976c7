//! A tracing session: its maps, and attaching to every kind of hook.
//!
//! The parts of a session own their state: the maps ([`SessionMaps`]) with switches, counters and lists of threads,
//! the slots, the dispatch tables, the dispatchers of system calls, and the perf events and programs made ahead. The
//! life cycle of attached programs is in `attached/lifecycle.rs`.

mod attach;
mod programs;

use std::{
    collections::HashMap,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

#[cfg(feature = "bpf-log")]
use crate::attach::program::logs::Logs;
use crate::{
    attach::{
        AttachError, AttachPoint, Context, CounterTable, Guard, Options, Switches, ThreadTable,
        attached::{
            chain::{Chains, Rank, Sort},
            dispatch_table::{DispatchTables, ProgramCache},
        },
        hooks::{opened::OpenedEvents, syscalls::Dispatchers},
        link::LinkedExits,
        maps::SessionMaps,
        program::builder::LoadedProgram,
        slots::Slots,
        tasks::follow::Follow,
    },
    event::Format,
    kernel::Cast,
    plan::{filter::Filter, probe::ProbeContext, source::ProgramContext},
    sys::bpf::cpu_ring::CpuRing,
};

use super::program::object::Functions;

/// The maps and programs of one tracing session.
#[derive(Debug)]
pub struct Session {
    pub(crate) maps: Arc<SessionMaps>,
    context: Context,
    slots: Slots,
    pub(crate) tables: DispatchTables,
    cache: ProgramCache,
    chains: Chains,
    /// Whether the chains belong to this session alone.
    is_alone: bool,
    /// Identifies its consumers in chains.
    number: u64,
    /// Missed hits of gates that sessions share, when this session was made.
    missed_before: u64,
    /// Missed hits of consumers that left their chains.
    ended: Arc<AtomicU64>,
    calls: Dispatchers,
    follow: Option<Follow>,
    opened: OpenedEvents,
    /// The functions whose exits are linked to the session's gate.
    pub(super) exits: LinkedExits,
    /// Programs built ahead, by the kind of their event's records.
    prepared: HashMap<u16, Arc<LoadedProgram>>,
    #[cfg(feature = "bpf-log")]
    logs: Option<Logs>,
}

/// Reads whether a session takes hits, in any thread.
#[derive(Clone, Debug)]
pub struct TracingSwitch(Arc<SessionMaps>);

impl TracingSwitch {
    /// Whether the session takes hits, as user space or a trigger set it last.
    pub fn is_on(&self) -> bool {
        self.0.switches().is_tracing()
    }
}

impl Session {
    /// Makes the maps. Tracing is off until [`Switches::set_tracing`].
    ///
    /// # Errors
    /// When the kernel refuses a map.
    pub fn new(options: &Options, context: Context) -> Result<(Self, Vec<CpuRing>), AttachError> {
        let chains = Chains::new(options.slots, options.cpus, &context);
        let (mut session, rings) = Self::with_chains(options, context, chains)?;
        session.is_alone = true;
        Ok((session, rings))
    }

    /// As [`Session::new`], and the session's events share the links of tracepoints with other sessions.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn with_chains(
        options: &Options,
        context: Context,
        chains: Chains,
    ) -> Result<(Self, Vec<CpuRing>), AttachError> {
        let (maps, rings) = SessionMaps::new(options)?;
        context.install(&maps).map_err(|cause| AttachError::new("session", cause))?;
        let session = Self {
            maps: Arc::new(maps),
            calls: Dispatchers::new(context.registers, context.cast),
            context,
            slots: Slots::new(options.slots),
            tables: DispatchTables::new(options.slots),
            cache: ProgramCache::default(),
            number: chains.next_session(),
            is_alone: false,
            missed_before: chains.missed(),
            chains,
            ended: Arc::default(),
            follow: None,
            opened: OpenedEvents::default(),
            exits: LinkedExits::default(),
            prepared: HashMap::new(),
            #[cfg(feature = "bpf-log")]
            logs: None,
        };
        Ok((session, rings))
    }

    /// The map for a name of [`tracer_abi`].
    pub(crate) fn map(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.maps.named(name, None)
    }

    /// How programs read the interrupted context, and disable preemption.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// The switches, which programs read at each hit.
    pub fn switches(&self) -> &Switches {
        self.maps.switches()
    }

    /// A reader of [`Switches::is_tracing`] for other threads.
    pub fn tracing_switch(&self) -> TracingSwitch {
        TracingSwitch(Arc::clone(&self.maps))
    }

    /// The counts of events.
    pub fn counters(&self) -> &CounterTable {
        self.maps.counters()
    }

    /// The lists of threads.
    pub fn threads(&self) -> &ThreadTable {
        self.maps.threads()
    }

    /// The perf events that were opened for the next attachments.
    pub fn opened(&mut self) -> &mut OpenedEvents {
        &mut self.opened
    }

    /// Drops perf events and programs that were made ahead and not used.
    pub fn forget_ahead(&mut self) {
        self.opened.forget_ahead();
        self.prepared.clear();
    }

    /// From now on, traces the children of traced threads too and removes threads that end. `task_pid` is the byte
    /// offset of `pid` in `struct task_struct`.
    ///
    /// # Errors
    /// When the kernel refuses the programs.
    pub fn follow(&mut self, task_pid: u32) -> Result<(), AttachError> {
        let follow = Follow::new(self.maps.threads(), task_pid, &self.context)
            .map_err(|cause| AttachError::new("following tasks", cause))?;
        self.follow = Some(follow);
        Ok(())
    }

    /// Ends [`Session::follow`].
    pub fn unfollow(&mut self) {
        self.follow = None;
    }

    /// Hits for which the kernel ran no gate that events share and no dispatcher of system calls, because another program
    /// was running on that CPU, and the missed hits of events that are detached. Sessions share the gate of perf tracepoints, so the hits that it
    /// missed since this session was made are an upper bound of this session's.
    pub fn missed(&self) -> u64 {
        let shared = self.chains.missed().saturating_sub(self.missed_before);
        self.tables.missed() + self.calls.missed() + shared + self.ended.load(Ordering::Relaxed)
    }

    /// Whether an attachment at this attach point needs no perf event to be opened: it is open, or the tracepoint is
    /// linked.
    pub fn has_perf_event(&self, point: &AttachPoint) -> bool {
        self.opened.has(point) || self.chains.is_linked(point)
    }

    /// The rank of this session's consumers of a sort in a chain.
    pub(crate) fn rank(&self, sort: Sort) -> Rank {
        Rank { session: self.number, sort }
    }

    /// Passes the perf tracepoints to the guard process, which holds them too.
    pub fn guard(&self, guard: &Arc<Guard>) {
        self.chains.guard(guard);
    }

    /// Logs what programs logged since the last call, if the eBPF object is built with logging too.
    #[cfg(feature = "bpf-log")]
    pub fn show_logs(&mut self) {
        if let Some(logs) = &mut self.logs {
            logs.show();
        }
    }
}

/// A listing of the generated functions of an event at a hook. With `linked`, the whole program as the kernel gets it,
/// with its parameters in frozen memory and every map shown as descriptor 0; `cast` as in [`Context`].
///
/// # Errors
/// When no code can be generated for the plan at this hook.
pub fn listing(
    format: &Format,
    context: &ProgramContext,
    filter: Option<&Filter>,
    linked: bool,
    cast: Option<Cast>,
) -> Result<String, AttachError> {
    let functions = Functions::generate(format, context, filter, &[])
        .map_err(|cause| AttachError::new(format.full_name(), cause))?;
    if !linked {
        return Ok(functions.listing());
    }
    let template = match context {
        ProgramContext::Tracepoint | ProgramContext::CallTracepoint => "trace_event",
        ProgramContext::Probe(plan) => match plan.context {
            ProbeContext::Registers(_) => "kprobe_event",
            ProbeContext::Arguments(_) => "raw_event",
            ProbeContext::Call { exit: false, .. } => "fentry_event",
            ProbeContext::Call { exit: true, .. } => "fexit_event",
            ProbeContext::Record => "trace_event",
        },
        ProgramContext::UserRecord(_) => "uprobe_event",
        ProgramContext::RawTracepoint(_) | ProgramContext::Inject => "raw_event",
    };
    functions.linked(template, cast).map_err(|cause| AttachError::new(format.full_name(), cause))
}
