//! Hooks of dynamic events: the hooks that can provide what a definition asks for, best first, and why others cannot.
//!
//! | definition | hooks, best first |
//! |---|---|
//! | `f` a function's entry, `%return` | fentry, fexit; kprobe.multi; kprobe, kretprobe |
//! | `f` a glob | kprobe.multi |
//! | `f`, many enabled at once | one kprobe.multi for all of them |
//! | `t` | raw tracepoint |
//! | `p` in the kernel | kprobe; fentry if no register is needed |
//! | `r` in the kernel | fexit if no register is needed; kretprobe |
//! | `p`, `r` in a file | uprobe, uretprobe |
//! | `e` | the perf tracepoint of its target event |
//!
//! The kernel accepts or refuses a hook only when a program is attached. If it refuses, the engine tries the next
//! hook, and the error names all of them ([`Tried`]).

mod hint;
mod text;

use std::{collections::HashSet, fmt};

pub(crate) use hint::hint;
pub use text::printer;

use crate::{
    attach::{
        self, AttachError, AttachPoint, Cause, FilePlace, Function, KernelPlace, ModuleTypes, kernel_word,
    },
    engine::{
        facts::Facts,
        hooks::{self, AttachPlan},
    },
    event::{
        Format, Glob,
        dynamic::{Place, Target},
    },
    kernel::{Btf, Symbols, btf::Prototype, modules},
    lang::{define::Probe, facts::Arch, filter::FilterError},
    plan::{
        filter::Filter,
        probe::{self, Addresses, ProbeContext, ProbePlan, Unavailable},
        resolve,
        source::ProgramContext,
    },
    sys::Errno,
};

/// The first kernel in which a program at a uretprobe can read which function returns (a3c485a5d8d4).
const TELLS_FUNCTION: (u32, u32) = (6, 6);

/// The hooks of a probe.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// The hooks that can provide everything, best first.
    pub usable: Vec<AttachPlan>,
    /// The other hooks, with reasons.
    pub lacking: Tried,
}

/// Hooks that cannot be used, with reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    reasons: Vec<(&'static str, String)>,
    errno: Option<Errno>,
}

impl Tried {
    /// Adds a hook.
    pub fn add(&mut self, hook: &'static str, why: impl fmt::Display) {
        self.reasons.push((hook, why.to_string()));
    }

    /// Adds a hook that the kernel refused.
    pub fn refused(&mut self, hook: &'static str, error: &AttachError) {
        let errno = match error.cause() {
            Cause::Hook(_, errno) | Cause::System(_, errno) | Cause::Map(_, errno) => Some(*errno),
            Cause::Load(_, error) => Some(error.errno),
            _ => None,
        };
        self.errno = self.errno.or(errno);
        self.add(hook, error.cause());
    }

    /// The kernel's error number for the best hook that it refused; `EOPNOTSUPP` if it refused none.
    pub fn errno(&self) -> Errno {
        self.errno.unwrap_or(Errno::OPNOTSUPP)
    }

    /// Hooks and reasons.
    pub fn reasons(&self) -> &[(&'static str, String)] {
        &self.reasons
    }
}

impl std::error::Error for Tried {}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (hook, why)) in self.reasons.iter().enumerate() {
            write!(f, "{}{hook}: {why}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// Checks that the kernel allows a probe at an instruction, by attaching a kprobe for a moment. If this cannot be
/// determined, the result is `Ok`.
///
/// # Errors
/// `EILSEQ` inside an instruction, `EINVAL` where probes are forbidden.
pub fn may_probe(address: u64) -> Result<(), Errno> {
    match attach::try_kprobe(address) {
        Err(errno @ (Errno::ILSEQ | Errno::INVAL)) => Err(errno),
        _ => Ok(()),
    }
}

/// A function for a trampoline, and the number of its argument words.
struct Called {
    function: Function,
    words: u8,
}

/// Finds the hooks of a probe.
pub fn candidates(probe: &Probe, facts: &Facts) -> Candidates {
    let mut found = Candidates::default();
    let registers = ProbeContext::Registers(Arch::native());
    match &probe.event.target {
        Target::File { path, offset, reference, exit } => {
            let hook = if *exit { "uretprobe" } else { "uprobe" };
            let Some(file) = probe.file.as_ref().and_then(|file| file.opened.clone()) else {
                found.lacking.add(hook, "the file is not open");
                return found;
            };
            let place = FilePlace { file, path: path.clone(), offset: *offset, reference: *reference };
            let point = if *exit { AttachPoint::Uretprobe(place) } else { AttachPoint::Uprobe(place) };
            let offset = |of, member| Some(facts.btf()?.member(of, member).ok()??.offset);
            let in_task = offset("task_struct", "utask").zip(offset("uprobe_task", "vaddr"));
            let in_task = in_task.filter(|_| facts.version() < TELLS_FUNCTION);
            found.offer(probe, registers, Addresses { in_task, ..Addresses::default() }, point);
        }
        Target::Tracepoint { name } => tracepoint(probe, name, facts, &mut found),
        Target::Function { symbol, exit } if symbol.contains(['*', '?', '[']) => {
            kprobe_multi(probe, symbol, *exit, facts, &mut found);
        }
        Target::Function { symbol, exit } => {
            trampoline(probe, symbol, *exit, facts, &mut found);
            kprobe_multi(probe, symbol, *exit, facts, &mut found);
            let place = KernelPlace { symbol: Some(symbol.clone()), offset: 0 };
            kprobe(probe, place, *exit, facts, &mut found);
        }
        Target::Kernel { place: Place::Symbol { name, offset }, exit } => {
            let place = KernelPlace { symbol: Some(name.clone()), offset: u64::from(*offset) };
            // A kretprobe of perf ignores MAXACTIVE and follows at most the kernel's default number of concurrent
            // calls. A trampoline follows all calls.
            if *exit && *offset == 0 {
                trampoline(probe, name, *exit, facts, &mut found);
            }
            kprobe(probe, place, *exit, facts, &mut found);
            if !*exit && *offset == 0 {
                trampoline(probe, name, *exit, facts, &mut found);
            }
        }
        Target::Kernel { place: Place::Address(address), exit } => {
            kprobe(probe, KernelPlace { symbol: None, offset: *address }, *exit, facts, &mut found);
        }
        Target::Event { system, name, filter } => {
            event(probe, (system, name), filter.as_deref(), facts, &mut found);
        }
    }
    found
}

impl Candidates {
    /// Tries the usable hooks, best first, until the kernel accepts one.
    ///
    /// # Errors
    /// All hooks, each with the reason why it is not used.
    pub(crate) fn first<T>(
        self,
        mut attempt: impl FnMut(&AttachPlan) -> Result<T, AttachError>,
    ) -> Result<(T, AttachPlan), Tried> {
        let Self { usable, lacking: mut tried } = self;
        for candidate in usable {
            match attempt(&candidate) {
                Ok(done) => {
                    tracing::debug!(hook = candidate.name(), %tried);
                    return Ok((done, candidate));
                }
                Err(error) => {
                    tracing::debug!("{error}: {}", error.verifier_log().unwrap_or_default());
                    tried.refused(candidate.name(), &error);
                }
            }
        }
        Err(tried)
    }

    fn offer(&mut self, probe: &Probe, given: ProbeContext, addresses: Addresses, point: AttachPoint) {
        match probe::plan(probe, given, addresses) {
            Ok(plan) => {
                let plan = AttachPlan::new(ProgramContext::Probe(Box::new(plan)), point);
                self.usable.push(AttachPlan { irqs_off: hooks::probe_irqs_off(probe), ..plan });
            }
            Err(why) => self.lacking.add(point.name(), why),
        }
    }
}

/// Adds the perf tracepoint of an event probe's target event.
fn event(
    probe: &Probe,
    (system, name): (&str, &str),
    filter: Option<&[u8]>,
    facts: &Facts,
    found: &mut Candidates,
) {
    let hook = "perf tracepoint";
    let format = facts.tracefs.format(system, name).ok().flatten();
    let Some(format) = format.and_then(|text| Format::parse(system, &text).ok()) else {
        return found.lacking.add(hook, "the kernel has no such event");
    };
    match on_record(probe, filter, &format, facts) {
        Ok(context) => {
            found.usable.push(AttachPlan::new(context, AttachPoint::Tracepoint(format.id)));
        }
        Err(why) => found.lacking.add(hook, why),
    }
}

/// Why an event probe cannot be computed from a record.
#[derive(Debug, thiserror::Error)]
pub enum OnRecordError {
    /// The event has no field that the filter names.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The record does not provide an argument.
    #[error(transparent)]
    Value(#[from] Unavailable),
}

/// The context in which an event probe gets its values from a record of its target event.
///
/// # Errors
/// The reason why a value is unavailable, or the error of the filter.
pub fn on_record(
    probe: &Probe,
    filter: Option<&[u8]>,
    format: &Format,
    facts: &Facts,
) -> Result<ProgramContext, OnRecordError> {
    let (plan, when) = plan_on_record(probe, filter, format, facts)?;
    Ok(ProgramContext::Probe(Box::new(ProbePlan { when, ..plan })))
}

fn plan_on_record(
    probe: &Probe,
    filter: Option<&[u8]>,
    format: &Format,
    facts: &Facts,
) -> Result<(ProbePlan, Option<Filter>), OnRecordError> {
    let when = filter.map(|text| resolve::filter(text, format, facts)).transpose();
    let when = when?;
    Ok((probe::plan(probe, ProbeContext::Record, Addresses::default())?, when))
}

/// The prototype of a tracepoint of the kernel itself.
fn own_tracepoint(name: &str, facts: &Facts) -> Option<Prototype> {
    facts.btf()?.tracepoint(name).ok()?
}

/// The prototype of a tracepoint of a loaded module.
fn module_tracepoint(name: &str, facts: &Facts) -> Option<Prototype> {
    let calls = format!("__traceiter_{name}");
    let module = facts.symbols()?.modules_of(&calls).next()?;
    facts.btf()?.module(module).ok()??.tracepoint(name).ok()?
}

/// Whether a probe waits for its module: the module that it names, or the one that has its tracepoint. `None` for a
/// probe of the kernel itself.
pub fn waits(probe: &Probe, facts: &Facts) -> Option<bool> {
    match &probe.event.target {
        Target::Tracepoint { name } if facts.btf().is_some() && own_tracepoint(name, facts).is_none() => {
            Some(module_tracepoint(name, facts).is_none())
        }
        Target::Kernel { place: Place::Symbol { name, .. }, .. } => {
            Some(!modules::is_loaded(name.split_once(':')?.0))
        }
        _ => None,
    }
}

fn tracepoint(probe: &Probe, name: &str, facts: &Facts, found: &mut Candidates) {
    let hook = "raw tracepoint";
    if facts.btf().is_none() {
        return found.lacking.add(hook, "the kernel shows no BTF");
    }
    let Some(prototype) = own_tracepoint(name, facts).or_else(|| module_tracepoint(name, facts)) else {
        let meant = hint::tracepoint(name, facts).map_or_else(String::new, |hint| format!(": {hint}"));
        return found.lacking.add(hook, format!("BTF does not know the tracepoint{meant}"));
    };
    let words = prototype.params.len() as u8;
    // The kernel probes a stub that every hit calls.
    let stub = [format!("__probestub_{name}"), format!("__traceiter_{name}")];
    let ip = stub.iter().find_map(|stub| address(stub, facts)).unwrap_or_default();
    let addresses = Addresses { ip, ..Addresses::default() };
    found.offer(
        probe,
        ProbeContext::Arguments(words),
        addresses,
        AttachPoint::RawTracepoint(name.to_owned()),
    );
}

/// Why a function's types are unknown.
#[derive(Debug, thiserror::Error)]
enum NoTypes {
    #[error("the kernel shows no BTF")]
    NoBtf,
    #[error("BTF does not know the function")]
    UnknownFunction,
    #[error("the types of module {module}: {errno}")]
    Module { module: String, errno: Errno },
}

/// Finds the types of a function, named with or without `MODULE:`, in the kernel's BTF or else in the BTF of its
/// module.
fn typed(symbol: &str, facts: &Facts) -> Result<Called, NoTypes> {
    let btf = facts.btf().ok_or(NoTypes::NoBtf)?;
    let (module, name) = match symbol.split_once(':') {
        Some((module, name)) => (Some(module), name),
        None => (None, symbol),
    };
    let called = |types: &Btf, module: Option<&str>| {
        let id = types.function_id(name).ok()??;
        let prototype = types.function(name).ok()??;
        let words: u32 = prototype.params.iter().map(|param| param.info.size.div_ceil(8).max(1)).sum();
        Some((id, u8::try_from(words).ok()?, module.map(str::to_owned)))
    };
    let own = if module.is_none() { called(btf, None) } else { None };
    let in_modules = || {
        let module = module.or_else(|| facts.symbols()?.modules_of(name).next())?;
        called(btf.module(module).ok()??.as_ref(), Some(module))
    };
    let (id, words, module) = own.or_else(in_modules).ok_or(NoTypes::UnknownFunction)?;
    let module = match module {
        Some(module) => {
            let types = ModuleTypes::of(&module);
            Some(types.map_err(|errno| NoTypes::Module { module, errno })?)
        }
        None => None,
    };
    Ok(Called { function: Function { id, module }, words })
}

/// Whether several functions have a name, with or without `MODULE:`.
fn is_several(symbols: &Symbols, name: &str) -> bool {
    let (module, name) = name.split_once(':').map_or((None, name), |(module, name)| (Some(module), name));
    symbols.count(module, name) > 1
}

/// Adds fentry or fexit.
fn trampoline(probe: &Probe, symbol: &str, exit: bool, facts: &Facts, found: &mut Candidates) {
    let hook = if exit { "fexit" } else { "fentry" };
    // The kernel's event covers all functions of this name.
    if facts.symbols().is_some_and(|symbols| is_several(symbols, symbol)) {
        return found.lacking.add(hook, "several functions have this name, and a trampoline is of one");
    }
    let Called { function, words } = match typed(symbol, facts) {
        Ok(called) => called,
        Err(why) => return found.lacking.add(hook, why),
    };
    let Some(ip) = address(symbol, facts) else {
        return found.lacking.add(hook, "no symbol tells where the function is");
    };
    let end = facts.symbols().and_then(|symbols| symbols.range(ip)).map_or(ip, |range| range.end);
    let point = if exit { AttachPoint::Fexit(function) } else { AttachPoint::Fentry(function) };
    let addresses = Addresses { ip, end, ..Addresses::default() };
    found.offer(probe, ProbeContext::Call { words, exit, arch: Arch::native() }, addresses, point);
}

/// Adds kprobe.multi.
fn kprobe_multi(probe: &Probe, pattern: &str, exit: bool, facts: &Facts, found: &mut Candidates) {
    let point = |addresses| AttachPoint::KprobeMulti { addresses, exit };
    let mut lacking = |why: &str| found.lacking.add("kprobe.multi", why);
    let Some(symbols) = facts.symbols() else { return lacking("the kernel hides the addresses of symbols") };
    let is_glob = pattern.contains(['*', '?', '[']);
    // If several functions have this name, some of them may not be traceable.
    let starts = if is_glob || is_several(symbols, pattern) {
        let Some(starts) = traceable(pattern, facts) else {
            return lacking("the kernel does not list the functions that can be traced");
        };
        starts
    } else {
        symbols.addresses(pattern)
    };
    if starts.is_empty() {
        return lacking("there is no such function");
    }
    let ip = if is_glob || starts.len() > 1 { 0 } else { address(pattern, facts).unwrap_or_default() };
    let addresses = Addresses { ip, by_fprobe: true, ..Addresses::default() };
    found.offer(probe, ProbeContext::Registers(Arch::native()), addresses, point(starts));
}

/// The hook of a function's event in a link that it shares with others, for many events that are enabled at once.
/// `None` for a function of a module, because the link would hold the module while other events are enabled. `None`
/// also if values must be saved at the entry for the return.
pub fn shared(probe: &Probe, facts: &Facts) -> Option<AttachPlan> {
    let Target::Function { symbol, exit } = &probe.event.target else { return None };
    let symbols = facts.symbols()?;
    if symbol.contains(['*', '?', '[', ':']) || symbols.modules_of(symbol).next().is_some() {
        return None;
    }
    let [address] = symbols.addresses(symbol)[..] else { return None };
    let addresses = Addresses { by_fprobe: true, ..Addresses::default() };
    let plan = probe::plan(probe, ProbeContext::Registers(Arch::native()), addresses).ok()?;
    let point = AttachPoint::Shared { address, exit: *exit };
    let irqs_off = hooks::probe_irqs_off(probe);
    let fits = plan.entry_args.is_empty();
    let plan = AttachPlan::new(ProgramContext::Probe(Box::new(plan)), point);
    fits.then_some(AttachPlan { irqs_off, ..plan })
}

/// The addresses at which the functions of a glob are traced. Kernels before 6.5 list only names.
fn traceable(pattern: &str, facts: &Facts) -> Option<Vec<u64>> {
    let glob = Glob::new(pattern);
    let read = |file| facts.tracefs.read(file).ok().flatten();
    let name = |text: &'_ str| glob.matches(text.split([' ', '\t']).next().unwrap_or_default());
    let mut places: Vec<u64> = if let Some(text) = read("available_filter_functions_addrs") {
        let places = text.lines().filter_map(|line| line.split_once(' '));
        let places = places.filter(|(_, function)| name(function));
        places.filter_map(|(place, _)| u64::from_str_radix(place, 16).ok()).collect()
    } else {
        let text = read("available_filter_functions")?;
        let names: HashSet<&str> = text
            .lines()
            .filter(|line| name(line))
            .filter_map(|line| line.split([' ', '\t']).next())
            .collect();
        facts.symbols()?.iter().filter(|(_, name)| names.contains(name)).map(|(address, _)| address).collect()
    };
    places.sort_unstable();
    places.dedup();
    Some(places)
}

fn kprobe(probe: &Probe, place: KernelPlace, exit: bool, facts: &Facts, found: &mut Candidates) {
    let ip = match &place.symbol {
        // The address that the kernel probes for a function.
        Some(symbol) if place.offset == 0 => address(symbol, facts),
        Some(symbol) => start(symbol, facts).map(|start| start.wrapping_add(place.offset)),
        None => Some(place.offset),
    };
    let addresses = Addresses { ip: ip.unwrap_or_default(), ..Addresses::default() };
    let point = if exit { AttachPoint::Kretprobe(place) } else { AttachPoint::Kprobe(place) };
    found.offer(probe, ProbeContext::Registers(Arch::native()), addresses, point);
}

/// The address of a symbol.
fn start(symbol: &str, facts: &Facts) -> Option<u64> {
    facts.symbols()?.addresses(symbol).first().copied()
}

/// The address at which a function is probed: after the instruction that marks it as a target of indirect branches,
/// if it begins with one (`arch_adjust_kprobe_addr()`, and the compiler's place for the function tracer's call).
fn address(function: &str, facts: &Facts) -> Option<u64> {
    // `endbr64`, and the no-operation that replaces it where the kernel does not need it.
    const ENDBR: [u32; 2] = [0xfa1e_0ff3, 0x001f_0f66];
    let start = start(function, facts)?;
    if Arch::native() != Arch::X86_64 {
        return Some(start);
    }
    let marked = kernel_word(start).is_ok_and(|word| ENDBR.contains(&(word as u32)));
    Some(if marked { start + 4 } else { start })
}
