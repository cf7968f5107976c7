//! `tracer explain`: prints each stage of the compilation of a filter or a definition.

use std::io::Write;

use super::args::ExplainArgs;
use crate::api::Recording;

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let mut builder = Recording::builder().perf_tracepoints_only(args.tracepoints);
    if let Some(definition) = &args.probe {
        builder = builder.probe(definition);
    } else {
        builder = builder.event(args.event.clone().unwrap_or_default());
        if let Some(filter) = &args.filter {
            builder = builder.filter(filter);
        }
    }
    let mut text = String::new();
    let explained = builder.select()?.explain(&mut text, args.linked);
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(explained?)
}
