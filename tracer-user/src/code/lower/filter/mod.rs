//! Filters: the function `tracer_filter`, and the tests that triggers and histograms share with it.
//!
//! All jumps except those of loops go forward, so that the verifier visits each test once.

mod compare;
mod cpus;
mod glob;
mod number;
mod search;
mod text;

use super::{
    emitter::{Emitter, Uses},
    exits::{Exits, Next},
    image,
    output::{Code, LowerError, Needs},
    record::with_user_data,
    user_record,
    values::Values,
};
use crate::{
    code::asm::{Function, Label, Reg},
    plan::{
        filter::{Filter, Test},
        probe::ProbePlan,
        source::{FieldSource, ProgramContext, UserRecord},
    },
};

use text::Texts;

/// Lowers a filter to `tracer_filter`.
///
/// # Errors
/// If the hook does not provide a value that the filter compares.
pub fn filter(filter: &Filter, context: &ProgramContext) -> Result<Code, LowerError> {
    let (_, uses) = lower(filter, context, Uses::default())?;
    let (functions, uses) = lower(filter, context, uses)?;
    let more = uses.common || uses.calls;
    let needs = Needs { scratch: uses.scratch, flags: uses.flags, more };
    Ok(Code { functions, needs, size: None })
}

fn lower(
    filter: &Filter,
    context: &ProgramContext,
    mut uses: Uses,
) -> Result<(Vec<Function>, Uses), LowerError> {
    let read = (*filter != Filter::Const(true)).then_some(filter);
    let built = Built::of(context, read, true);
    if built.is_some() {
        (uses.calls, uses.common) = (true, true);
    }
    let mut emit = Emitter::new(uses);
    let mut lower = FilterLowering::new(Values::for_filter(context, filter), uses);
    let [yes, no] = emit.labels();
    emit.prologue();
    if let Some(built) = built {
        lower.build(&mut emit, built, read, no)?;
    }
    lower.start(&mut emit, filter);
    lower.branch(&mut emit, filter, Exits { yes, no, next: Next::Yes })?;
    emit.bind(yes);
    emit.mov(Reg::R0, 1);
    emit.exit();
    emit.bind(no);
    emit.mov(Reg::R0, 0);
    emit.exit();
    Ok(lower.finish(emit, tracer_abi::FILTER))
}

/// A record that is built before filters read it, because the context is not the record.
#[derive(Clone, Copy)]
pub(super) enum Built<'a> {
    /// The record of a dynamic event.
    Probe(&'a ProbePlan),
    /// A record in the memory of a user program.
    User(UserRecord),
    /// The record of a system call whose arguments point to data in user memory.
    Call(&'a ProgramContext, &'a [FieldSource]),
}

impl<'a> Built<'a> {
    /// The record that must be built at this hook. It is needed if a filter reads it (`read`), or if an event probe has
    /// a condition and the function has an effect (`has_effect`).
    pub(super) fn of(context: &'a ProgramContext, read: Option<&Filter>, has_effect: bool) -> Option<Self> {
        let is_read = read.is_some();
        match context {
            ProgramContext::Probe(plan) if is_read || (plan.when.is_some() && has_effect) => {
                Some(Self::Probe(plan))
            }
            ProgramContext::UserRecord(record) if is_read => Some(Self::User(*record)),
            ProgramContext::RawTracepoint(fields) => {
                let read = image::ReadBytes::by(read?);
                let mut data = with_user_data(fields);
                data.any(|(field, _)| read.has_field(field)).then_some(Self::Call(context, fields))
            }
            _ => None,
        }
    }
}

/// Lowers the filters of one function. It owns the function's values, texts and searches.
pub(super) struct FilterLowering<'a> {
    pub(super) values: Values<'a>,
    texts: Texts,
}

impl<'a> FilterLowering<'a> {
    pub(super) fn new(values: Values<'a>, uses: Uses) -> Self {
        Self { values, texts: Texts::new(uses.searches) }
    }

    /// Builds the record that filters read and makes it the context. `read` is their union; a hit that fails the
    /// condition of an event probe jumps to `no`.
    pub(super) fn build(
        &mut self,
        emit: &mut Emitter,
        built: Built<'_>,
        read: Option<&Filter>,
        no: Label,
    ) -> Result<(), LowerError> {
        if let Built::Probe(ProbePlan { when: Some(when), .. }) = built {
            self.condition(emit, when, no)?;
        }
        match (built, read) {
            (_, None) => Ok(()),
            (Built::Probe(plan), Some(filter)) => image::image(emit, plan, filter),
            (Built::User(record), Some(filter)) => user_record::image(emit, record, filter),
            (Built::Call(context, fields), Some(filter)) => {
                image::of_call(emit, context, fields, filter, image::RECORD_AT)?;
                self.values.set_built();
                Ok(())
            }
        }
    }

    /// Tests the condition of an event probe on the record of the event that the probe is attached to.
    fn condition(&mut self, emit: &mut Emitter, when: &Filter, no: Label) -> Result<(), LowerError> {
        let values = std::mem::replace(&mut self.values, Values::new(&ProgramContext::Tracepoint));
        let holds = emit.label();
        self.start(emit, when);
        self.branch(emit, when, Exits { yes: holds, no, next: Next::Yes })?;
        emit.bind(holds);
        self.values = values;
        Ok(())
    }

    /// Starts a filter, or several filters that are lowered one after the other. No text is fetched at this point.
    pub(super) fn start(&mut self, emit: &mut Emitter, filter: &Filter) {
        self.texts.start(emit, filter);
    }

    /// Lowers a filter, or a part of the one that was started.
    pub(super) fn branch(
        &mut self,
        emit: &mut Emitter,
        filter: &Filter,
        exits: Exits,
    ) -> Result<(), LowerError> {
        match filter {
            Filter::Const(holds) => exits.go(emit, *holds),
            Filter::Not(inner) => self.branch(emit, inner, exits.inverted())?,
            Filter::And(list) | Filter::Or(list) => {
                let all = matches!(filter, Filter::And(_));
                let Some((last, list)) = list.split_last() else {
                    exits.go(emit, all);
                    return Ok(());
                };
                for filter in list {
                    let next = emit.label();
                    let exits = if all {
                        Exits { yes: next, no: exits.no, next: Next::Yes }
                    } else {
                        Exits { yes: exits.yes, no: next, next: Next::No }
                    };
                    self.branch(emit, filter, exits)?;
                    emit.bind(next);
                }
                self.branch(emit, last, exits)?;
            }
            Filter::Test(test) => self.test(emit, test, exits)?,
        }
        Ok(())
    }

    fn test(&mut self, emit: &mut Emitter, test: &Test, exits: Exits) -> Result<(), LowerError> {
        let Self { values, texts } = self;
        match test {
            Test::Number { place, signed, op, value } => {
                number::number(emit, values, *place, (*signed, *op, *value), exits)
            }
            Test::Function { place, low, high, not } => {
                number::function_range(emit, values, *place, (*low, *high), exits.inverted_if(*not))
            }
            Test::Cpu { op, value } => {
                number::cpu(emit, values, *op, *value, exits);
                Ok(())
            }
            Test::Cpus { subject, op, set } => cpus::cpus(emit, values, texts, (*subject, *op, set), exits),
            Test::Text { text, pattern, not } => texts.test(emit, values, *text, (pattern, *not), exits),
        }
    }

    /// The function with the callbacks of its searches, and its uses.
    pub(super) fn finish(self, emit: Emitter, name: &str) -> (Vec<Function>, Uses) {
        let searches = self.texts.searches;
        let uses = Uses { searches: searches.count(), ..emit.uses };
        let main = emit.finish(name);
        let mut callbacks = searches.finish();
        // A search may be in unreachable code.
        callbacks.retain(|callback| main.addresses.iter().any(|(_, name)| *name == callback.name));
        (std::iter::once(main).chain(callbacks).collect(), uses)
    }
}
