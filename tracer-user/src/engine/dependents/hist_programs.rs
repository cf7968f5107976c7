//! The programs that count in the tables of histograms.
//!
//! A histogram of an event with a hook has its own program there: at the event's raw tracepoint if that provides all
//! values, else at its perf tracepoint. A histogram of an event without a tracepoint is a part of the programs that
//! make the record ([`super`]), and has another program for records from user space. A histogram that
//! eBPF cannot count is refused with `EOPNOTSUPP`, after the kernel's own checks.

use std::mem::take;

use super::{Dependents, parts::Derivation, sources::RecordSources};
use crate::{
    attach::{self, AttachError, AttachPoint, Block, Counts, HistContext, ids},
    code::lower::hist as lower,
    engine::{
        Cooperative, Engine,
        attachments::{
            plan::{Change, Wanted, WantedProbe, plan},
            reconcile::Reconciler,
            session::{
                InstanceSession,
                part::{CountPart, Part},
                table::{AttachedPart, AttachedParts, ProgramRole},
            },
        },
        command::error::{CommandError, ErrorKind},
        hooks::{self, AttachPlan},
    },
    event::{EventId, Format},
    kernel::PreemptGuard,
    lang::hist::Trigger,
    plan::{
        hist::{Layout, References},
        resolve,
        source::ProgramContext,
    },
};

impl Dependents<'_> {
    /// The hook of an event's histogram.
    fn hist_hook(&mut self, event: EventId, trigger: &Trigger) -> AttachPlan {
        let format: &Format = &trigger.event;
        if self.engine.registry.events().is_made(event) || self.engine.registry.is_special(event) {
            return AttachPlan::new(ProgramContext::Inject, AttachPoint::Inject);
        }
        let hist = &trigger.hist;
        let guard = self.engine.facts.preempt_guard();
        let is_call = matches!(AttachPoint::tracepoint(format), AttachPoint::CallTracepoint(_));
        // A perf tracepoint has no data of system calls. Where the kernel preempts programs there, it skips hits that two
        // gates keep at the raw tracepoint.
        let is_skipped = guard.and_then(PreemptGuard::of_calls).and_then(PreemptGuard::of_skipped).is_some();
        let is_raw = hooks::has_user_data(format) || (is_call && is_skipped);
        if hist.name.is_some() && !Layout::of(hist).is_shared() && !is_raw {
            // No program may interrupt another one that counts in the same entries.
            return AttachPlan::tracepoint(format, "a name shares the table");
        }
        // Programs at one hook run in the order in which they were attached. Another hook may be older than its programs:
        // the kernel adds the perf tracepoint at the first perf event of any process.
        let setter = self.setter_hook(event, trigger);
        if setter.as_ref().is_some_and(AttachPoint::is_tracepoint) {
            return AttachPlan::tracepoint(format, "a histogram there sets a variable that it reads");
        }
        let is_raw = is_raw || setter.is_some();
        if hist.synthetic_events().next().is_some() && !is_raw {
            // Actions on the synthetic event may read the stack, which equals the kernel's only there.
            return AttachPlan::tracepoint(format, "it makes events");
        }
        Reconciler::of(self.engine, self.instance).choose_hooks(&[event]);
        let chosen = self.engine.attachments.hooks().of(format);
        if hist.reads_stack() && !is_raw && self.engine.attachments.has_two_gates(&chosen.point) {
            return AttachPlan::tracepoint(format, "it has a stack, so at a raw tracepoint it has one gate");
        }
        match chosen.point {
            AttachPoint::RawTracepoint(_) | AttachPoint::SysEnter(_) | AttachPoint::SysExit(_) => chosen,
            _ => AttachPlan::tracepoint(format, chosen.reason),
        }
    }

    /// The hook of another histogram of this event that sets a variable which this one reads. If there are several, it
    /// is a perf tracepoint where one of them is.
    fn setter_hook(&self, event: EventId, trigger: &Trigger) -> Option<AttachPoint> {
        let table = &self.engine.attachments.session(self.instance)?.table;
        let is_read = |setter: &&Trigger| {
            setter.hist.id != trigger.hist.id
                && trigger.hist.references.iter().any(|reference| reference.slot.hist == setter.hist.id)
        };
        let setters = self.engine.histograms.counting(self.instance, event).filter(is_read);
        let parts = setters.filter_map(|setter| table.first(event, ProgramRole::Histogram(setter.id)));
        let points = parts.map(|part| part.plan.point.clone());
        points.max_by_key(AttachPoint::is_tracepoint)
    }

    /// Makes the programs of an event's histograms in an instance match the wanted state.
    pub(super) fn reconcile_hists(&mut self, event: EventId) -> Result<(), CommandError> {
        if RecordSources::of(self.engine).is_relayed(event) {
            return Ok(());
        }
        let triggers: Vec<Trigger> = self.engine.histograms.counting(self.instance, event).cloned().collect();
        let mut first = Ok(());
        for trigger in triggers {
            let wanted = vec![Part::Count(self.own_count(&trigger))];
            let session = self.session()?;
            let role = ProgramRole::Histogram(trigger.id);
            let is = session.table.state(event, role, |parts| parts.receivers.as_ref());
            let changes = plan(&Wanted::part(true, vec![WantedProbe::ONLY], &wanted), &is);
            first = first.and(match changes[..] {
                [] => Ok(()),
                [Change::Replace] => {
                    // The old program still counts, and the command that led here may be that of another histogram.
                    if let Err(error) = self.replace_hist(event, &trigger) {
                        tracing::warn!("{}: {error}", trigger.event.full_name());
                    }
                    Ok(())
                }
                _ => self.attach_hist(event, &trigger),
            });
        }
        first
    }

    /// Attaches a histogram to its hook.
    fn attach_hist(&mut self, event: EventId, trigger: &Trigger) -> Result<(), CommandError> {
        let mut chosen = self.hist_hook(event, trigger);
        let mut made = self.start_hist(trigger, &chosen);
        if let (Err(error), ProgramContext::RawTracepoint(_)) = (&made, &chosen.context) {
            // Some values are only in the kernel's own record.
            tracing::debug!("{error}");
            chosen = AttachPlan::tracepoint(&trigger.event, "a value");
            made = self.start_hist(trigger, &chosen);
        }
        let parts = made?;
        tracing::debug!(event = %trigger.event.full_name(), point = ?chosen.point, why = %chosen.reason, "counting");
        let session = self.session()?;
        session.table.insert(event, ProgramRole::Histogram(trigger.id), parts);
        Ok(())
    }

    /// Replaces the program of a histogram, because the emissions of its synthetic events changed. If it is refused,
    /// the old one stays.
    fn replace_hist(&mut self, event: EventId, trigger: &Trigger) -> Result<(), CommandError> {
        let role = ProgramRole::Histogram(trigger.id);
        let session = self.session()?;
        let Some(parts) = session.table.get_mut(event, role) else { return Ok(()) };
        let (mut taken, count) = (take(parts), self.own_count(trigger));
        let mut done = Ok(());
        for AttachedPart { attached, plan } in taken.iter_mut() {
            let change = |request: &lower::Request<'_>, counts: &Counts, context: HistContext<'_>| {
                attach::replace_hist(attached, request, counts, &context)
            };
            done = count.with_request(self.engine, plan, change).and_then(|replaced| Ok(replaced?));
        }
        taken.receivers = done.is_ok().then(|| vec![Part::Count(count)]);
        let session = self.session()?;
        session.table.insert(event, role, taken);
        done
    }
}

fn invalid(error: AttachError) -> CommandError {
    CommandError::from(error).answered_as(ErrorKind::Invalid)
}

impl Dependents<'_> {
    /// The update of a histogram as a program of its own.
    pub(super) fn own_count(&self, trigger: &Trigger) -> CountPart {
        Derivation::of(self.engine).count(self.instance, trigger, lower::Entry::ProgramContext)
    }

    /// Attaches a histogram to a hook.
    pub(super) fn start_hist(
        &mut self,
        trigger: &Trigger,
        chosen: &AttachPlan,
    ) -> Result<AttachedParts, CommandError> {
        let opened = match chosen.point {
            AttachPoint::Tracepoint(_) | AttachPoint::CallTracepoint(_)
                if !self.engine.attachments.is_linked(&chosen.point) =>
            {
                self.engine.run_off_thread(|| attach::open_perf_event(&chosen.point))
            }
            _ => None,
        };
        let count = self.own_count(trigger);
        let start = |request: &lower::Request<'_>, counts: &Counts, context: HistContext<'_>| {
            attach::attach_hist(request, &chosen.point, counts, &context, opened)
        };
        let attached = count.with_request(self.engine, chosen, start)?.map_err(invalid)?;
        Ok(AttachedParts::passing(AttachedPart::new(attached, chosen.clone()), vec![Part::Count(count)]))
    }
}

impl CountPart {
    /// Calls a function with the request for a histogram's program at a hook.
    fn with_request<T>(
        &self,
        engine: &Engine,
        AttachPlan { context, point, .. }: &AttachPlan,
        act: impl FnOnce(&lower::Request<'_>, &Counts, HistContext<'_>) -> T,
    ) -> Result<T, CommandError> {
        let Self { instance, trigger, entry, emissions } = self;
        let trigger = engine.histograms.trigger(*trigger).ok_or(ErrorKind::Gone)?;
        let (hist, format) = (&*trigger.hist, &*trigger.event);
        let block = |emission: &Option<Part>| emission.as_ref().map_or(Ok(None), |part| part.build(engine));
        let emissions = emissions.iter().map(block).collect::<Result<_, _>>()?;
        let filter = match &trigger.filter {
            Some(text) => {
                let filter = resolve::filter(text, format, engine.facts.as_ref());
                Some(filter.map_err(|error| error.errno())?)
            }
            None => None,
        };
        let own = ids::own().map_err(|_| ErrorKind::Denied)?;
        let table = engine.histograms.table(*instance, trigger.id).ok_or(ErrorKind::Gone)?;
        let references = References::of(hist, engine.histograms.set()).ok_or(ErrorKind::Invalid)?;
        let owners = references.owners.iter().map(|id| engine.histograms.counts(*id).map(AsRef::as_ref));
        let owners = owners.collect::<Option<Vec<&Counts>>>().ok_or(ErrorKind::Invalid)?;
        let (session, calls) = (
            engine.attachments.session(*instance).map(InstanceSession::kernel),
            engine.attachments.factory().and_then(|factory| factory.calls()),
        );
        let hist_context = HistContext { owners, session, calls, emissions };
        let emits = hist_context.emits();
        let request = lower::Request {
            hist,
            references: &references,
            filter: filter.as_ref(),
            context,
            kind: format.id,
            but_process: (*context != ProgramContext::Inject && !engine.attachments.options().own)
                .then_some(own.process),
            but_compat: calls.filter(|_| point.is_call()).map(|calls| calls.registers().compat),
            entry: *entry,
            cpus: engine.facts.cpus(),
            // A mark counts for its writer regardless of the lists (`tracing_mark_write()` checks none).
            within: Some(lower::Within {
                place: table.place,
                lists: !engine.registry.is_special(table.event),
                other: hooks::other(format, context),
            }),
            emits: &emits,
        };
        Ok(act(&request, &table.counts, hist_context))
    }

    /// The update of a histogram as a part of another program.
    pub(super) fn block(&self, engine: &Engine) -> Result<Block, CommandError> {
        let place = AttachPlan::new(ProgramContext::Inject, AttachPoint::Inject);
        self.with_request(engine, &place, attach::hist_part)?.map_err(invalid)
    }
}
