//! The programs that count in the tables of histograms.
//!
//! One that hangs on a hook is a program of its own, beside whatever else the event is traced by: at the event's raw
//! tracepoint where that has all values, else at its perf tracepoint. On an event that no tracepoint makes it is a part of the
//! programs that make the record (`followers.rs`), and a program that records of user space are run through. What cannot be
//! counted is refused with `EOPNOTSUPP`, once the kernel would have taken it.

use rustix::io::Errno;

use crate::{
    attach::{self, AttachError, AttachPoint, Attached, Block, Counts, HistAround, ids},
    code::lower::hist as lower,
    engine::{
        Cooperative, Engine,
        attachments::session::InstanceSession,
        histograms::hist::Table,
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

/// What counts in a table.
#[derive(Debug, Default)]
pub(in crate::engine) struct Running {
    /// On the event's hook, or for records of user space where no hook makes any.
    program: Option<Attached>,
    /// For records of user space of an event that has a hook, once there was one.
    injected: Option<Attached>,
}

/// How a histogram's update is entered.
struct Use {
    hook: ProgramContext,
    /// Whether it is a system call's, where 32-bit calls come by that are not the event's.
    is_call: bool,
    entry: lower::Entry,
}

impl Engine {
    /// What an event's histogram hangs on: nothing where records come from elsewhere.
    fn hist_hook(&mut self, event: EventId, trigger: &Trigger) -> AttachPlan {
        let format: &Format = &trigger.event;
        if self.events.is_made(event) || self.is_special(event) {
            return AttachPlan {
                hook: ProgramContext::Inject,
                via: AttachPoint::Inject,
                reason: String::new(),
            };
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
        self.choose_hooks(&[event]);
        let chosen = self.attachments.hooks().of(format);
        match chosen.via {
            AttachPoint::RawTracepoint(_) | AttachPoint::SysEnter(_) | AttachPoint::SysExit(_) => chosen,
            _ => AttachPlan::tracepoint(format, chosen.reason),
        }
    }

    /// Lets a table be counted in.
    pub(in crate::engine) fn run_table(&mut self, instance: InstanceId, id: TriggerId) -> Result<(), Errno> {
        let trigger = self.histograms.trigger(id).ok_or(Errno::NODEV)?.clone();
        let event = self.state(instance)?.hists.table(id).ok_or(Errno::NODEV)?.event;
        if self.is_relayed(event) {
            return self.rebuild_dependents(instance, event);
        }
        let chosen = self.hist_hook(event, &trigger);
        let mut program = self.start(instance, &trigger, &chosen)?;
        if let (Err(error), ProgramContext::RawTracepoint(_)) = (&program, &chosen.hook) {
            // A value may be had from the kernel's own record only.
            tracing::debug!("{error}");
            program = self.start(instance, &trigger, &AttachPlan::tracepoint(&trigger.event, "a value"))?;
        }
        let program = program.map_err(|error| {
            tracing::warn!("{error}");
            Errno::INVAL
        })?;
        if let Some(table) = self.state(instance)?.hists.table_mut(id) {
            table.running.program = Some(program);
        }
        Ok(())
    }

    fn start(
        &mut self,
        instance: InstanceId,
        trigger: &Trigger,
        chosen: &AttachPlan,
    ) -> Result<Result<Attached, AttachError>, Errno> {
        let opened = match chosen.via {
            AttachPoint::Tracepoint(_) => self.run_off_thread(|| attach::open_perf_event(&chosen.via)),
            _ => None,
        };
        let start = |request: &lower::Request<'_>, counts: &Counts, around: HistAround<'_>| {
            attach::attach_hist(request, &chosen.via, counts, &around, opened)
        };
        let is_call = chosen.via.is_call();
        let how = Use { hook: chosen.hook.clone(), is_call, entry: lower::Entry::ProgramContext };
        self.with_request(instance, trigger, &how, &mut Vec::new(), start)
    }

    /// Does something with what the kernel side of a histogram is made of.
    fn with_request<T>(
        &mut self,
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
            let inner = self.synthetic_number(&name).is_some_and(|event| !outer.contains(&event));
            emissions.push(match action.deed {
                Deed::Trace if inner => self.emission_within(&name, outer)?,
                _ => None,
            });
        }
        let filter = match &trigger.filter {
            Some(text) => {
                let filter = resolve::filter(text, format, self.facts.as_ref());
                Some(filter.map_err(|error| error.errno())?)
            }
            None => None,
        };
        let own = ids::own().map_err(|_| Errno::PERM)?;
        let state = self.get(instance).ok_or(Errno::NODEV)?;
        let table = state.hists.table(trigger.id).ok_or(Errno::NODEV)?;
        let references = References::of(hist, &self.histograms).ok_or(Errno::INVAL)?;
        let owners = references.owners.iter().map(|id| self.counts_of(*id).map(AsRef::as_ref));
        let owners = owners.collect::<Option<Vec<&Counts>>>().ok_or(Errno::INVAL)?;
        let (session, calls) = (
            self.attachments.session(instance).map(InstanceSession::kernel),
            self.attachments.factory().and_then(|factory| factory.calls()),
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
                lists: !self.is_special(table.event),
                other: hooks::other(format, &how.hook),
            }),
            emits: &emits,
        };
        Ok(act(&request, &table.counts, around))
    }

    /// What an instance's histograms on an event that no tracepoint makes do with its record, entered so.
    pub(in crate::engine) fn hist_parts(
        &mut self,
        instance: InstanceId,
        event: EventId,
        entry: lower::Entry,
        outer: &mut Vec<EventId>,
    ) -> Result<Vec<Block>, Errno> {
        let triggers = self.counting(instance, |table| table.event == event);
        let part = |trigger: Trigger| {
            let how = Use { hook: ProgramContext::Inject, is_call: false, entry };
            self.with_request(instance, &trigger, &how, outer, attach::hist_part)?.map_err(|error| {
                tracing::warn!("{error}");
                Errno::INVAL
            })
        };
        triggers.into_iter().map(part).collect()
    }

    /// The triggers of some of an instance's tables.
    fn counting(&self, instance: InstanceId, which: impl Fn(&Table) -> bool) -> Vec<Trigger> {
        let tables = self.get(instance).map_or(&[][..], |state| &state.hists.tables);
        let triggers = tables.iter().filter(|table| which(table));
        triggers.filter_map(|table| self.histograms.trigger(table.trigger)).cloned().collect()
    }

    /// Lets an event's histograms count a record that user space made.
    pub(in crate::engine) fn count_record(
        &mut self,
        instance: InstanceId,
        event: EventId,
        record: &[u8],
        writer: &attach::Writer,
    ) {
        for trigger in self.counting(instance, |table| table.event == event) {
            if let Err(errno) = self.count_in(instance, &trigger, record, writer) {
                tracing::warn!("a histogram of {}: {errno}", trigger.event.full_name());
            }
        }
    }

    fn count_in(
        &mut self,
        instance: InstanceId,
        trigger: &Trigger,
        record: &[u8],
        writer: &attach::Writer,
    ) -> Result<(), Errno> {
        let table = self.state(instance)?.hists.table_mut(trigger.id).ok_or(Errno::NODEV)?;
        let hangs =
            table.running.program.as_ref().is_none_or(|program| *program.via() != AttachPoint::Inject);
        if hangs && table.running.injected.is_none() {
            let chosen =
                AttachPlan { hook: ProgramContext::Inject, via: AttachPoint::Inject, reason: String::new() };
            let made = self.start(instance, trigger, &chosen)?.map_err(|error| {
                tracing::warn!("{error}");
                Errno::INVAL
            })?;
            let table = self.state(instance)?.hists.table_mut(trigger.id).ok_or(Errno::NODEV)?;
            table.running.injected = Some(made);
        }
        let table = self.state(instance)?.hists.table_mut(trigger.id).ok_or(Errno::NODEV)?;
        let Running { program, injected } = &table.running;
        let program = if hangs { injected } else { program };
        program.as_ref().map_or(Ok(0), |program| program.run(record, writer)).map(drop).map_err(|error| {
            tracing::warn!("{error}");
            Errno::IO
        })
    }

    /// Gives histograms whose actions emit synthetic events the programs that are right by now.
    pub(in crate::engine) fn make_emitters_anew(&mut self) {
        let instances: Vec<InstanceId> = self.numbers().collect();
        for instance in instances {
            let all = self.counting(instance, |_| true);
            for trigger in all.iter().filter(|trigger| trigger.hist.synthetic_events().next().is_some()) {
                if let Err(errno) = self.make_emitter_anew(instance, trigger) {
                    tracing::warn!("{}: {errno}", trigger.event.full_name());
                }
            }
        }
    }

    fn make_emitter_anew(&mut self, instance: InstanceId, trigger: &Trigger) -> Result<(), Errno> {
        let table = self.state(instance)?.hists.table_mut(trigger.id).ok_or(Errno::NODEV)?;
        let event = table.event;
        table.running.injected = None;
        if let Some(mut running) = table.running.program.take() {
            // What makes events is on a perf tracepoint.
            let hook = match running.via() {
                AttachPoint::Inject => ProgramContext::Inject,
                _ => ProgramContext::Tracepoint,
            };
            let change = |request: &lower::Request<'_>, counts: &Counts, around: HistAround<'_>| {
                attach::replace_hist(&mut running, request, counts, &around)
            };
            let how = Use { hook, is_call: false, entry: lower::Entry::ProgramContext };
            let changed = self.with_request(instance, trigger, &how, &mut Vec::new(), change);
            if let Some(table) = self.state(instance)?.hists.table_mut(trigger.id) {
                table.running.program = Some(running);
            }
            if let Err(error) = changed? {
                tracing::warn!("{error}");
            }
        }
        if self.is_relayed(event) { self.rebuild_dependents(instance, event) } else { Ok(()) }
    }
}
