//! The programs that count in the tables of histograms.
//!
//! A histogram of an event with a hook has its own program there: at the event's raw tracepoint if that provides all
//! values, else at its perf tracepoint. A histogram of an event without a tracepoint is a part of the programs that
//! make the record ([`super`]), and has another program for records from user space. A histogram that
//! eBPF cannot count is refused with `EOPNOTSUPP`, after the kernel's own checks.

use crate::{
    attach::{self, AttachError, AttachPoint, Attached, Block, Counts, HistContext, ids},
    code::lower::hist as lower,
    engine::{
        Cooperative, Engine,
        attachments::{off_thread, session::InstanceSession},
        command::error::{CommandError, ErrorKind},
        dependents::{self, emission, sources::RecordSources},
        histograms::tables::{Table, TablePrograms},
        hooks::{self, AttachPlan},
    },
    event::{EventId, Format, InstanceId, dynamic::latin1},
    lang::hist::{Trigger, TriggerId, action::ActionKind},
    plan::{
        hist::{Layout, References},
        resolve,
        source::ProgramContext,
    },
};

/// How a histogram's update is entered.
struct Use {
    context: ProgramContext,
    /// Whether the event belongs to a system call: 32-bit calls reach its hook and must not count.
    is_call: bool,
    entry: lower::Entry,
}

/// The hook of an event's histogram; `None` if the records are made elsewhere.
fn hist_hook(engine: &mut Engine, event: EventId, trigger: &Trigger) -> AttachPlan {
    let format: &Format = &trigger.event;
    if engine.registry.events().is_made(event) || engine.registry.is_special(event) {
        return AttachPlan::new(ProgramContext::Inject, AttachPoint::Inject);
    }
    let hist = &trigger.hist;
    if hist.name.is_some() && !Layout::of(hist).is_shared() {
        // No program may interrupt another one that counts in the same entries.
        return AttachPlan::tracepoint(format, "a name shares the table");
    }
    if hist.synthetic_events().next().is_some() {
        // Actions on the synthetic event may read the stack, which equals the kernel's only there.
        return AttachPlan::tracepoint(format, "it makes events");
    }
    off_thread::choose_hooks(engine, &[event]);
    let chosen = engine.attachments.hooks().of(format);
    match chosen.point {
        AttachPoint::RawTracepoint(_) | AttachPoint::SysEnter(_) | AttachPoint::SysExit(_) => chosen,
        _ => AttachPlan::tracepoint(format, chosen.reason),
    }
}

/// Starts counting in a table.
pub(crate) fn run_table(
    engine: &mut Engine,
    instance: InstanceId,
    id: TriggerId,
) -> Result<(), CommandError> {
    let trigger = engine.histograms.trigger(id).ok_or(ErrorKind::Gone)?.clone();
    let event = engine.histograms.table(instance, id).ok_or(ErrorKind::Gone)?.event;
    if RecordSources::of(engine).is_relayed(event) {
        return dependents::rebuild_dependents(engine, instance, event);
    }
    let chosen = hist_hook(engine, event, &trigger);
    let mut program = start(engine, instance, &trigger, &chosen)?;
    if let (Err(error), ProgramContext::RawTracepoint(_)) = (&program, &chosen.context) {
        // Some values are only in the kernel's own record.
        tracing::debug!("{error}");
        program = start(engine, instance, &trigger, &AttachPlan::tracepoint(&trigger.event, "a value"))?;
    }
    let program = program.map_err(|error| CommandError::from(error).answered_as(ErrorKind::Invalid))?;
    tracing::debug!(event = %trigger.event.full_name(), point = ?program.point(), why = %chosen.reason, "counting");
    if let Some(table) = engine.histograms.table_mut(instance, id) {
        table.programs.hooked = Some(program);
    }
    Ok(())
}

fn start(
    engine: &mut Engine,
    instance: InstanceId,
    trigger: &Trigger,
    chosen: &AttachPlan,
) -> Result<Result<Attached, AttachError>, CommandError> {
    let opened = match chosen.point {
        AttachPoint::Tracepoint(_) if !engine.attachments.is_linked(&chosen.point) => {
            engine.run_off_thread(|| attach::open_perf_event(&chosen.point))
        }
        _ => None,
    };
    let start = |request: &lower::Request<'_>, counts: &Counts, context: HistContext<'_>| {
        attach::attach_hist(request, &chosen.point, counts, &context, opened)
    };
    let is_call = chosen.point.is_call();
    let how = Use { context: chosen.context.clone(), is_call, entry: lower::Entry::ProgramContext };
    with_request(engine, instance, trigger, &how, &mut Vec::new(), start)
}

/// Calls a function with the request for a histogram's program.
fn with_request<T>(
    engine: &mut Engine,
    instance: InstanceId,
    trigger: &Trigger,
    how: &Use,
    outer: &mut Vec<EventId>,
    act: impl FnOnce(&lower::Request<'_>, &Counts, HistContext<'_>) -> T,
) -> Result<T, CommandError> {
    let (hist, format) = (&*trigger.hist, &*trigger.event);
    let mut emissions = Vec::new();
    for action in &hist.actions {
        let name = latin1(action.synthetic_name());
        let inner = engine.registry.synthetic().number(&name).is_some_and(|event| !outer.contains(&event));
        emissions.push(match action.kind {
            ActionKind::Trace if inner => emission::emission_within(engine, &name, outer)?,
            _ => None,
        });
    }
    let filter = match &trigger.filter {
        Some(text) => {
            let filter = resolve::filter(text, format, engine.facts.as_ref());
            Some(filter.map_err(|error| error.errno())?)
        }
        None => None,
    };
    let own = ids::own().map_err(|_| ErrorKind::Denied)?;
    let table = engine.histograms.table(instance, trigger.id).ok_or(ErrorKind::Gone)?;
    let references = References::of(hist, engine.histograms.set()).ok_or(ErrorKind::Invalid)?;
    let owners = references.owners.iter().map(|id| engine.histograms.counts(*id).map(AsRef::as_ref));
    let owners = owners.collect::<Option<Vec<&Counts>>>().ok_or(ErrorKind::Invalid)?;
    let (session, calls) = (
        engine.attachments.session(instance).map(InstanceSession::kernel),
        engine.attachments.factory().and_then(|factory| factory.calls()),
    );
    let context = HistContext { owners, session, calls, emissions };
    let emits = context.emits();
    let request = lower::Request {
        hist,
        references: &references,
        filter: filter.as_ref(),
        context: &how.context,
        kind: format.id,
        but_process: (how.context != ProgramContext::Inject && !engine.attachments.options().own)
            .then_some(own.process),
        but_compat: calls.filter(|_| how.is_call).map(|calls| calls.registers().compat),
        entry: how.entry,
        cpus: engine.facts.cpus(),
        // A mark counts for its writer regardless of the lists (`tracing_mark_write()` checks none).
        within: Some(lower::Within {
            place: table.place,
            lists: !engine.registry.is_special(table.event),
            other: hooks::other(format, &how.context),
        }),
        emits: &emits,
    };
    Ok(act(&request, &table.counts, context))
}

/// The updates of an instance's histograms on an event without a tracepoint, entered with `entry`.
pub(crate) fn hist_parts(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    entry: lower::Entry,
    outer: &mut Vec<EventId>,
) -> Result<Vec<Block>, CommandError> {
    let triggers = counting(engine, instance, |table| table.event == event);
    let part = |trigger: Trigger| {
        let how = Use { context: ProgramContext::Inject, is_call: false, entry };
        with_request(engine, instance, &trigger, &how, outer, attach::hist_part)?
            .map_err(|error| CommandError::from(error).answered_as(ErrorKind::Invalid))
    };
    triggers.into_iter().map(part).collect()
}

/// The triggers of some of an instance's tables.
fn counting(engine: &Engine, instance: InstanceId, which: impl Fn(&Table) -> bool) -> Vec<Trigger> {
    let triggers = engine.histograms.tables(instance).iter().filter(|table| which(table));
    triggers.filter_map(|table| engine.histograms.trigger(table.trigger)).cloned().collect()
}

/// Counts a record from user space in an event's histograms.
pub(crate) fn count_record(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    record: &[u8],
    writer: &attach::Writer,
) {
    for trigger in counting(engine, instance, |table| table.event == event) {
        if let Err(errno) = count_in(engine, instance, &trigger, record, writer) {
            tracing::warn!("cannot count in a histogram of {}: {errno}", trigger.event.full_name());
        }
    }
}

fn count_in(
    engine: &mut Engine,
    instance: InstanceId,
    trigger: &Trigger,
    record: &[u8],
    writer: &attach::Writer,
) -> Result<(), CommandError> {
    let table = engine.histograms.table(instance, trigger.id).ok_or(ErrorKind::Gone)?;
    let is_separate = table.programs.separate_injection();
    if is_separate && table.programs.injected.is_none() {
        let chosen = AttachPlan::new(ProgramContext::Inject, AttachPoint::Inject);
        let made = start(engine, instance, trigger, &chosen)?
            .map_err(|error| CommandError::from(error).answered_as(ErrorKind::Invalid))?;
        let table = engine.histograms.table_mut(instance, trigger.id).ok_or(ErrorKind::Gone)?;
        table.programs.injected = Some(made);
    }
    let table = engine.histograms.table(instance, trigger.id).ok_or(ErrorKind::Gone)?;
    let TablePrograms { hooked, injected } = &table.programs;
    let program = if is_separate { injected } else { hooked };
    let ran = program.as_ref().map_or(Ok(0), |program| program.run(record, writer));
    ran.map(drop).map_err(|error| CommandError::from(error).answered_as(ErrorKind::Io))
}

/// Rebuilds the programs of histograms whose actions emit synthetic events.
pub(crate) fn rebuild_emitters(engine: &mut Engine) {
    let instances: Vec<InstanceId> = engine.instances.ids();
    for instance in instances {
        let all = counting(engine, instance, |_| true);
        for trigger in all.iter().filter(|trigger| trigger.hist.synthetic_events().next().is_some()) {
            if let Err(errno) = rebuild_emitter(engine, instance, trigger) {
                tracing::warn!("{}: {errno}", trigger.event.full_name());
            }
        }
    }
}

fn rebuild_emitter(engine: &mut Engine, instance: InstanceId, trigger: &Trigger) -> Result<(), CommandError> {
    let table = engine.histograms.table_mut(instance, trigger.id).ok_or(ErrorKind::Gone)?;
    let event = table.event;
    table.programs.injected = None;
    if let Some(mut running) = table.programs.hooked.take() {
        // Programs that emit events are at perf tracepoints.
        let context = match running.point() {
            AttachPoint::Inject => ProgramContext::Inject,
            _ => ProgramContext::Tracepoint,
        };
        let change = |request: &lower::Request<'_>, counts: &Counts, context: HistContext<'_>| {
            attach::replace_hist(&mut running, request, counts, &context)
        };
        let how = Use { context, is_call: false, entry: lower::Entry::ProgramContext };
        let changed = with_request(engine, instance, trigger, &how, &mut Vec::new(), change);
        if let Some(table) = engine.histograms.table_mut(instance, trigger.id) {
            table.programs.hooked = Some(running);
        }
        if let Err(error) = changed? {
            tracing::warn!("{error}");
        }
    }
    if RecordSources::of(engine).is_relayed(event) {
        dependents::rebuild_dependents(engine, instance, event)
    } else {
        Ok(())
    }
}
