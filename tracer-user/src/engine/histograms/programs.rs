//! The programs that count in the tables of histograms.
//!
//! A histogram of an event with a hook has a program of its own there: at the event's raw tracepoint if that has all
//! values, else at its perf tracepoint. A histogram of an event without a tracepoint is a part of the programs that make
//! the record (`attachments/dependents.rs`), and has one program more for records of user space. A histogram that eBPF
//! cannot count is refused with `EOPNOTSUPP`, after the checks that the kernel does.

use rustix::io::Errno;

use crate::{
    attach::{self, AttachError, AttachPoint, Attached, Block, Counts, HistAround, ids},
    code::lower::hist as lower,
    engine::{
        Cooperative, Engine,
        attachments::session::InstanceSession,
        histograms::tables::{Table, TablePrograms},
        hooks::{self, AttachPlan},
    },
    event::{EventId, Format, InstanceId, dynamic::latin1},
    lang::hist::{Trigger, TriggerId, action::Deed},
    plan::{
        hist::{Layout, References},
        resolve,
        source::ProgramContext,
    },
};

/// How a histogram's update is entered.
struct Use {
    hook: ProgramContext,
    /// Whether the event is a system call's: 32-bit calls reach its hook and are not the event's.
    is_call: bool,
    entry: lower::Entry,
}

/// The hook of an event's histogram; none where records come from elsewhere.
fn hist_hook(engine: &mut Engine, event: EventId, trigger: &Trigger) -> AttachPlan {
    let format: &Format = &trigger.event;
    if engine.registry.events().is_made(event) || engine.is_special(event) {
        return AttachPlan { hook: ProgramContext::Inject, via: AttachPoint::Inject, reason: String::new() };
    }
    let hist = &trigger.hist;
    if hist.name.is_some() && !Layout::of(hist).is_shared() {
        // None of them may run inside another that counts in the same entries.
        return AttachPlan::tracepoint(format, "a name shares the table");
    }
    if hist.synthetic_events().next().is_some() {
        // What follows the event that it makes may look at the stack, which is the kernel's alone there.
        return AttachPlan::tracepoint(format, "it makes events");
    }
    engine.choose_hooks(&[event]);
    let chosen = engine.attachments.hooks().of(format);
    match chosen.via {
        AttachPoint::RawTracepoint(_) | AttachPoint::SysEnter(_) | AttachPoint::SysExit(_) => chosen,
        _ => AttachPlan::tracepoint(format, chosen.reason),
    }
}

/// Lets a table be counted in.
pub(in crate::engine) fn run_table(
    engine: &mut Engine,
    instance: InstanceId,
    id: TriggerId,
) -> Result<(), Errno> {
    let trigger = engine.histograms.trigger(id).ok_or(Errno::NODEV)?.clone();
    let event = engine.histograms.table(instance, id).ok_or(Errno::NODEV)?.event;
    if engine.is_relayed(event) {
        return engine.rebuild_dependents(instance, event);
    }
    let chosen = hist_hook(engine, event, &trigger);
    let mut program = start(engine, instance, &trigger, &chosen)?;
    if let (Err(error), ProgramContext::RawTracepoint(_)) = (&program, &chosen.hook) {
        // A value may be had from the kernel's own record only.
        tracing::debug!("{error}");
        program = start(engine, instance, &trigger, &AttachPlan::tracepoint(&trigger.event, "a value"))?;
    }
    let program = program.map_err(|error| {
        tracing::warn!("{error}");
        Errno::INVAL
    })?;
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
) -> Result<Result<Attached, AttachError>, Errno> {
    let opened = match chosen.via {
        AttachPoint::Tracepoint(_) => engine.run_off_thread(|| attach::open_perf_event(&chosen.via)),
        _ => None,
    };
    let start = |request: &lower::Request<'_>, counts: &Counts, around: HistAround<'_>| {
        attach::attach_hist(request, &chosen.via, counts, &around, opened)
    };
    let is_call = chosen.via.is_call();
    let how = Use { hook: chosen.hook.clone(), is_call, entry: lower::Entry::ProgramContext };
    with_request(engine, instance, trigger, &how, &mut Vec::new(), start)
}

/// Does something with what the kernel side of a histogram is made of.
fn with_request<T>(
    engine: &mut Engine,
    instance: InstanceId,
    trigger: &Trigger,
    how: &Use,
    outer: &mut Vec<EventId>,
    act: impl FnOnce(&lower::Request<'_>, &Counts, HistAround<'_>) -> T,
) -> Result<T, Errno> {
    let (hist, format) = (&*trigger.hist, &*trigger.event);
    let mut emissions = Vec::new();
    for action in &hist.actions {
        let name = latin1(action.synthetic_name());
        let inner = engine.registry.synthetic().number(&name).is_some_and(|event| !outer.contains(&event));
        emissions.push(match action.deed {
            Deed::Trace if inner => engine.emission_within(&name, outer)?,
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
    let own = ids::own().map_err(|_| Errno::PERM)?;
    let table = engine.histograms.table(instance, trigger.id).ok_or(Errno::NODEV)?;
    let references = References::of(hist, engine.histograms.set()).ok_or(Errno::INVAL)?;
    let owners = references.owners.iter().map(|id| engine.histograms.counts(*id).map(AsRef::as_ref));
    let owners = owners.collect::<Option<Vec<&Counts>>>().ok_or(Errno::INVAL)?;
    let (session, calls) = (
        engine.attachments.session(instance).map(InstanceSession::kernel),
        engine.attachments.factory().and_then(|factory| factory.calls()),
    );
    let around = HistAround { owners, session, calls, emissions };
    let emits = around.emits();
    let request = lower::Request {
        hist,
        references: &references,
        filter: filter.as_ref(),
        hook: &how.hook,
        kind: format.id,
        but_process: (how.hook != ProgramContext::Inject).then_some(own.process),
        but_compat: calls.filter(|_| how.is_call).map(|calls| calls.registers().compat),
        entry: how.entry,
        // A mark is nobody's hit but its writer's (`tracing_mark_write()` asks no list).
        within: Some(lower::Within {
            place: table.place,
            lists: !engine.is_special(table.event),
            other: hooks::other(format, &how.hook),
        }),
        emits: &emits,
    };
    Ok(act(&request, &table.counts, around))
}

/// What an instance's histograms on an event that no tracepoint makes do with its record, entered so.
pub(in crate::engine) fn hist_parts(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    entry: lower::Entry,
    outer: &mut Vec<EventId>,
) -> Result<Vec<Block>, Errno> {
    let triggers = counting(engine, instance, |table| table.event == event);
    let part = |trigger: Trigger| {
        let how = Use { hook: ProgramContext::Inject, is_call: false, entry };
        with_request(engine, instance, &trigger, &how, outer, attach::hist_part)?.map_err(|error| {
            tracing::warn!("{error}");
            Errno::INVAL
        })
    };
    triggers.into_iter().map(part).collect()
}

/// The triggers of some of an instance's tables.
fn counting(engine: &Engine, instance: InstanceId, which: impl Fn(&Table) -> bool) -> Vec<Trigger> {
    let triggers = engine.histograms.tables(instance).iter().filter(|table| which(table));
    triggers.filter_map(|table| engine.histograms.trigger(table.trigger)).cloned().collect()
}

/// Lets an event's histograms count a record that user space made.
pub(in crate::engine) fn count_record(
    engine: &mut Engine,
    instance: InstanceId,
    event: EventId,
    record: &[u8],
    writer: &attach::Writer,
) {
    for trigger in counting(engine, instance, |table| table.event == event) {
        if let Err(errno) = count_in(engine, instance, &trigger, record, writer) {
            tracing::warn!("a histogram of {}: {errno}", trigger.event.full_name());
        }
    }
}

fn count_in(
    engine: &mut Engine,
    instance: InstanceId,
    trigger: &Trigger,
    record: &[u8],
    writer: &attach::Writer,
) -> Result<(), Errno> {
    let table = engine.histograms.table(instance, trigger.id).ok_or(Errno::NODEV)?;
    let is_separate = table.programs.separate_injection();
    if is_separate && table.programs.injected.is_none() {
        let chosen =
            AttachPlan { hook: ProgramContext::Inject, via: AttachPoint::Inject, reason: String::new() };
        let made = start(engine, instance, trigger, &chosen)?.map_err(|error| {
            tracing::warn!("{error}");
            Errno::INVAL
        })?;
        let table = engine.histograms.table_mut(instance, trigger.id).ok_or(Errno::NODEV)?;
        table.programs.injected = Some(made);
    }
    let table = engine.histograms.table(instance, trigger.id).ok_or(Errno::NODEV)?;
    let TablePrograms { hooked, injected } = &table.programs;
    let program = if is_separate { injected } else { hooked };
    program.as_ref().map_or(Ok(0), |program| program.run(record, writer)).map(drop).map_err(|error| {
        tracing::warn!("{error}");
        Errno::IO
    })
}

/// Gives histograms whose actions emit synthetic events the programs that are right by now.
pub(in crate::engine) fn rebuild_emitters(engine: &mut Engine) {
    let instances: Vec<InstanceId> = engine.numbers().collect();
    for instance in instances {
        let all = counting(engine, instance, |_| true);
        for trigger in all.iter().filter(|trigger| trigger.hist.synthetic_events().next().is_some()) {
            if let Err(errno) = rebuild_emitter(engine, instance, trigger) {
                tracing::warn!("{}: {errno}", trigger.event.full_name());
            }
        }
    }
}

fn rebuild_emitter(engine: &mut Engine, instance: InstanceId, trigger: &Trigger) -> Result<(), Errno> {
    let table = engine.histograms.table_mut(instance, trigger.id).ok_or(Errno::NODEV)?;
    let event = table.event;
    table.programs.injected = None;
    if let Some(mut running) = table.programs.hooked.take() {
        // What makes events is on a perf tracepoint.
        let hook = match running.via() {
            AttachPoint::Inject => ProgramContext::Inject,
            _ => ProgramContext::Tracepoint,
        };
        let change = |request: &lower::Request<'_>, counts: &Counts, around: HistAround<'_>| {
            attach::replace_hist(&mut running, request, counts, &around)
        };
        let how = Use { hook, is_call: false, entry: lower::Entry::ProgramContext };
        let changed = with_request(engine, instance, trigger, &how, &mut Vec::new(), change);
        if let Some(table) = engine.histograms.table_mut(instance, trigger.id) {
            table.programs.hooked = Some(running);
        }
        if let Err(error) = changed? {
            tracing::warn!("{error}");
        }
    }
    if engine.is_relayed(event) { engine.rebuild_dependents(instance, event) } else { Ok(()) }
}
