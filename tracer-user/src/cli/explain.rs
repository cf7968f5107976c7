//! `tracer explain`: prints each stage of the compilation of a filter or a definition.

use std::{io::Write, sync::Arc};

use anyhow::Context;

use super::args::ExplainArgs;
use crate::{
    attach,
    engine::{
        context,
        facts::Facts,
        hooks::AttachPlan,
        probes,
        record::{RecordRequest, SelectedEvent, Selection},
    },
    plan::{resolve, source::ProgramContext},
};

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let facts = Arc::new(Facts::running()?);
    let mut request = RecordRequest::default();
    if let Some(definition) = &args.probe {
        request.probes.push(definition.clone());
    } else {
        let event = args.event.clone().unwrap_or_default();
        request.events.push(match &args.filter {
            Some(filter) => format!("{event} if {filter}"),
            None => event,
        });
    }
    let mut selection = Selection::new(&request, Arc::clone(&facts))?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if args.probe.is_some() {
        for event in selection.events() {
            probe(&mut out, &event, args, &facts)?;
        }
        return Ok(out.flush()?);
    }
    let chosen = selection.try_hooks(args.tracepoints)?;
    for (event, chosen) in selection.events().zip(chosen) {
        one(&mut out, &event, args, chosen, &facts)?;
    }
    out.flush()?;
    Ok(())
}

fn one(
    out: &mut impl Write,
    event: &SelectedEvent<'_>,
    args: &ExplainArgs,
    mut chosen: AttachPlan,
    facts: &Facts,
) -> anyhow::Result<()> {
    let format = event.format;
    writeln!(out, "event {} (id {})", format.full_name(), format.id)?;
    if let Some(filter) = &args.filter {
        let stages = resolve::stages(filter.as_bytes(), format, facts).context("filter")?;
        writeln!(out, "\ntokens")?;
        for token in &stages.lexed.tokens {
            let words = filter.get(token.span.start..token.span.end).unwrap_or_default();
            writeln!(out, "  {:>3}..{:<3} {:?}  {words}", token.span.start, token.span.end, token.kind)?;
        }
        writeln!(out, "\ntree\n  {}", stages.tree)?;
        writeln!(out, "\nplan\n{}", indent(&format!("{:#?}", stages.filter)))?;
    }
    let cast = context::cast(facts);
    let listing = attach::listing(format, &chosen.context, event.filter, args.linked, cast);
    let listing = match listing {
        Err(error) if chosen.context != ProgramContext::Tracepoint => {
            chosen = AttachPlan::tracepoint(format, error.to_string());
            attach::listing(format, &chosen.context, event.filter, args.linked, cast)?
        }
        other => other?,
    };
    writeln!(out, "\nhook\n  {:?}", chosen.point)?;
    if chosen.reason.is_empty() {
        if let ProgramContext::RawTracepoint(fields) = &chosen.context {
            for field in fields {
                let name = format.fields.iter().find(|f| f.offset == usize::from(field.offset));
                writeln!(out, "    {} <- {:?}", name.map_or("?", |f| f.name.as_str()), field.source)?;
            }
        }
    } else {
        writeln!(out, "  no raw tracepoint: {}", chosen.reason)?;
    }
    writeln!(out, "\neBPF\n{}", indent(&listing))?;
    Ok(())
}

/// Explains a dynamic event: its arguments, their sources at each usable hook, and why other hooks are unusable.
fn probe(
    out: &mut impl Write,
    event: &SelectedEvent<'_>,
    args: &ExplainArgs,
    facts: &Facts,
) -> anyhow::Result<()> {
    let [probe] = &event.probes[..] else { return Ok(()) };
    write!(out, "event {} (id {})", event.format.full_name(), event.format.id)?;
    writeln!(out, "\n\nprint fmt\n  {}", event.format.print_fmt)?;
    if !probe.args.is_empty() {
        writeln!(out, "\narguments")?;
    }
    for arg in &probe.args {
        writeln!(out, "  {}: {}: {}", arg.arg.name, arg.arg.ty.name, arg.program)?;
    }
    if let Some(filter) = event.filter {
        writeln!(out, "\nfilter\n{}", indent(&format!("{filter:#?}")))?;
    }
    let probes::Candidates { usable, lacking } = probes::candidates(probe, facts);
    writeln!(out, "\nhooks, best first")?;
    for candidate in &usable {
        writeln!(out, "  {}", candidate.name())?;
        if let ProgramContext::Probe(plan) = &candidate.context {
            writeln!(out, "{}", indent(&indent(&plan.to_string())))?;
        }
    }
    for (hook, why) in lacking.reasons() {
        writeln!(out, "  not {hook}: {why}")?;
    }
    if let Some(first) = usable.first() {
        let listing = attach::listing(event.format, &first.context, event.filter, args.linked, None)?;
        writeln!(out, "\neBPF at {}\n{}", first.name(), indent(&listing))?;
    }
    Ok(())
}

fn indent(text: &str) -> String {
    let mut indented = String::with_capacity(text.len());
    for line in text.lines() {
        indented.push_str("  ");
        indented.push_str(line);
        indented.push('\n');
    }
    indented.truncate(indented.trim_end().len());
    indented
}
