//! Suggestions for a refused definition: similar names, or the available names. They are for the command line only;
//! the kernel has no such suggestions.

use super::{GLOB, module_and_name};
use crate::{
    engine::facts::Facts as Known,
    lang::{
        define::{Finding, Line, Refusal},
        facts::Facts,
        fetch::ErrorKind,
    },
    plan::resolve::like,
};

/// Maximum number of names to show.
const SHOWN: usize = 24;

/// A sentence that helps with the first error of a definition.
pub(crate) fn hint(line: &Line<'_>, refusal: &Refusal, facts: &dyn Facts, known: &Known) -> Option<String> {
    let finding = refusal.findings().first()?;
    let culprit = String::from_utf8_lossy(finding.span.of(line.text())).into_owned();
    match finding.kind {
        ErrorKind::NoVariable => arguments(line, &culprit, facts),
        ErrorKind::NoField => fields(line, finding, &culprit, facts),
        ErrorKind::BadRegister => {
            let registers = facts.arch().registers();
            Some(format!("registers are {}", list(registers.iter().map(|name| format!("%{name}")))))
        }
        ErrorKind::BadType => Some(
            "types are u8 to u64, s8 to s64, x8 to x64, char, string, ustring, symbol, symstr, %pd, %pD, \
             bWIDTH@OFFSET/SIZE, and arrays TYPE[N]"
                .to_owned(),
        ),
        ErrorKind::BadVariable | ErrorKind::NoAttachField if line.word(0).first() == Some(&b'e') => {
            let (system, name) = std::str::from_utf8(line.word(1)).ok()?.split_once(['/', '.'])?;
            let fields = facts.event(system, name)?.fields.into_iter().map(|field| field.name);
            Some(format!("{system}/{name} has {}", list(fields.map(|name| format!("${name}")))))
        }
        ErrorKind::BadVariable => {
            Some("variables are $argN, $arg*, $retval, $stack, $stackN and $comm".to_owned())
        }
        ErrorKind::BadAttachEvent => meant(like(
            &culprit.replace('.', "/"),
            known.tracefs.available_events().ok()?.lines().map(|name| name.replace(':', "/")),
        )),
        ErrorKind::BadFileProbeOffset => {
            let path = line.word(1).rsplitn(2, |byte| *byte == b':').nth(1)?;
            meant(like(&culprit, facts.file_symbols(path).into_iter()))
        }
        _ => place(line, finding.kind, facts, known),
    }
}

/// Suggests tracepoints with similar names.
pub(super) fn tracepoint(name: &str, known: &Known) -> Option<String> {
    let all = known.tracefs.available_events().ok()?;
    meant(like(name, all.lines().filter_map(|line| line.split_once(':')).map(|(_, name)| name.to_owned())))
}

/// A question with the names; `None` without names.
fn meant(names: Vec<String>) -> Option<String> {
    let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    (!names.is_empty()).then(|| format!("did you mean {}?", names.join(" or ")))
}

fn list(names: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = names.collect();
    let more = if all.len() > SHOWN { format!(" and {} more", all.len() - SHOWN) } else { String::new() };
    all.get(..SHOWN).unwrap_or(&all).join(", ") + &more
}

/// The symbol that a probe names, without its offset or suffix; `None` for files and globs.
fn symbol<'a>(line: &'a Line<'_>) -> Option<&'a str> {
    let place = std::str::from_utf8(line.word(1)).ok()?;
    place.split(['+', '%']).next().filter(|name| !name.contains('/') && !name.contains(GLOB))
}

/// A suggestion for a function or tracepoint that does not exist or cannot be traced.
fn place(line: &Line<'_>, kind: ErrorKind, facts: &dyn Facts, known: &Known) -> Option<String> {
    let name = symbol(line)?;
    if line.word(0).first() == Some(&b't') {
        return if facts.tracepoint(name).is_some() { None } else { tracepoint(name, known) };
    }
    let (module, name) = module_and_name(name);
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let symbols = known.symbols()?;
    match symbols.count(module, name) {
        0 => meant(like(name, symbols.iter().map(|(_, name)| name.to_owned()))),
        1 if matches!(kind, ErrorKind::BadProbeAddress | ErrorKind::RegisterFailed) => Some(format!(
            "`{name}` is there, but is one of the functions that the kernel keeps from being traced (notrace, \
             NOKPROBE_SYMBOL, or not listed in available_filter_functions)"
        )),
        1 => None,
        count => Some(format!(
            "there are {count} functions of this name: name the module, MODULE:{name}, or an address from /proc/kallsyms"
        )),
    }
}

/// The function that has the types of a probe's arguments, and the number of its first arguments that the probe does
/// not have.
fn typed(line: &Line<'_>, facts: &dyn Facts) -> Option<(String, usize)> {
    let name = symbol(line)?;
    if line.word(0).first() == Some(&b't') {
        return Some((facts.tracepoint(name)?, 1));
    }
    Some((name.rsplit(':').next()?.to_owned(), 0))
}

/// A suggestion for an argument that the probed function does not have.
fn arguments(line: &Line<'_>, culprit: &str, facts: &dyn Facts) -> Option<String> {
    let (function, first) = typed(line, facts)?;
    let params = facts.signature(&function)?.params;
    let names: Vec<String> =
        params.into_iter().skip(first).map(|(name, _)| name).filter(|name| !name.is_empty()).collect();
    let root = culprit.split(['-', '.']).next().unwrap_or(culprit);
    meant(like(root, names.iter().cloned())).or_else(|| {
        let all = if names.is_empty() { "no arguments".to_owned() } else { list(names.into_iter()) };
        Some(format!("{} has {all}", symbol(line)?))
    })
}

/// A suggestion for a member that a struct does not have. The path before it is resolved again.
fn fields(line: &Line<'_>, finding: &Finding, culprit: &str, facts: &dyn Facts) -> Option<String> {
    let before = line.text().get(..finding.span.start)?;
    let start = before.iter().rposition(|byte| !(byte.is_ascii_alphanumeric() || b"_$>-.".contains(byte)));
    let way = std::str::from_utf8(before.get(start.map_or(0, |at| at + 1)..)?).ok()?;
    let mut steps = way.split(['-', '>', '.']).filter(|step| !step.is_empty());
    let root = steps.next()?;
    let (function, first) = typed(line, facts)?;
    let signature = facts.signature(&function)?;
    let mut ty = match root {
        "$retval" => signature.returns,
        _ => signature.params.iter().skip(first).find(|(name, _)| name == root)?.1,
    };
    for step in steps {
        ty = facts.member(facts.aggregate(ty)?, step)?.ty;
    }
    let names = facts.members(facts.aggregate(ty)?);
    meant(like(culprit, names.iter().cloned()))
        .or_else(|| (!names.is_empty()).then(|| format!("there are {}", list(names.into_iter()))))
}
