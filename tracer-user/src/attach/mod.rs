//! Loading linked objects and attaching them to hooks.
//!
//! A [`Session`] owns the maps that all of its programs share and the memory that both sides see. Each
//! attachment is a template of `tracer-ebpf` with generated functions linked in, loaded, and hung on its hook by
//! a descriptor: when the descriptors go, with the value or with the process, so does everything in the kernel.
//!
//! aya's object layer parses and relocates; maps and programs are made through `sys`, because sharing maps among
//! objects, cookies and `BPF_PROG_TYPE_SYSCALL` are beyond aya 0.14's loader.

mod beside;
mod calls;
mod context;
mod emitted;
mod error;
mod extras;
mod fentry;
mod fexit;
mod follow;
mod gate;
mod gated;
mod guard;
mod hist;
pub mod ids;
mod inject;
mod jump;
mod kprobe;
mod kprobe_multi;
mod kretprobe;
mod link;
#[cfg(feature = "bpf-log")]
mod logs;
mod make;
mod many;
mod maps;
mod object;
mod peek;
pub mod published;
mod raw_tp;
mod relay;
mod request;
mod shared;
mod syscalls;
mod tasks;
mod tracepoint;
mod unlink;
mod uprobe;
mod uretprobe;
mod via;

pub use calls::Calls;
pub use context::{Context, Preempt, Seek, TaskIds, seek_preempt};
pub use emitted::{Block, Emitted, emission};
pub use error::{AttachError, Cause};
pub use extras::{Extras, TracingSwitch};
pub use fentry::{Function, ModuleTypes};
pub use gate::{Hung, PlannedHang, Resting};
pub use gated::{Gated, PlannedGated};
pub use guard::{Guard, INLINE_CLOSE_MAX, hand_over, hold};
pub use hist::{Around as HistAround, Counted, Counting, Counts, part as hist_part};
pub use inject::Writer;
pub use kprobe::{KernelPlace, try_kprobe};
pub use make::{Built, BulkBuilder};
pub use many::{Ahead, Opening, close, make_way, take_off, take_unused};
pub use maps::Options;
pub use peek::{Hashes, kernel_word};
pub use relay::{Relay, Relayed, relayed};
pub use request::{Request, Threads};
pub use shared::{Linked, Together};
pub use tasks::{TaskOffsets, Tasks};
pub use unlink::{Hooks, Job, Moment, close_files, closed_since, now as moment};
pub use uprobe::FilePlace;
pub use via::Via;

use std::{collections::HashMap, os::fd::AsFd, sync::Arc};

use tracer_abi::{Counters, halted};

use crate::{
    event::Format,
    kernel::Cast,
    plan::{filter::Filter, probe::Given, source::Hook},
    sys::{
        map::Map,
        prog::{Prog, ProgInfo},
        ring::RingMemory,
    },
};
use beside::Beside;
use follow::Follow;
use gate::{Behind, Gate};
use link::Link;
use make::load;
use maps::Shared;
use object::{Functions, Image};
use syscalls::Dispatcher;

/// An attached event. It hangs on its hook as long as this lives.
#[derive(Debug)]
pub struct Attachment {
    /// Row of the counters.
    pub slot: u32,
    program: Prog,
    _scratch: Option<Map>,
    link: Link,
    _beside: Beside,
}

impl Attachment {
    /// What the kernel knows of the program.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn info(&self) -> Result<ProgInfo, crate::sys::Errno> {
        self.program.info()
    }
}

/// The maps and programs of one tracing session.
#[derive(Debug)]
pub struct Session {
    shared: Arc<Shared>,
    context: Context,
    enter: Option<Dispatcher>,
    exit: Option<Dispatcher>,
    follow: Option<Follow>,
    gate: Gate,
    /// Perf events that are opened ahead, and programs that were made ahead, by kind.
    ahead: Option<Ahead>,
    prepared: HashMap<u16, Arc<Behind>>,
    #[cfg(feature = "bpf-log")]
    logs: Option<logs::Logs>,
    next_slot: u32,
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
                gate: Gate::new(options.slots),
                ahead: None,
                prepared: HashMap::new(),
                #[cfg(feature = "bpf-log")]
                logs: None,
                next_slot: 0,
            },
            rings,
        ))
    }

    /// The map that programs mean by a name of [`tracer_abi`].
    pub(super) fn map(&self, name: &str) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.shared.named(name, None)
    }

    /// Turns the taking of hits on or off, at once and on all CPUs.
    pub fn set_tracing(&self, on: bool) {
        self.shared.halt(halted::OFF, !on);
    }

    /// Adds a thread (its id in the initial pid namespace) to the traced ones.
    ///
    /// # Errors
    /// `E2BIG` when the table is full.
    pub fn add_pid(&self, pid: u32) -> Result<(), AttachError> {
        self.shared.add_pid(pid)
    }

    /// From now on, traces the children of traced threads too and forgets threads that end. `task_pid` is the byte
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

    /// Puts a thread into lists, bits of [`tracer_abi::lists`]; 0 takes it out of all.
    ///
    /// # Errors
    /// `E2BIG` when the table is full.
    pub fn set_pid(&self, pid: u32, lists: u8) -> Result<(), AttachError> {
        self.shared.set_pid(pid, lists)
    }

    /// Says which lists of threads are in force, bits of [`tracer_abi::lists`]; only a session made with
    /// [`Options::pid_lists`] has any.
    pub fn set_lists(&self, in_force: u8) {
        self.shared.set_lists(in_force);
    }

    /// The threads that are in lists, and in which.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pids(&self) -> Result<Vec<(u32, u8)>, AttachError> {
        self.shared.listed()
    }

    /// Attaches an event.
    ///
    /// # Errors
    /// When the program does not pass the verifier or the hook is refused.
    pub fn attach(&mut self, request: &Request<'_>) -> Result<Attachment, AttachError> {
        // Who records nothing counts nothing.
        let counts = !request.extras.no_record;
        let slot = if counts { self.next_slot } else { 0 };
        if slot >= self.shared.slots() {
            return Err(AttachError::new("counters", Cause::TooMany(self.shared.slots())));
        }
        let named = |cause| AttachError::new(request.format.full_name(), cause);
        let mut beside = Beside::load(request).map_err(named)?;
        let (program, scratch) = self.program(request, slot, None, &beside)?;
        beside.hang_before(self, request.via).map_err(named)?;
        let link = self.hook(&program, request.via).map_err(named)?;
        beside.hang_behind(self, request.via);
        #[cfg(feature = "bpf-log")]
        if self.logs.is_none() {
            self.logs = program.info().ok().and_then(|info| logs::Logs::of(info.id));
        }
        self.next_slot += u32::from(counts);
        Ok(Attachment { slot, program, _scratch: scratch, link, _beside: beside })
    }

    /// Loads the program of a request, with scratch memory of its own (`known`, if it has some) where it needs it.
    fn program(
        &self,
        request: &Request<'_>,
        slot: u32,
        known: Option<&Map>,
        beside: &Beside,
    ) -> Result<(Prog, Option<Map>), AttachError> {
        let (image, scratch) = self.image(request, slot, known, beside)?;
        Ok((load(request, &image)?, scratch))
    }

    /// Makes the program of a request.
    fn image(
        &self,
        request: &Request<'_>,
        slot: u32,
        known: Option<&Map>,
        beside: &Beside,
    ) -> Result<(Image, Option<Map>), AttachError> {
        let functions = request.functions()?;
        let maker = self.maker();
        let fixed = maker.params(request, &functions, slot);
        maker.linked(request, &functions, &fixed, known, beside)
    }

    /// Hangs a program on its hook.
    fn hook(&mut self, program: &Prog, via: &Via) -> Result<Link, Cause> {
        match via {
            Via::Tracepoint(id) => tracepoint::attach(program, *id),
            Via::RawTracepoint(name) => raw_tp::attach(program, name),
            Via::SysEnter(number) => self.syscall(true, *number, program),
            Via::SysEnterAlone(_) => raw_tp::attach(program, "sys_enter"),
            Via::SysExit(number) => self.syscall(false, *number, program),
            Via::Kprobe(place) => kprobe::attach(program, place),
            Via::Kretprobe(place) => kretprobe::attach(program, place),
            Via::Uprobe(place) => uprobe::attach(program, place, false),
            Via::Uretprobe(place) => uretprobe::attach(program, place),
            Via::Fentry(_) => fentry::attach(program),
            Via::Fexit(_) => fexit::attach(program),
            Via::KprobeMulti { addresses, exit } => kprobe_multi::attach(program, addresses, *exit),
            Via::Shared { address, exit } => kprobe_multi::attach(program, &[*address], *exit),
            Via::Inject | Via::Emitted => Ok(Link::None),
        }
    }

    /// A row of the counters that nobody has, empty.
    fn take_slot(&mut self) -> Result<u32, AttachError> {
        if let Some(slot) = self.gate.free_slot() {
            self.shared.clear_counters(slot);
            return Ok(slot);
        }
        if self.next_slot >= self.shared.slots() {
            return Err(AttachError::new("counters", Cause::TooMany(self.shared.slots())));
        }
        self.next_slot += 1;
        Ok(self.next_slot - 1)
    }

    /// Hangs an event up behind the gate, where it can be changed and taken off while it fires.
    ///
    /// # Errors
    /// When the program does not pass the verifier or the hook is refused, as [`Via::Inject`] and [`Via::SysEnterAlone`] are.
    pub fn hang(&mut self, request: &Request<'_>) -> Result<Hung, AttachError> {
        let slot = self.take_slot()?;
        self.shared.set_soft(slot, request.extras.begins_off);
        let hung = self.behind_gate(request, slot).and_then(|behind| {
            let named = |cause| AttachError::new(request.format.full_name(), cause);
            self.set_call(request.via, Some((&behind, request.cookie(slot)))).map_err(named)?;
            let opened = match request.via {
                Via::Tracepoint(id) => self.ahead.as_mut().and_then(|ahead| ahead.take(*id)),
                _ => None,
            };
            self.gate.hang(slot, request.via, request.kind, behind, opened).map_err(named)
        });
        if hung.is_err() {
            self.gate.give_back(slot);
        }
        hung
    }

    /// Plans how an event hangs at a file, behind the gate; what is left is its link.
    ///
    /// # Errors
    /// As [`Session::hang`].
    pub fn plan_hang(&mut self, request: &Request<'_>) -> Result<(PlannedHang, Job), AttachError> {
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

    /// The event, once it is linked.
    ///
    /// # Errors
    /// When it could not be.
    pub fn finish_hang(
        &mut self,
        name: &str,
        planned: PlannedHang,
        made: Hooks,
    ) -> Result<Hung, AttachError> {
        self.gate.finish_file(planned, made).map_err(|cause| AttachError::new(name, cause))
    }

    /// Gives an event behind the gate another program: every hit is seen by the old or by the new one, and once.
    ///
    /// # Errors
    /// When the program does not pass the verifier, or the request is for another hook; the old one goes on then.
    pub fn change(&mut self, hung: &mut Hung, request: &Request<'_>) -> Result<(), AttachError> {
        request.must_be_at(&hung.via)?;
        let behind = self.behind_gate(request, hung.slot)?;
        let put = if gate::is_call(&hung.via) {
            self.set_call(&hung.via, Some((&behind, request.cookie(hung.slot))))
        } else {
            self.gate.put(&hung.via, hung.slot, &behind)
        };
        put.map_err(|cause| AttachError::new(request.format.full_name(), cause))?;
        hung.behind = behind;
        Ok(())
    }

    /// Turns an event behind the gate off, at once and on all CPUs.
    pub fn rest(&mut self, hung: Hung) -> Resting {
        // A place in a table can be cleared.
        let _ = self.set_call(&hung.via, None);
        self.gate.rest(hung)
    }

    /// Turns an event on again.
    ///
    /// # Errors
    /// When the program does not pass the verifier, or the request is for another hook than [`Resting::via`]; the event is taken
    /// off its hook then.
    pub fn resume(&mut self, resting: Resting, request: &Request<'_>) -> Result<Hung, AttachError> {
        request.must_be_at(resting.via())?;
        let behind = self.behind_gate(request, resting.slot())?;
        self.shared.set_soft(resting.slot(), request.extras.begins_off);
        let named = |cause| AttachError::new(request.format.full_name(), cause);
        self.set_call(request.via, Some((&behind, request.cookie(resting.slot())))).map_err(named)?;
        self.gate.resume(resting, behind).map_err(named)
    }

    /// Hits of events behind the gate for which the kernel ran no program, since another was running on that CPU; `hung`
    /// are those that are on.
    pub fn missed<'a>(&self, hung: impl Iterator<Item = &'a Hung>) -> u64 {
        self.gate.missed(hung)
    }

    /// Sets or clears a system call's place in its dispatcher; nothing for other hooks.
    fn set_call(&mut self, via: &Via, behind: Option<(&Behind, u64)>) -> Result<(), Cause> {
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

    /// Puts a program into the dispatcher of its side, which is loaded for the first one.
    fn syscall(&mut self, enter: bool, number: u32, program: &Prog) -> Result<Link, Cause> {
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

    /// Takes an event off its hook.
    ///
    /// # Errors
    /// What the kernel says.
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

    /// Shows what programs logged since the last time; nothing unless both sides are built for it.
    pub fn show_logs(&mut self) {
        #[cfg(feature = "bpf-log")]
        if let Some(logs) = &mut self.logs {
            logs.show();
        }
    }

    /// The counts of an event on a CPU.
    pub fn counters(&self, slot: u32, cpu: u32) -> Counters {
        self.shared.counters(slot, cpu)
    }

    /// The counts of an event on all CPUs.
    pub fn total(&self, slot: u32) -> Counters {
        (0..self.shared.cpus()).map(|cpu| self.counters(slot, cpu)).fold(Counters::default(), Counters::plus)
    }
}

/// The generated functions of an event at a hook, readable; or, linked, the whole program as the kernel gets it, its
/// parameters in frozen memory and every map shown as descriptor 0; `cast` as in [`Context`].
///
/// # Errors
/// When the plan has no code at this hook.
pub fn listing(
    format: &Format,
    hook: &Hook,
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
        Hook::Tracepoint => "trace_event",
        Hook::Probe(plan) => match plan.given {
            Given::Registers(_) => "kprobe_event",
            Given::Arguments(_) => "raw_event",
            Given::Call { exit: false, .. } => "fentry_event",
            Given::Call { exit: true, .. } => "fexit_event",
            Given::Record => "trace_event",
        },
        Hook::Handed(_) => "uprobe_event",
        Hook::RawTracepoint(_) | Hook::Inject => "raw_event",
    };
    functions.linked(template, cast).map_err(|cause| AttachError::new(format.full_name(), cause))
}
