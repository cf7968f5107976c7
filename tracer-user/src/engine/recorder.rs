//! A recording: events attached, records drained in order, counts at the end.

use std::{
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use tracer_abi::{Counters, control};

use super::{
    facts::Facts,
    hooks::{self, AttachPlan, Trial, Verdicts},
    probes, programs,
    selection::Selected,
    tasks::{NameEvent, TaskNames},
};
use crate::{
    attach::{
        self, Ahead, AttachError, AttachPoint, Attached, Cause, Context, Dispatch, HitActions, Opening,
        Preempt, Request, Seek, Session, TaskIds, Threads, ids,
    },
    event::{Format, Slot},
    kernel::Cast,
    plan::source::ProgramContext,
    render::Printer,
    ring::{Drain, Record, Waiter, Woken},
    sys::bpf::prog::ProgKind,
};

/// What a recording is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of each CPU's ring buffer.
    pub ring_bytes: u32,
    /// Threads that are traced, by id in the initial pid namespace, with their children; empty for all.
    pub pids: Vec<u32>,
    /// Whether only [`Options::pids`] are traced even while there are none.
    pub only_pids: bool,
    /// Whether the tracer's own threads are traced.
    pub own: bool,
    /// Whether only perf tracepoints are used.
    pub tracepoints_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        // The kernel's default is 1,408 KiB a CPU; a BPF ring buffer wants a power of two.
        Self { ring_bytes: 2 << 20, pids: Vec::new(), only_pids: false, own: false, tracepoints_only: false }
    }
}

/// How long the reader sleeps at most while records may be waiting below the watermark.
const PERIOD: Duration = Duration::from_millis(20);
/// How long at first, as somebody may wait for the first records: a little longer than they take to settle ([`Drain`]).
const FIRST_PERIOD: Duration = Duration::from_millis(3);
/// How long the end of a recording waits for hits that are still being written.
const LAST_HITS: Duration = Duration::from_millis(200);

/// An event in a recording.
#[derive(Debug)]
struct Traced {
    attachment: Attached,
    printer: Arc<Printer>,
    chosen: AttachPlan,
}

/// What became of an event's hits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// `system:name`.
    pub event: String,
    /// Hits that passed the gates, and what became of them.
    pub counters: Counters,
    /// Hits that the kernel did not run the program for, because it (or, at a perf tracepoint, any other) was running
    /// on that CPU.
    pub missed: u64,
}

/// A record with all that is needed to show it.
pub struct Shown<'a> {
    /// When and where.
    pub record: Record<'a>,
    /// The event.
    pub printer: &'a Arc<Printer>,
    /// Names of threads.
    pub tasks: &'a TaskNames,
}

/// A recording that runs.
#[derive(Debug)]
pub struct Recorder {
    session: Session,
    traced: Vec<Traced>,
    /// Index in `traced` by event id.
    by_id: Vec<u16>,
    names: Vec<(Attached, NameEvent)>,
    drain: Drain,
    waiter: Waiter,
    /// How long the reader sleeps next.
    period: Duration,
    tasks: TaskNames,
    taken: u64,
    wants_groups: bool,
    /// Whether events share programs where they can, and are taken off together.
    shares: bool,
}

/// No event in [`Recorder::by_id`].
const NOBODY: u16 = u16::MAX;

impl Recorder {
    /// Attaches everything; nothing is recorded until [`Recorder::go`]. When something is refused, all is taken back.
    ///
    /// # Errors
    /// The first refusal.
    pub fn new(selected: Vec<Selected>, options: &Options, facts: &Facts) -> Result<Self, AttachError> {
        let own = ids::own().map_err(|cause| AttachError::new("own process id", cause))?;
        let gate = options.only_pids || !options.pids.is_empty();
        let sizes = attach::Options {
            ring_bytes: options.ring_bytes,
            watermark: options.ring_bytes / 2,
            cpus: facts.cpus(),
            // Each event's own, those of its plan's trial, those that follow names.
            slots: 3 * selected.len() as u32 + 2,
            pid_gate: gate,
            pid_lists: false,
            own_tgid: own.process,
            trace_own: options.own,
        };
        let (mut session, rings) = Session::new(&sizes, context(facts))?;
        for pid in &options.pids {
            session.threads().add(*pid)?;
        }
        if gate {
            let pid = facts.btf().and_then(|btf| btf.member("task_struct", "pid").ok().flatten());
            let pid = pid.ok_or_else(|| {
                AttachError::new("following children", Cause::NoType("struct task_struct.pid"))
            })?;
            session.follow(pid.offset)?;
        }
        let waiter = Waiter::new(&rings)
            .map_err(|errno| AttachError::new("ring buffers", Cause::System("epoll", errno)))?;
        let mut recorder = Self {
            session,
            traced: Vec::with_capacity(selected.len()),
            by_id: vec![NOBODY; usize::from(control::FIRST)],
            names: Vec::new(),
            drain: Drain::new(rings),
            waiter,
            period: FIRST_PERIOD,
            tasks: TaskNames::default(),
            taken: 0,
            wants_groups: false,
            shares: selected.len() > hooks::BULK_THRESHOLD,
        };
        let (probed, selected): (Vec<_>, Vec<_>) =
            selected.into_iter().partition(|event| event.probe.is_some());
        let (placed, selected): (Vec<_>, Vec<_>) =
            selected.into_iter().partition(|event| event.place.is_some());
        let formats: Vec<&Format> = selected.iter().map(|event| &event.format).collect();
        let mut trial =
            Trial { session: &mut recorder.session, drain: &mut recorder.drain, own_thread: own.thread };
        let mut chosen =
            hooks::choose(&formats, options.tracepoints_only, facts, &mut trial, &mut Verdicts::new());
        hooks::alone(&mut chosen);
        recorder.follow_names(facts)?;
        let opening = recorder.shares.then(Opening::begin);
        recorder.prepare(&selected, &mut chosen, facts);
        for (event, chosen) in selected.iter().zip(chosen) {
            recorder.attach(event, chosen, facts)?;
        }
        recorder.session.forget_ahead();
        drop(opening);
        for event in probed {
            recorder.probe(event, facts)?;
        }
        for event in placed {
            recorder.place(event, facts)?;
        }
        Ok(recorder)
    }

    /// Hangs a dynamic event on the first of its hooks that the kernel lets be used.
    fn probe(&mut self, event: Selected, facts: &Facts) -> Result<(), AttachError> {
        let Selected { format, filter, probe: Some(probe), base, .. } = event else { return Ok(()) };
        let probes::Candidates { usable, lacking: mut tried } =
            probes::candidates(&probe, base.as_deref(), facts);
        for candidate in usable {
            let request = Request {
                format: &format,
                hook: &candidate.hook,
                via: &candidate.via,
                filter: filter.as_ref(),
                irqs_off: candidate.irqs_off,
                kind: format.id,
                threads: Threads::Traced,
                other: None,
                extras: HitActions::default(),
            };
            match self.session.attach(&request, Dispatch::Direct) {
                Ok(attachment) => {
                    let chosen =
                        AttachPlan { hook: candidate.hook, via: candidate.via, reason: tried.to_string() };
                    let printer = probes::printer(&probe.event, format.id);
                    self.keep(attachment, printer, chosen);
                    return Ok(());
                }
                Err(error) => {
                    tracing::debug!("{error}: {}", error.verifier_log().unwrap_or_default());
                    tried.refused(candidate.name(), &error);
                }
            }
        }
        Err(AttachError::new(format.full_name(), Cause::NoHook(tried.to_string())))
    }

    /// Hangs a program's event on its place.
    fn place(&mut self, event: Selected, facts: &Facts) -> Result<(), AttachError> {
        let Selected { format, filter, place: Some(place), .. } = event else { return Ok(()) };
        let chosen = programs::chosen(&format, &place);
        let attached = self.session.attach(
            &Request {
                format: &format,
                hook: &chosen.hook,
                via: &chosen.via,
                filter: filter.as_ref(),
                irqs_off: false,
                kind: format.id,
                threads: Threads::Traced,
                other: None,
                extras: HitActions::default(),
            },
            Dispatch::Table,
        )?;
        let printer = Printer::compile(&format, facts);
        self.keep(attached, printer, chosen);
        Ok(())
    }

    /// How many events are attached.
    pub fn events(&self) -> usize {
        self.traced.len()
    }

    /// Takes an attached event up; of several under one id the first prints.
    fn keep(&mut self, attachment: Attached, printer: Printer, chosen: AttachPlan) {
        if let Some(place) = self.by_id.get_mut(usize::from(printer.format().id))
            && *place == NOBODY
        {
            *place = self.traced.len() as u16;
        }
        self.traced.push(Traced { attachment, printer: Arc::new(printer), chosen });
    }

    /// Attaches the two events that change names of threads.
    fn follow_names(&mut self, facts: &Facts) -> Result<(), AttachError> {
        for (index, name) in ["task_newtask", "task_rename"].into_iter().enumerate() {
            let Ok(Some(text)) = facts.tracefs.format("task", name) else { continue };
            let Ok(format) = Format::parse("task", &text) else { continue };
            let Some(event) = NameEvent::of(&format) else { continue };
            let request = Request {
                format: &format,
                hook: &ProgramContext::Tracepoint,
                via: &AttachPoint::Tracepoint(format.id),
                filter: None,
                irqs_off: false,
                kind: control::FIRST + index as u16,
                threads: Threads::Every,
                other: None,
                extras: HitActions::default(),
            };
            let attachment = self.session.attach(&request, Dispatch::Direct)?;
            self.names.push((attachment, event));
        }
        Ok(())
    }

    /// Opens perf tracepoints and makes programs where there are many, ahead of the events.
    fn prepare(&mut self, selected: &[Selected], chosen: &mut [AttachPlan], facts: &Facts) {
        if !self.shares {
            return;
        }
        let perf = chosen.iter().filter_map(|one| match one.via {
            AttachPoint::Tracepoint(id) => Some(id),
            _ => None,
        });
        self.session.opened().set_ahead(Ahead::start(perf.collect()));
        if let Some(registers) = facts.registers() {
            for one in &mut *chosen {
                hooks::for_any_call(one, &registers);
            }
        }
        let all = selected.iter().zip(&*chosen).filter(|(_, chosen)| chosen.via.shares());
        let requests: Vec<Request<'_>> = all.map(|(event, chosen)| request(event, chosen)).collect();
        self.session.prepare(&requests);
    }

    fn attach(&mut self, event: &Selected, mut chosen: AttachPlan, facts: &Facts) -> Result<(), AttachError> {
        let shares = self.shares;
        let mut attach = |chosen: &AttachPlan| {
            let request = request(event, chosen);
            let dispatch = if shares && chosen.via.shares() { Dispatch::Table } else { Dispatch::Direct };
            self.session.attach(&request, dispatch)
        };
        let attachment = match attach(&chosen) {
            Ok(attachment) => attachment,
            // A filter may want what only the kernel's own record has.
            Err(error) if chosen.hook != ProgramContext::Tracepoint => {
                chosen = AttachPlan::tracepoint(&event.format, error.to_string());
                attach(&chosen)?
            }
            Err(error) => return Err(error),
        };
        let printer = Printer::compile(&event.format, facts);
        self.keep(attachment, printer, chosen);
        Ok(())
    }

    /// Where each event's program hangs.
    pub fn hooks(&self) -> impl Iterator<Item = (&Format, &AttachPlan)> {
        self.traced.iter().map(|traced| (traced.printer.format(), &traced.chosen))
    }

    /// Starts recording.
    pub fn go(&self) {
        self.session.switches().set_tracing(true);
    }

    /// Looks threads' processes up too, for `print-tgid`.
    pub fn want_groups(&mut self) {
        self.wants_groups = true;
    }

    /// The waiter, for other descriptors to be waited on.
    pub fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Waits until there is something to do, `limit` at most.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&mut self, limit: Duration) -> Result<Woken, rustix::io::Errno> {
        let period = self.period;
        self.period = (2 * period).min(PERIOD);
        self.waiter.wait(limit.min(period))
    }

    /// Shows the records that can be shown in order by now.
    pub fn poll(&mut self, show: impl FnMut(&Shown<'_>)) {
        #[cfg(feature = "bpf-log")]
        self.session.show_logs();
        let now = monotonic();
        self.hand_on(Some(now), show);
    }

    /// Stops recording and shows what is left.
    pub fn finish(&mut self, mut show: impl FnMut(&Shown<'_>)) {
        self.session.switches().set_tracing(false);
        let start = Instant::now();
        loop {
            self.hand_on(None, &mut show);
            let recorded: u64 = self.slots().map(|slot| self.session.counters().total(slot).recorded).sum();
            if self.taken >= recorded || start.elapsed() > LAST_HITS {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn slots(&self) -> impl Iterator<Item = Slot> {
        let names = self.names.iter().map(|(attachment, _)| attachment);
        self.traced.iter().map(|traced| &traced.attachment).chain(names).filter_map(Attached::slot)
    }

    fn hand_on(&mut self, now: Option<u64>, mut show: impl FnMut(&Shown<'_>)) {
        let Self { drain, tasks, traced, by_id, names, wants_groups, taken, .. } = self;
        let hand_on = |record: Record<'_>| {
            let head = record.payload;
            // The drain hands no shorter ones on.
            let Some([low, high, _, _, pid @ ..]) = head.first_chunk::<{ tracer_abi::COMMON_SIZE }>() else {
                return;
            };
            let kind = u16::from_ne_bytes([*low, *high]);
            if let Some(index) = kind.checked_sub(control::FIRST) {
                if let Some((_, event)) = names.get(usize::from(index)) {
                    *taken += 1;
                    tasks.learn(*event, head);
                }
                return;
            }
            let Some(traced) = by_id.get(usize::from(kind)).and_then(|at| traced.get(usize::from(*at)))
            else {
                return;
            };
            *taken += 1;
            tasks.meet(i32::from_ne_bytes(*pid), *wants_groups);
            show(&Shown { record, printer: &traced.printer, tasks });
        };
        match now {
            Some(now) => drain.merge(now, hand_on),
            None => drain.finish(hand_on),
        };
    }

    /// What became of each event's hits so far.
    pub fn counts(&self) -> Vec<Count> {
        self.traced
            .iter()
            .map(|traced| Count {
                event: traced.printer.format().full_name(),
                counters: traced
                    .attachment
                    .slot()
                    .map(|slot| self.session.counters().total(slot))
                    .unwrap_or_default(),
                missed: traced.attachment.missed(),
            })
            .collect()
    }

    /// Hits that the kernel did not run a program for that several events share.
    pub fn missed_together(&self) -> u64 {
        self.session.missed()
    }

    /// Takes all events off their hooks. The perf events that are left do nothing; the kernel takes tens of milliseconds to close
    /// one ([`attach::detach_all`]).
    pub fn end(self) -> Vec<OwnedFd> {
        attach::detach_all(self.traced.into_iter().map(|traced| traced.attachment.park()))
    }
}

fn request<'a>(event: &'a Selected, chosen: &'a AttachPlan) -> Request<'a> {
    let Selected { format, filter, .. } = event;
    Request {
        format,
        hook: &chosen.hook,
        via: &chosen.via,
        filter: filter.as_ref(),
        irqs_off: hooks::irqs_off(format),
        kind: format.id,
        threads: Threads::Traced,
        other: hooks::other(format, &chosen.hook),
        extras: HitActions::default(),
    }
}

/// The hooks that a recording of these events would use, each tried as it would be there.
///
/// # Errors
/// When the kernel refuses the session.
pub fn try_hooks(
    formats: &[&Format],
    tracepoints_only: bool,
    facts: &Facts,
) -> Result<Vec<AttachPlan>, AttachError> {
    let own = ids::own().map_err(|cause| AttachError::new("own process id", cause))?;
    let sizes = attach::Options {
        ring_bytes: 256 * 1024,
        watermark: u32::MAX,
        cpus: facts.cpus(),
        slots: 2 * formats.len() as u32,
        pid_gate: false,
        pid_lists: false,
        own_tgid: own.process,
        trace_own: false,
    };
    let (mut session, rings) = Session::new(&sizes, context(facts))?;
    let mut drain = Drain::new(rings);
    let mut trial = Trial { session: &mut session, drain: &mut drain, own_thread: own.thread };
    Ok(hooks::choose(formats, tracepoints_only, facts, &mut trial, &mut Verdicts::new()))
}

/// What programs can learn of their context on this kernel.
pub(super) fn context(facts: &Facts) -> Context {
    let preempt = preempt(facts);
    tracing::debug!(?preempt, "where the preempt count is");
    let cast = cast(facts);
    tracing::debug!(?cast, "how kernel memory is loaded");
    Context { preempt, registers: facts.registers(), cast, task: task_ids(facts) }
}

/// Where a thread's ids lie in its `task_struct`.
fn task_ids(facts: &Facts) -> Option<TaskIds> {
    let btf = facts.btf()?;
    let offset = |name| match btf.member("task_struct", name) {
        Ok(Some(member)) if member.ty.size == 4 => Some(member.offset),
        _ => None,
    };
    Some(TaskIds { pid: offset("pid")?, tgid: offset("tgid")? })
}

/// How programs load kernel memory directly; None where BTF lacks what it takes or the kernel refuses it.
pub fn cast(facts: &Facts) -> Option<Cast> {
    let cast = Cast::find(facts.btf()?).ok().flatten()?;
    let taken = |kind| cast.try_in(kind).is_ok();
    (taken(ProgKind::RawTracepoint) && taken(ProgKind::Tracepoint)).then_some(cast)
}

fn preempt(facts: &Facts) -> Preempt {
    let Some(btf) = facts.btf() else { return Preempt::Unknown };
    let per_cpu = |name| btf.per_cpu(name).ok().flatten();
    // From 6.2 to 6.14 it was a member of a structure of hot variables.
    let hot = || Some(per_cpu("pcpu_hot")? + btf.member("pcpu_hot", "preempt_count").ok()??.offset);
    let place = match (per_cpu("__perf_regs"), per_cpu("__preempt_count").or_else(hot)) {
        (Some(regs), Some(count)) => Seek::BehindRegs(i64::from(count) - i64::from(regs)),
        // Elsewhere it lies in the task, with need-resched behind it.
        _ => match btf.member("task_struct", "thread_info.preempt_count") {
            Ok(Some(member)) if member.ty.size == 8 => Seek::InTask(member.offset),
            _ => return Preempt::Unknown,
        },
    };
    let Ok(Some(id)) = facts.tracefs.id("sched", "sched_process_wait") else { return Preempt::Unknown };
    attach::seek_preempt(id, place, facts.cpus()).unwrap_or_default()
}

/// The clock that programs stamp records with, in nanoseconds.
fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
