//! `tracer list`: prints the names of events, and their fields on request.

use std::io::Write;

use anyhow::bail;

use super::args::ListArgs;
use crate::{
    engine::confine::{self, Role},
    event::{Catalogue, Format},
    kernel::Tracefs,
};

pub(super) fn run(args: &ListArgs) -> anyhow::Result<()> {
    let tracefs = Tracefs::open()?;
    // Root can read its own files without a capability.
    confine::confine(Role::Reader);
    let catalogue = Catalogue::parse(&tracefs.available_events()?);
    let matching = catalogue.matching(&args.pattern);
    if matching.is_empty() {
        bail!("no event matches `{}`", args.pattern);
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (system, name) in matching {
        if !args.formats && !args.json {
            writeln!(out, "{system}:{name}")?;
            continue;
        }
        let Some(text) = tracefs.format(system, name)? else { continue };
        if args.json {
            serde_json::to_writer(&mut out, &describe(&Format::parse(system, &text)?))?;
            writeln!(out)?;
        } else {
            writeln!(out, "system: {system}\n{text}")?;
        }
    }
    out.flush()?;
    Ok(())
}

fn describe(format: &Format) -> serde_json::Value {
    let fields: Vec<_> = format
        .common
        .iter()
        .chain(&format.fields)
        .map(|field| {
            serde_json::json!({
                "name": field.name,
                "type": field.ty,
                "offset": field.offset,
                "size": field.size,
                "signed": field.signed,
            })
        })
        .collect();
    serde_json::json!({
        "system": format.system,
        "event": format.name,
        "id": format.id,
        "fields": fields,
        "print_fmt": format.print_fmt,
    })
}
