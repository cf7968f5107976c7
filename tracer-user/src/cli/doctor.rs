//! `tracer doctor`.

use std::io::Write;

use super::args::DoctorArgs;
use crate::{
    control::facts::Facts,
    event::{Catalogue, Format},
    kernel::{
        Answer,
        features::{self, Group},
    },
    render::Printer,
};

pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut group: Option<Group> = None;
    for feature in features::probe() {
        let (word, why) = match &feature.answer {
            Answer::Yes => ("yes", ""),
            Answer::No(why) => ("no", why.as_str()),
            Answer::Unknown(why) => ("unknown", why.as_str()),
        };
        if args.json {
            let line = serde_json::json!({
                "group": feature.group.title(),
                "name": feature.name,
                "answer": word,
                "why": why,
                "purpose": feature.purpose,
                "since": feature.since,
                "detail": feature.detail,
            });
            writeln!(out, "{line}")?;
            continue;
        }
        if group.replace(feature.group) != Some(feature.group) {
            writeln!(out, "{}:", feature.group.title())?;
        }
        write!(out, "  {:<8}{:<22} {}", word, feature.name, feature.purpose)?;
        if let Some(detail) = &feature.detail {
            write!(out, " [{detail}]")?;
        }
        writeln!(out)?;
        if !why.is_empty() {
            writeln!(out, "          {why} (needs: {})", feature.since)?;
        }
    }
    if !args.json {
        unrendered(&mut out)?;
    }
    out.flush()?;
    Ok(())
}

/// The events whose print fmt is not followed, with the reason.
fn unrendered(out: &mut impl Write) -> anyhow::Result<()> {
    let facts = match Facts::running() {
        Ok(facts) => facts,
        Err(error) => {
            writeln!(out, "events:\n  {error}")?;
            return Ok(());
        }
    };
    let catalogue = Catalogue::parse(&facts.tracefs.available_events()?);
    writeln!(out, "events: {}", catalogue.len())?;
    for (system, name) in catalogue.iter() {
        let Some(text) = facts.tracefs.format(system, name)? else { continue };
        let format = match Format::parse(system, &text) {
            Ok(format) => format,
            Err(error) => {
                writeln!(out, "  {system}:{name}: {error}")?;
                continue;
            }
        };
        if let Some(reason) = Printer::compile(&format, &facts).reason() {
            writeln!(out, "  {system}:{name} is shown field by field: {reason}")?;
        }
    }
    Ok(())
}
