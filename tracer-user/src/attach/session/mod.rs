//! A tracing session: its maps, and attaching to every kind of hook.

mod programs;
pub(in crate::attach) mod switches;

use std::{collections::HashMap, os::fd::AsFd, sync::Arc};

use tracer_abi::{Counters, halted};

use crate::{
    attach::{
        AttachError, AttachPoint, Cause, Context, Options, Request,
        attached::dispatch_table::{self, Attached, DispatchTable, Parked, PlannedAttach},
        close::perf_event::PerfEvent,
        hooks::{
            self,
            ahead::Ahead,
            syscalls::Dispatcher,
            uprobe::{Hooks, Job},
        },
        link::Link,
        program::{
            builder::{SharedProgram, load},
            companions::Companions,
            inject::{self, Writer},
            maps::Shared,
            object::{Functions, Image},
        },
        tasks::follow::Follow,
    },
    event::{Format, Slot},
    kernel::Cast,
    plan::{filter::Filter, probe::ProbeContext, source::ProgramContext},
    sys::bpf::{
        map::Map,
        prog::{Prog, ProgInfo},
        ring::RingMemory,
    },
};

/// An attached event. It stays attached while this lives.
#[derive(Debug)]
pub struct Attachment {
    /// Row of the counters.
    pub slot: Slot,
    pub(in crate::attach) program: Prog,
    _scratch: Option<Map>,
    link: Link,
    _beside: Companions,
}

impl Attachment {
    /// The kernel's information about the program.
    ///
    /// # Errors
    /// When the kernel refuses the query.
    pub fn info(&self) -> Result<ProgInfo, crate::sys::Errno> {
        self.program.info()
    }
}

/// The maps and programs of one tracing session.
#[derive(Debug)]
pub struct Session {
    pub(in crate::attach) shared: Arc<Shared>,
    pub(in crate::attach) context: Context,
    pub(in crate::attach) enter: Option<Dispatcher>,
    pub(in crate::attach) exit: Option<Dispatcher>,
    pub(in crate::attach) follow: Option<Follow>,
    pub(in crate::attach) gate: DispatchTable,
    /// Perf events that are opened ahead. The field after it has programs made ahead, by kind.
    pub(in crate::attach) ahead: Option<Ahead>,
    pub(in crate::attach) prepared: HashMap<u16, Arc<SharedProgram>>,
    /// Perf events that the caller opened for its next attachments.
    pub(in crate::attach) opened: Vec<(AttachPoint, Result<PerfEvent, Cause>)>,
    #[cfg(feature = "bpf-log")]
    pub(in crate::attach) logs: Option<logs::Logs>,
    pub(in crate::attach) next_slot: u32,
}

impl Session {
    /// Makes the maps. Tracing is off until [`Session::set_tracing`].
    ///
    /// # Errors
    /// When the kernel refuses a map.
    pub fn new(options: &Options, context: Context) -> Result<(Self, Vec<RingMemory>), AttachError> {
        let (shared, rings) = Shared::new(options)?;
        context.install(&shared).map_err(|cause| AttachError::new("session", cause))?;
        Ok((
            Self {
                shared: Arc::new(shared),
                context,
                enter: None,
                exit: None,
                follow: None,
                gate: DispatchTable::new(options.slots),
                ahead: None,
                prepared: HashMap::new(),
                opened: Vec::new(),
                #[cfg(feature = "bpf-log")]
                logs: None,
                next_slot: 0,
            },
            rings,
        ))
    }

    /// The map for a name of [`tracer_abi`].
    pub(in crate::attach) fn map(&self, name: &str) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.shared.named(name, None)
    }

    /// Turns tracing on or off, at once and on all CPUs.
    pub fn set_tracing(&self, on: bool) {
        self.shared.halt(halted::OFF, !on);
    }

    /// Adds a thread, by its id in the initial pid namespace, to the traced ones.
    ///
    /// # Errors
    /// `E2BIG` when the table is full.
    pub fn add_pid(&self, pid: u32) -> Result<(), AttachError> {
        self.shared.add_pid(pid)
    }

    /// From now on, traces the children of traced threads too and removes threads that end. `task_pid` is the byte
    /// offset of `pid` in `struct task_struct`.
    ///
    /// # Errors
    /// When the kernel refuses the programs.
    pub fn follow(&mut self, task_pid: u32) -> Result<(), AttachError> {
        let follow = Follow::new(&self.shared, task_pid, self.context.cast)
            .map_err(|cause| AttachError::new("following tasks", cause))?;
        self.follow = Some(follow);
        Ok(())
    }

    /// Ends [`Session::follow`].
    pub fn unfollow(&mut self) {
        self.follow = None;
    }

    /// Puts a thread into lists, bits of [`tracer_abi::lists`]; 0 removes it from all.
    ///
    /// # Errors
    /// `E2BIG` when the table is full.
    pub fn set_pid(&self, pid: u32, lists: u8) -> Result<(), AttachError> {
        self.shared.set_pid(pid, lists)
    }

    /// Sets which lists of threads are active, bits of [`tracer_abi::lists`]. Only a session created with
    /// [`Options::pid_lists`] has lists.
    pub fn set_lists(&self, in_force: u8) {
        self.shared.set_lists(in_force);
    }

    /// The threads that are in lists, each with its lists.
    ///
    /// # Errors
    /// When the kernel refuses to read the table.
    pub fn pids(&self) -> Result<Vec<(u32, u8)>, AttachError> {
        self.shared.listed()
    }

    /// Attaches an event.
    ///
    /// # Errors
    /// When the program does not pass the verifier or the hook is refused.
    pub fn attach(&mut self, request: &Request<'_>) -> Result<Attachment, AttachError> {
        // A program that records nothing needs no counters.
        let counts = !request.extras.no_record;
        let slot = Slot::new(if counts { self.next_slot } else { 0 });
        if slot.get() >= self.shared.slots() {
            return Err(AttachError::new("counters", Cause::TooMany(self.shared.slots())));
        }
        let named = |cause| AttachError::new(request.format.full_name(), cause);
        let mut beside = Companions::load(request).map_err(named)?;
        let (program, scratch) = self.program(request, slot, None, &beside)?;
        beside.attach_before(request.via).map_err(named)?;
        let link = self.hook(&program, request.via).map_err(named)?;
        beside.attach_prefault(request.via);
        #[cfg(feature = "bpf-log")]
        if self.logs.is_none() {
            self.logs = program.info().ok().and_then(|info| logs::Logs::of(info.id));
        }
        self.next_slot += u32::from(counts);
        Ok(Attachment { slot, program, _scratch: scratch, link, _beside: beside })
    }

    /// Loads the program of a request, with its own scratch memory where it needs some (`known`, if it exists already).
    pub(in crate::attach) fn program(
        &self,
        request: &Request<'_>,
        slot: Slot,
        known: Option<&Map>,
        beside: &Companions,
    ) -> Result<(Prog, Option<Map>), AttachError> {
        let (image, scratch) = self.image(request, slot, known, beside)?;
        Ok((load(request, &image)?, scratch))
    }

    /// Links the program of a request.
    pub(in crate::attach) fn image(
        &self,
        request: &Request<'_>,
        slot: Slot,
        known: Option<&Map>,
        beside: &Companions,
    ) -> Result<(Image, Option<Map>), AttachError> {
        let functions = request.functions()?;
        let maker = self.maker();
        let fixed = maker.params(request, &functions, slot);
        maker.linked(request, &functions, &fixed, known, beside)
    }

    /// Attaches a program to a hook.
    pub(in crate::attach) fn hook(&mut self, program: &Prog, via: &AttachPoint) -> Result<Link, Cause> {
        match via.call() {
            Some((enter, number)) => self.syscall(enter, number, program),
            None => hooks::attach(program, via, self.take_opened(via)),
        }
    }

    /// Stores a perf event that [`open_perf_event`] opened. The next attachment at this attach point uses it.
    pub fn give_opened(&mut self, via: AttachPoint, event: Result<PerfEvent, Cause>) {
        self.opened.push((via, event));
    }

    /// Drops the stored perf events that were not used.
    pub fn forget_opened(&mut self) {
        self.opened.clear();
    }

    /// Whether the perf event of an attach point is open or being opened ([`Session::open_ahead`]). True also if the attach
    /// point has none.
    pub fn is_opened(&mut self, via: &AttachPoint) -> bool {
        match via {
            AttachPoint::Tracepoint(id) if self.ahead.as_mut().is_some_and(|ahead| ahead.has(*id)) => true,
            AttachPoint::Tracepoint(_) | AttachPoint::Kprobe(_) | AttachPoint::Kretprobe(_) => {
                self.opened.iter().any(|(other, _)| other == via)
            }
            _ => true,
        }
    }

    pub(in crate::attach) fn take_opened(&mut self, via: &AttachPoint) -> Option<Result<PerfEvent, Cause>> {
        let at = self.opened.iter().position(|(other, _)| other == via)?;
        Some(self.opened.swap_remove(at).1)
    }

    /// Takes an unused, cleared row of the counters.
    pub(in crate::attach) fn take_slot(&mut self) -> Result<Slot, AttachError> {
        if let Some(slot) = self.gate.free_slot() {
            self.shared.clear_counters(slot);
            return Ok(slot);
        }
        if self.next_slot >= self.shared.slots() {
            return Err(AttachError::new("counters", Cause::TooMany(self.shared.slots())));
        }
        self.next_slot += 1;
        Ok(Slot::new(self.next_slot - 1))
    }

    /// Attaches an event through the dispatch table, where it can be changed and detached while it fires.
    ///
    /// # Errors
    /// When the program does not pass the verifier or the kernel refuses the hook. [`AttachPoint::Inject`] and
    /// [`AttachPoint::SysEnterAlone`] are always refused.
    pub fn attach_hook(&mut self, request: &Request<'_>) -> Result<Attached, AttachError> {
        let slot = self.take_slot()?;
        self.shared.set_soft(slot, request.extras.begins_off);
        let attached = self.behind_gate(request, slot).and_then(|behind| {
            let named = |cause| AttachError::new(request.format.full_name(), cause);
            self.set_call(request.via, Some((&behind, request.cookie(slot)))).map_err(named)?;
            let ahead = match request.via {
                AttachPoint::Tracepoint(id) => self.ahead.as_mut().and_then(|ahead| ahead.take(*id)),
                _ => None,
            };
            let opened = ahead.or_else(|| self.take_opened(request.via));
            self.gate.attach_hook(slot, request.via, request.kind, behind, opened).map_err(named)
        });
        if attached.is_err() {
            self.gate.give_back(slot);
        }
        attached
    }

    /// Plans an event of a file through the dispatch table; only its link remains to be made.
    ///
    /// # Errors
    /// As [`Session::attach_hook`].
    pub fn plan_attach(&mut self, request: &Request<'_>) -> Result<(PlannedAttach, Job), AttachError> {
        let slot = self.take_slot()?;
        self.shared.set_soft(slot, request.extras.begins_off);
        let planned = self.behind_gate(request, slot).and_then(|behind| {
            let named = |cause| AttachError::new(request.format.full_name(), cause);
            self.gate.plan_file(slot, request.via, request.kind, behind).map_err(named)
        });
        if planned.is_err() {
            self.gate.give_back(slot);
        }
        planned
    }

    /// Completes an event of a file with its link.
    ///
    /// # Errors
    /// When the link could not be made.
    pub fn finish_attach(
        &mut self,
        name: &str,
        planned: PlannedAttach,
        made: Hooks,
    ) -> Result<Attached, AttachError> {
        self.gate.finish_file(planned, made).map_err(|cause| AttachError::new(name, cause))
    }

    /// Replaces the program of an event in the dispatch table: every hit runs either the old or the new one, exactly once.
    ///
    /// # Errors
    /// When the program does not pass the verifier, or the request is for another hook; the old program stays.
    pub fn change(&mut self, attached: &mut Attached, request: &Request<'_>) -> Result<(), AttachError> {
        request.must_be_at(&attached.via)?;
        let behind = self.behind_gate(request, attached.slot)?;
        let put = if dispatch_table::is_call(&attached.via) {
            self.set_call(&attached.via, Some((&behind, request.cookie(attached.slot))))
        } else {
            self.gate.put(&attached.via, attached.slot, &behind)
        };
        put.map_err(|cause| AttachError::new(request.format.full_name(), cause))?;
        attached.behind = behind;
        Ok(())
    }

    /// Turns an event in the dispatch table off, at once and on all CPUs.
    pub fn rest(&mut self, attached: Attached) -> Parked {
        // Clearing a set slot does not fail.
        let _ = self.set_call(&attached.via, None);
        self.gate.rest(attached)
    }

    /// Turns an event on again.
    ///
    /// # Errors
    /// When the program does not pass the verifier, or the request is for another hook than [`Parked::via`]. The event
    /// is then detached.
    pub fn resume(&mut self, resting: Parked, request: &Request<'_>) -> Result<Attached, AttachError> {
        request.must_be_at(resting.via())?;
        let behind = self.behind_gate(request, resting.slot())?;
        self.shared.set_soft(resting.slot(), request.extras.begins_off);
        let named = |cause| AttachError::new(request.format.full_name(), cause);
        self.set_call(request.via, Some((&behind, request.cookie(resting.slot())))).map_err(named)?;
        self.gate.resume(resting, behind).map_err(named)
    }

    /// Hits of events in the dispatch table for which the kernel ran no program, because another one was running on
    /// that CPU. `attached` are the events that are on.
    pub fn missed<'a>(&self, attached: impl Iterator<Item = &'a Attached>) -> u64 {
        self.gate.missed(attached)
    }

    /// Sets or clears a system call's slot in its dispatcher; does nothing for other hooks.
    pub(in crate::attach) fn set_call(
        &mut self,
        via: &AttachPoint,
        behind: Option<(&SharedProgram, u64)>,
    ) -> Result<(), Cause> {
        let Some((enter, number)) = via.call() else { return Ok(()) };
        match behind {
            Some((behind, cookie)) => {
                self.shared.set_call(enter, number, cookie)?;
                self.syscall(enter, number, &behind.program).map(drop)
            }
            None => match if enter { &self.enter } else { &self.exit } {
                Some(dispatcher) => dispatcher.clear(number),
                None => Ok(()),
            },
        }
    }

    /// Puts a program into the dispatcher for entries or exits, which is loaded on first use.
    pub(in crate::attach) fn syscall(
        &mut self,
        enter: bool,
        number: u32,
        program: &Prog,
    ) -> Result<Link, Cause> {
        let side = if enter { &mut self.enter } else { &mut self.exit };
        if side.is_none() {
            let registers = self.context.registers.ok_or(Cause::NoRegisters)?;
            *side = Some(Dispatcher::new(enter, registers.number, self.context.cast)?);
        }
        if let Some(dispatcher) = side {
            dispatcher.set(number, program.as_fd())?;
        }
        Ok(Link::Syscall { enter, number })
    }

    /// Detaches an event.
    ///
    /// # Errors
    /// When the kernel refuses to change the dispatcher's table.
    pub fn detach(&mut self, attachment: Attachment) -> Result<(), AttachError> {
        if let Link::Syscall { enter, number } = attachment.link {
            let side = if enter { &self.enter } else { &self.exit };
            if let Some(dispatcher) = side {
                dispatcher.clear(number).map_err(|cause| AttachError::new("syscall", cause))?;
            }
        }
        drop(attachment);
        Ok(())
    }

    /// Logs what programs logged since the last call; nothing unless both sides are built with logging.
    pub fn show_logs(&mut self) {
        #[cfg(feature = "bpf-log")]
        if let Some(logs) = &mut self.logs {
            logs.show();
        }
    }

    /// The counts of an event on a CPU.
    pub fn counters(&self, slot: Slot, cpu: u32) -> Counters {
        self.shared.counters(slot, cpu)
    }

    /// The counts of an event on all CPUs.
    pub fn total(&self, slot: Slot) -> Counters {
        (0..self.shared.cpus()).map(|cpu| self.counters(slot, cpu)).fold(Counters::default(), Counters::plus)
    }

    /// Injects a record into an event attached through [`crate::attach::AttachPoint::Inject`]. Returns what its triggers ask
    /// for ([`tracer_abi::asked`]).
    ///
    /// # Errors
    /// When the kernel refuses to run the program.
    pub fn inject(
        &self,
        attachment: &Attachment,
        record: &[u8],
        writer: &Writer,
    ) -> Result<u64, AttachError> {
        inject::run(&attachment.program, record, writer).map_err(|cause| AttachError::new("inject", cause))
    }

    /// Stores perf events for [`Session::attach_hook`], until [`Session::forget_ahead`].
    pub fn open_ahead(&mut self, ahead: Ahead) {
        self.ahead = Some(ahead);
    }

    /// Whether [`Session::attach_hook`] would wait for a perf event that is being opened.
    pub fn is_being_opened(&mut self, id: u16) -> bool {
        self.ahead.as_mut().is_some_and(|ahead| ahead.is_due(id))
    }

    /// Drops perf events and programs that were made ahead and not used.
    pub fn forget_ahead(&mut self) {
        self.ahead = None;
        self.prepared.clear();
    }
}

/// A listing of the generated functions of an event at a hook. With `linked`, the whole program as the kernel gets it,
/// with its parameters in frozen memory and every map shown as descriptor 0; `cast` as in [`Context`].
///
/// # Errors
/// When no code can be generated for the plan at this hook.
pub fn listing(
    format: &Format,
    hook: &ProgramContext,
    filter: Option<&Filter>,
    linked: bool,
    cast: Option<Cast>,
) -> Result<String, AttachError> {
    let functions = Functions::generate(format, hook, filter, &[])
        .map_err(|cause| AttachError::new(format.full_name(), cause))?;
    if !linked {
        return Ok(functions.listing());
    }
    let template = match hook {
        ProgramContext::Tracepoint => "trace_event",
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
