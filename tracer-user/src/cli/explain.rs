//! `tracer explain`.

use std::io::Write;

use anyhow::Context;

use super::args::ExplainArgs;
use crate::{
    attach,
    engine::{
        facts::Facts,
        hooks::AttachPlan,
        probes, recorder,
        selection::{self, Selected},
    },
    plan::{resolve, source::ProgramContext},
};

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let facts = Facts::running()?;
    if let Some(definition) = &args.probe {
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        for event in probes::select(std::slice::from_ref(definition), &facts)? {
            probe(&mut out, &event, args, &facts)?;
        }
        return Ok(out.flush()?);
    }
    let event = args.event.clone().unwrap_or_default();
    let text = match &args.filter {
        Some(filter) => format!("{event} if {filter}"),
        None => event,
    };
    let selected = selection::select(&text, &facts.tracefs, &facts)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let formats: Vec<_> = selected.iter().map(|event| &event.format).collect();
    let chosen = recorder::try_hooks(&formats, args.tracepoints, &facts)?;
    for (event, chosen) in selected.iter().zip(chosen) {
        one(&mut out, event, args, chosen, &facts)?;
    }
    out.flush()?;
    Ok(())
}

fn one(
    out: &mut impl Write,
    event: &Selected,
    args: &ExplainArgs,
    mut chosen: AttachPlan,
    facts: &Facts,
) -> anyhow::Result<()> {
    let format = &event.format;
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
    let cast = recorder::cast(facts);
    let listing = attach::listing(format, &chosen.hook, event.filter.as_ref(), args.linked, cast);
    let listing = match listing {
        Err(error) if chosen.hook != ProgramContext::Tracepoint => {
            chosen = AttachPlan::tracepoint(format, error.to_string());
            attach::listing(format, &chosen.hook, event.filter.as_ref(), args.linked, cast)?
        }
        other => other?,
    };
    writeln!(out, "\nhook\n  {:?}", chosen.via)?;
    if chosen.reason.is_empty() {
        if let ProgramContext::RawTracepoint(fields) = &chosen.hook {
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

/// A dynamic event: what its arguments are, where they come from at each hook that can give them, and why others cannot.
fn probe(out: &mut impl Write, event: &Selected, args: &ExplainArgs, facts: &Facts) -> anyhow::Result<()> {
    let Some(probe) = &event.probe else { return Ok(()) };
    write!(out, "event {} (id {})", event.format.full_name(), event.format.id)?;
    writeln!(out, "\n\nprint fmt\n  {}", event.format.print_fmt)?;
    if !probe.args.is_empty() {
        writeln!(out, "\narguments")?;
    }
    for arg in &probe.args {
        writeln!(out, "  {}: {}: {}", arg.arg.name, arg.arg.ty.name, arg.program)?;
    }
    if let Some(filter) = &event.filter {
        writeln!(out, "\nfilter\n{}", indent(&format!("{filter:#?}")))?;
    }
    let probes::Candidates { usable, lacking } = probes::candidates(probe, event.base.as_deref(), facts);
    writeln!(out, "\nhooks, best first")?;
    for candidate in &usable {
        writeln!(out, "  {}", candidate.name())?;
        if let ProgramContext::Probe(plan) = &candidate.hook {
            writeln!(out, "{}", indent(&indent(&plan.to_string())))?;
        }
    }
    for (hook, why) in lacking.reasons() {
        writeln!(out, "  not {hook}: {why}")?;
    }
    if let Some(first) = usable.first() {
        let filter = event.filter.as_ref();
        let listing = attach::listing(&event.format, &first.hook, filter, args.linked, None)?;
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
