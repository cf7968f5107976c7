//! The stages of the compilation of a recording's filters and probes, as text.

use std::fmt;

use super::{RecordError, SelectedRecording};
use crate::{
    attach,
    engine::{
        context,
        facts::Facts,
        hooks::AttachPlan,
        probes,
        record::{SelectError, SelectedEvent},
    },
    lang::define::Probe,
    plan::{resolve, source::ProgramContext},
};

impl SelectedRecording {
    /// Appends to `text` how each event would be attached: the stages from its filter, or from the definition of its
    /// probe, to the eBPF code; the hook; and why better hooks cannot be used. `linked` shows the whole program instead
    /// of the generated part. The form of the text may change.
    ///
    /// # Errors
    /// The kernel refuses to make maps, or no code can be made. The text has the stages before that.
    pub fn explain(&mut self, text: &mut String, linked: bool) -> Result<(), RecordError> {
        let Self { builder, selection } = self;
        let mut plans = selection.try_hooks(builder.options.tracepoints_only)?.into_iter();
        let (mut out, facts) = (Text(text), selection.facts());
        for event in selection.events() {
            out.line(format_args!("event {} (id {})", event.format.full_name(), event.format.id));
            if !event.of_kernel && event.probes.is_empty() {
                out.line("\nhook\n  a uprobe in its program");
            } else if !event.of_kernel {
                out.line(format_args!("\nprint fmt\n  {}", event.format.print_fmt));
                event.probes.iter().try_for_each(|one| probe(&mut out, &event, one, linked, facts))?;
            } else if let Some(plan) = plans.next() {
                tracepoint(&mut out, &event, plan, linked, facts)?;
            }
        }
        Ok(())
    }
}

struct Text<'a>(&'a mut String);

impl Text<'_> {
    fn line(&mut self, line: impl fmt::Display) {
        self.0.extend([line.to_string().as_str(), "\n"]);
    }
}

fn tracepoint(
    out: &mut Text<'_>,
    event: &SelectedEvent<'_>,
    mut plan: AttachPlan,
    linked: bool,
    facts: &Facts,
) -> Result<(), RecordError> {
    let format = event.format;
    if let Some(filter) = event.filter_text {
        let stages = resolve::stages(filter, format, facts)
            .map_err(|error| SelectError::Filter { event: format.full_name(), error: Box::new(error) })?;
        out.line("\ntokens");
        for token in &stages.lexed.tokens {
            let (start, end) = (token.span.start, token.span.end);
            let words = String::from_utf8_lossy(filter.get(start..end).unwrap_or_default());
            out.line(format_args!("  {start:>3}..{end:<3} {:?}  {words}", token.kind));
        }
        out.line(format_args!("\ntree\n  {}", stages.tree));
    }
    if let Some(filter) = event.filter {
        out.line(format_args!("\nplan\n{}", indent(&format!("{filter:#?}"))));
    }
    let cast = context::cast(facts);
    let listing = match attach::listing(format, &plan.context, event.filter, linked, cast) {
        Err(error) if !plan.point.is_tracepoint() => {
            plan = AttachPlan::tracepoint(format, error.to_string());
            attach::listing(format, &plan.context, event.filter, linked, cast)?
        }
        other => other?,
    };
    out.line(format_args!("\nhook\n  {:?}", plan.point));
    if plan.reason.is_empty() {
        if let ProgramContext::RawTracepoint(fields) = &plan.context {
            for field in fields {
                let name = format.fields.iter().find(|f| f.offset == usize::from(field.offset));
                let name = name.map_or("?", |f| f.name.as_str());
                out.line(format_args!("    {name} <- {:?}", field.source));
            }
        }
    } else {
        out.line(format_args!("  no raw tracepoint: {}", plan.reason));
    }
    out.line(format_args!("\neBPF\n{}", indent(&listing)));
    Ok(())
}

/// Explains a probe: its arguments, their sources at each usable hook, and why other hooks are unusable.
fn probe(
    out: &mut Text<'_>,
    event: &SelectedEvent<'_>,
    probe: &Probe,
    linked: bool,
    facts: &Facts,
) -> Result<(), RecordError> {
    if !probe.args.is_empty() {
        out.line("\narguments");
    }
    for arg in &probe.args {
        out.line(format_args!("  {}: {}: {}", arg.arg.name, arg.arg.ty.name, arg.program));
    }
    if let Some(filter) = event.filter {
        out.line(format_args!("\nfilter\n{}", indent(&format!("{filter:#?}"))));
    }
    let probes::Candidates { usable, lacking } = probes::candidates(probe, facts);
    out.line("\nhooks, best first");
    for candidate in &usable {
        out.line(format_args!("  {}", candidate.name()));
        if let ProgramContext::Probe(plan) = &candidate.context {
            out.line(indent(&indent(&plan.to_string())));
        }
    }
    for (hook, why) in lacking.reasons() {
        out.line(format_args!("  not {hook}: {why}"));
    }
    if let Some(first) = usable.first() {
        let listing = attach::listing(event.format, &first.context, event.filter, linked, None)?;
        out.line(format_args!("\neBPF at {}\n{}", first.name(), indent(&listing)));
    }
    Ok(())
}

fn indent(text: &str) -> String {
    let mut indented = String::with_capacity(text.len());
    for line in text.lines() {
        indented.extend(["  ", line, "\n"]);
    }
    indented.truncate(indented.trim_end().len());
    indented
}
