//! `tracer doctor`: reports the features that this kernel and these privileges allow.

use std::io::Write;

use super::args::DoctorArgs;
use crate::{
    engine::{confine::Role, facts::Facts},
    event::{Catalogue, Format},
    kernel::{
        Answer,
        features::{self, Feature, Group},
    },
    render::Printer,
};

pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut group: Option<Group> = None;
    let features = features::probe();
    for feature in &features {
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
                "advice": feature.advice,
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
    for (role, process) in Role::ALL {
        if args.json {
            writeln!(out, "{}", privileges_json(role, process))?;
        } else {
            out.write_all(kept(role, process).as_bytes())?;
        }
    }
    let mut listed = Ok(());
    if !args.json {
        listed = unrendered(&mut out);
        out.write_all(to_do(&features).as_bytes())?;
    }
    out.flush()?;
    listed
}

/// What to do, each with the features that it concerns.
fn to_do(features: &[Feature]) -> String {
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for (advice, name) in features.iter().filter_map(|feature| Some((feature.advice?, feature.name))) {
        match steps.iter_mut().find(|step| step.0 == advice) {
            Some(step) => step.1.push(name),
            None => steps.push((advice, vec![name])),
        }
    }
    if steps.is_empty() {
        return "to do: nothing\n".to_owned();
    }
    let lines = steps.iter().map(|(advice, names)| format!("  {}:\n          {advice}\n", names.join(", ")));
    format!("to do:\n{}", lines.collect::<String>())
}

/// The privileges that a process keeps, as text.
fn kept(role: Role, process: &str) -> String {
    let first = if role == Role::ALL[0].0 {
        "kept once set up, each with no_new_privs and a filter of system calls:\n"
    } else {
        ""
    };
    let kept = role.capabilities();
    let names = kept.iter().map(|kept| format!("          {:<20} {}\n", kept.name, kept.reason));
    let count = match kept.len() {
        0 => "no capability".to_owned(),
        1 => "1 capability".to_owned(),
        count => format!("{count} capabilities"),
    };
    format!("{first}  {process}: {count}\n{}", names.collect::<String>())
}

/// The privileges that a process keeps, as JSON.
fn privileges_json(role: Role, process: &str) -> serde_json::Value {
    let kept = role.capabilities().iter();
    let kept: Vec<_> =
        kept.map(|kept| serde_json::json!({"name": kept.name, "reason": kept.reason})).collect();
    serde_json::json!({"group": "kept", "process": process, "capabilities": kept})
}

/// Lists the events whose print format cannot be evaluated, with the reason.
fn unrendered(out: &mut impl Write) -> anyhow::Result<()> {
    let facts = match Facts::running() {
        Ok(facts) => facts,
        Err(error) => {
            writeln!(out, "events:\n  {:#}", anyhow::Error::new(error))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_listed_once_with_its_features() {
        let feature = |name, advice| Feature {
            group: Group::Facts,
            name,
            purpose: "",
            since: "",
            answer: Answer::Yes,
            detail: None,
            advice,
        };
        let features = [
            feature("a", Some("mount it")),
            feature("b", None),
            feature("c", Some("ask")),
            feature("d", Some("mount it")),
        ];
        assert_eq!(to_do(&features), "to do:\n  a, d:\n          mount it\n  c:\n          ask\n");
        assert_eq!(to_do(&features[1..2]), "to do: nothing\n");
    }

    #[test]
    fn kept_privileges_are_shown_with_their_reasons() {
        assert_eq!(kept(Role::Closer, "closer"), "  closer: no capability\n");
        let text = kept(Role::ClientMemory, "client memory");
        assert_eq!(
            text,
            "  client memory: 2 capabilities\n          \
             CAP_SYS_PTRACE       reach the memory that clients register for user events\n          \
             CAP_DAC_OVERRIDE     open /proc/PID/mem of processes of other users\n"
        );
        let text = kept(Role::Daemon, "mount");
        assert!(text.starts_with("kept once set up") && text.contains("\n          CAP_BPF "), "{text}");
        for (role, process) in Role::ALL {
            let shown = privileges_json(role, process);
            assert_eq!(shown["capabilities"].as_array().unwrap().len(), role.capabilities().len());
        }
    }
}
