//! Hooks of dynamic events: the hooks that can provide what a definition asks for, best first, and why others cannot.
//!
//! | definition | hooks, best first |
//! |---|---|
//! | `f` a function's entry, `%return` | fentry, fexit; kprobe.multi (first where programs are preempted); kprobe, kretprobe |
//! | `f` a glob | kprobe.multi |
//! | `f`, many enabled at once | one kprobe.multi for all of them; one fexit.multi for returns with arguments |
//! | `t` | raw tracepoint |
//! | `p` in the kernel | kprobe; fentry if no register is needed |
//! | `r` in the kernel | fexit if no register is needed (where programs are preempted, kprobe.multi); kretprobe |
//! | `p`, `r` in a file | uprobe, uretprobe |
//! | `e` | the perf tracepoint of its target event |
//!
//! The kernel accepts or refuses a hook only when a program is attached. If it refuses, the engine tries the next
//! hook, and the error names all of them ([`Tried`]).

mod hint;

use std::{collections::HashSet, fmt};

pub(crate) use hint::hint;

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
        dynamic::{Arg, Event, Kind, Place, Target},
    },
    kernel::{Btf, Change, Symbols, btf::Prototype, modules},
    lang::{define::Probe, facts::Arch, fetch::Op, filter::FilterError},
    plan::{
        filter::{Test, Text},
        probe::{self, Addresses, ArgPlan, Origin, ProbeContext, ProbePlan, Unavailable},
        resolve,
        source::ProgramContext,
    },
    render::{Printer, ProbeHead, ProbeValue},
    sys::Errno,
};

/// The characters that make a symbol a glob.
const GLOB: [char; 4] = ['*', '?', '[', '\\'];

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

/// Finds the hooks of a probe.
pub fn candidates(probe: &Probe, facts: &Facts) -> Candidates {
    let mut search = HookSearch { probe, facts, found: Candidates::default() };
    match &probe.event.target {
        Target::File { path, offset, reference, exit } => search.uprobe(path, *offset, *reference, *exit),
        Target::Tracepoint { name } => search.tracepoint(name),
        Target::Function { symbol, exit } if symbol.contains(GLOB) => search.kprobe_multi(symbol, *exit),
        Target::Function { symbol, exit } => {
            search.trampoline(symbol, *exit);
            search.kprobe_multi(symbol, *exit);
            search.kprobe(KernelPlace { symbol: Some(symbol.clone()), offset: 0 }, *exit);
        }
        Target::Kernel { place: Place::Symbol { name, offset }, exit } => {
            let place = KernelPlace { symbol: Some(name.clone()), offset: u64::from(*offset) };
            // A kretprobe of perf ignores MAXACTIVE and follows at most the kernel's default number of concurrent
            // calls. A trampoline follows all calls, and so does kprobe.multi, which has few of the registers.
            if *exit && *offset == 0 {
                search.trampoline(name, *exit);
                if search.is_preempted() && !search.found.usable.is_empty() {
                    search.kprobe_multi(name, *exit);
                }
            }
            search.kprobe(place, *exit);
            if !*exit && *offset == 0 {
                search.trampoline(name, *exit);
            }
        }
        Target::Kernel { place: Place::Address(address), exit } => {
            search.kprobe(KernelPlace { symbol: None, offset: *address }, *exit);
        }
        Target::Event { system, name, filter } => search.event(system, name, filter.as_deref()),
    }
    if search.is_preempted() {
        search.found.usable.sort_by_key(|plan| !misses_nothing(plan));
    }
    search.found
}

/// Whether the kernel runs a function's program with preemption disabled, and needs no second program at the entry. It
/// skips trampolines' programs for threads that preempt them.
fn misses_nothing(plan: &AttachPlan) -> bool {
    let saves_nothing = match &plan.context {
        ProgramContext::Probe(plan) => plan.entry_args.is_empty(),
        _ => true,
    };
    saves_nothing && matches!(plan.point, AttachPoint::KprobeMulti { .. })
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
}

/// Finds the hooks of a probe, one kind after the other.
struct HookSearch<'a> {
    probe: &'a Probe,
    facts: &'a Facts,
    found: Candidates,
}

impl HookSearch<'_> {
    fn offer(&mut self, context: ProbeContext, addresses: Addresses, point: AttachPoint) {
        let addresses = Addresses { per_cpu: per_cpu(self.probe, self.facts), ..addresses };
        match probe::plan(self.probe, context, addresses) {
            Ok(plan) => self.found.usable.push(attach_plan(self.probe, plan, point)),
            Err(why) => {
                if matches!(why, Unavailable::Symbol(_)) {
                    self.found.lacking.errno = Some(Errno::NOENT);
                }
                self.lacks(point.name(), why);
            }
        }
    }

    fn lacks(&mut self, hook: &'static str, why: impl fmt::Display) {
        self.found.lacking.add(hook, why);
    }

    /// Whether the kernel preempts programs of trampolines. Earlier kernels do so only with preempt=full.
    fn is_preempted(&self) -> bool {
        Change::PreemptibleTracepoints.is_in(self.facts.version())
    }

    /// The address that the kernel records for a probe of a function.
    fn address(&self, symbol: &str) -> Option<u64> {
        match self.probe.event.target {
            Target::Function { .. } => traced_address(symbol, self.facts),
            _ => address(symbol, self.facts),
        }
    }

    /// Offers uprobe or uretprobe.
    fn uprobe(&mut self, path: &[u8], offset: u64, reference: u64, exit: bool) {
        let hook = if exit { "uretprobe" } else { "uprobe" };
        let Some(file) = self.probe.file.as_ref().and_then(|file| file.opened.clone()) else {
            return self.lacks(hook, "the file is not open");
        };
        let place = FilePlace { file, path: path.to_vec(), offset, reference };
        let point = if exit { AttachPoint::Uretprobe(place) } else { AttachPoint::Uprobe(place) };
        let member = |of, member| Some(self.facts.btf()?.member(of, member).ok()??.offset);
        let in_task = member("task_struct", "utask").zip(member("uprobe_task", "vaddr"));
        let in_task = in_task.filter(|_| !Change::FunctionAtReturn.is_in(self.facts.version()));
        let addresses = Addresses { in_task, ..Addresses::default() };
        self.offer(ProbeContext::Registers(Arch::native()), addresses, point);
    }

    /// Offers the perf tracepoint of an event probe's target event.
    fn event(&mut self, system: &str, name: &str, filter: Option<&[u8]>) {
        let hook = "perf tracepoint";
        let format = self.facts.tracefs.format(system, name).ok().flatten();
        let Some(format) = format.and_then(|text| Format::parse(system, &text).ok()) else {
            return self.lacks(hook, "the kernel has no such event");
        };
        match on_record(self.probe, filter, &format, self.facts) {
            Ok(context) if hooks::has_user_data(&format) && reads_data(&context) => {
                self.lacks(hook, "the data of system calls are only at raw tracepoints");
            }
            Ok(context) => {
                self.found.usable.push(AttachPlan::new(context, AttachPoint::tracepoint(&format)));
            }
            Err(why) => self.lacks(hook, why),
        }
    }

    fn tracepoint(&mut self, name: &str) {
        let (hook, facts) = ("raw tracepoint", self.facts);
        if facts.btf().is_none() {
            return self.lacks(hook, "the kernel shows no BTF (CONFIG_DEBUG_INFO_BTF)");
        }
        let Some(prototype) = own_tracepoint(name, facts).or_else(|| module_tracepoint(name, facts)) else {
            let meant = hint::tracepoint(name, facts).map_or_else(String::new, |hint| format!(": {hint}"));
            return self.lacks(hook, format!("BTF does not know the tracepoint{meant}"));
        };
        let words = prototype.params.len() as u8;
        // The kernel probes a stub that every hit calls.
        let stub = [format!("__probestub_{name}"), format!("__traceiter_{name}")];
        let ip = stub.iter().find_map(|stub| traced_address(stub, facts)).unwrap_or_default();
        let addresses = Addresses { ip, ..Addresses::default() };
        self.offer(ProbeContext::Arguments(words), addresses, AttachPoint::RawTracepoint(name.to_owned()));
    }

    /// Offers fentry or fexit.
    fn trampoline(&mut self, symbol: &str, exit: bool) {
        let hook = if exit { "fexit" } else { "fentry" };
        let symbols = self.facts.symbols();
        // The kernel's event covers all functions of this name.
        if symbols.is_some_and(|symbols| is_several(symbols, symbol)) {
            return self.lacks(hook, "several functions have this name, and a trampoline is of one");
        }
        let (function, words) = match typed(symbol, self.facts) {
            Ok(called) => called,
            Err(why) => return self.lacks(hook, why),
        };
        let Some(ip) = self.address(symbol) else {
            return self.lacks(hook, "no symbol tells where the function is");
        };
        let end = symbols.and_then(|symbols| symbols.range(ip)).map_or(ip, |range| range.end);
        let point = if exit { AttachPoint::Fexit(function) } else { AttachPoint::Fentry(function) };
        let may_jump = Change::JumpsToTrampolines.is_in(self.facts.version());
        let addresses = Addresses { ip, end, may_jump, ..Addresses::default() };
        self.offer(ProbeContext::Call { words, exit, arch: Arch::native() }, addresses, point);
    }

    fn kprobe_multi(&mut self, pattern: &str, exit: bool) {
        let hook = "kprobe.multi";
        let Some(symbols) = self.facts.symbols() else {
            return self.lacks(hook, "the kernel hides the addresses of symbols");
        };
        let is_glob = pattern.contains(GLOB);
        // If several functions have this name, some of them may not be traceable.
        let starts = if is_glob || is_several(symbols, pattern) {
            let Some(starts) = traceable(pattern, self.facts) else {
                return self.lacks(hook, "the kernel does not list the functions that can be traced");
            };
            starts
        } else {
            symbols.addresses(pattern)
        };
        if starts.is_empty() {
            return self.lacks(hook, "there is no such function");
        }
        let of_one = (!is_glob && starts.len() == 1).then(|| self.address(pattern)).flatten();
        let addresses = Addresses { ip: of_one.unwrap_or_default(), by_fprobe: true, ..Addresses::default() };
        let point = AttachPoint::KprobeMulti { addresses: starts, exit };
        self.offer(ProbeContext::Registers(Arch::native()), addresses, point);
    }

    fn kprobe(&mut self, place: KernelPlace, exit: bool) {
        let ip = match &place.symbol {
            // The address that the kernel probes for a function.
            Some(symbol) if place.offset == 0 => address(symbol, self.facts),
            Some(symbol) => start(symbol, self.facts).map(|start| start.wrapping_add(place.offset)),
            None => Some(place.offset),
        };
        let addresses = Addresses { ip: ip.unwrap_or_default(), ..Addresses::default() };
        let point = if exit { AttachPoint::Kretprobe(place) } else { AttachPoint::Kprobe(place) };
        self.offer(ProbeContext::Registers(Arch::native()), addresses, point);
    }
}

/// The plan of a program for a probe.
fn attach_plan(probe: &Probe, plan: ProbePlan, point: AttachPoint) -> AttachPlan {
    let plan = AttachPlan::new(ProgramContext::Probe(Box::new(plan)), point);
    AttachPlan { irqs_off: hooks::probe_irqs_off(probe), ..plan }
}

/// Why an event probe cannot be computed from a record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OnRecordError {
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Value(#[from] Unavailable),
}

/// The context in which an event probe gets its values from a record of its target event.
///
/// # Errors
/// The reason why a value is unavailable, or the error of the filter.
pub(crate) fn on_record(
    probe: &Probe,
    filter: Option<&[u8]>,
    format: &Format,
    facts: &Facts,
) -> Result<ProgramContext, OnRecordError> {
    let when = filter.map(|text| resolve::filter(text, format, facts)).transpose()?;
    let plan = probe::plan(probe, ProbeContext::Record, Addresses::default())?;
    Ok(ProgramContext::Probe(Box::new(ProbePlan { when, ..plan })))
}

/// Whether an event probe reads data after the fields of its event's record.
fn reads_data(context: &ProgramContext) -> bool {
    let ProgramContext::Probe(plan) = context else { return false };
    let is_data = |test: &&Test| matches!(test, Test::Text { text: Text::Dyn { .. } | Text::Rel { .. }, .. });
    let of_event = |arg: &ArgPlan| matches!(&arg.value.from, Origin::Field(field) if field.is_data_loc());
    plan.args.iter().any(of_event) || plan.when.as_ref().is_some_and(|when| when.tests().iter().any(is_data))
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

#[derive(Debug, thiserror::Error)]
enum NoTypes {
    #[error("the kernel shows no BTF (CONFIG_DEBUG_INFO_BTF)")]
    NoBtf,
    #[error("BTF does not know the function")]
    UnknownFunction,
    #[error("the types of module {module}: {errno}")]
    Module { module: String, errno: Errno },
}

/// Finds a function, named with or without `MODULE:`, in the kernel's BTF or else in the BTF of its module; and the
/// number of its argument words.
fn typed(symbol: &str, facts: &Facts) -> Result<(Function, u8), NoTypes> {
    let btf = facts.btf().ok_or(NoTypes::NoBtf)?;
    let (module, name) = module_and_name(symbol);
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
    let types = |module: String| ModuleTypes::of(&module).map_err(|errno| NoTypes::Module { module, errno });
    let module = module.map(types).transpose()?;
    Ok((Function { id, module }, words))
}

/// Splits `[MODULE:]NAME`.
fn module_and_name(symbol: &str) -> (Option<&str>, &str) {
    symbol.split_once(':').map_or((None, symbol), |(module, name)| (Some(module), name))
}

/// Whether several functions have a name, with or without `MODULE:`.
fn is_several(symbols: &Symbols, symbol: &str) -> bool {
    let (module, name) = module_and_name(symbol);
    symbols.count(module, name) > 1
}

/// The hook of a function's event in a link that it shares with others, for many events that are enabled at once.
/// `None` for a function of a module, because the link would hold the module while other events are enabled. `None`
/// also if values must be saved at the entry for the return, on a kernel without links to many exits.
pub fn shared(probe: &Probe, facts: &Facts) -> Option<AttachPlan> {
    let Target::Function { symbol, exit } = &probe.event.target else { return None };
    let symbols = facts.symbols()?;
    if symbol.contains(GLOB) || symbol.contains(':') || symbols.modules_of(symbol).next().is_some() {
        return None;
    }
    let [address] = symbols.addresses(symbol)[..] else { return None };
    let addresses = Addresses { by_fprobe: true, per_cpu: per_cpu(probe, facts), ..Addresses::default() };
    let plan = probe::plan(probe, ProbeContext::Registers(Arch::native()), addresses).ok()?;
    if !plan.entry_args.is_empty() {
        return shared_exit(probe, symbol, address, facts);
    }
    let point = AttachPoint::Shared { address, exit: *exit };
    Some(attach_plan(probe, plan, point))
}

/// The hook of a function's return in a link to the exits of many functions.
fn shared_exit(probe: &Probe, symbol: &str, start: u64, facts: &Facts) -> Option<AttachPlan> {
    if !attach::has_exits() {
        return None;
    }
    let (Function { id, module: None }, words) = typed(symbol, facts).ok()? else { return None };
    let skip = traced(start);
    let addresses =
        Addresses { skip, may_jump: true, per_cpu: per_cpu(probe, facts), ..Addresses::default() };
    let context = ProbeContext::Call { words, exit: true, arch: Arch::native() };
    let plan = probe::plan(probe, context, addresses).ok()?;
    Some(attach_plan(probe, plan, AttachPoint::SharedExit(id)))
}

/// The kernel's table of the CPUs' offsets, if an argument needs it; else 0.
fn per_cpu(probe: &Probe, facts: &Facts) -> u64 {
    let needed = probe.args.iter().any(|arg| arg.program.ops().contains(&Op::ThisCpu));
    let table = || facts.symbols()?.addresses("__per_cpu_offset").first().copied();
    needed.then(table).flatten().unwrap_or_default()
}

/// The addresses at which the functions of a glob are traced. Kernels before 6.5 list only names.
fn traceable(pattern: &str, facts: &Facts) -> Option<Vec<u64>> {
    /// The name in `NAME [MODULE]`.
    fn name(line: &str) -> &str {
        line.split([' ', '\t']).next().unwrap_or_default()
    }
    let glob = Glob::new(pattern);
    let read = |file| facts.tracefs.read(file).ok().flatten();
    let mut places: Vec<u64> = if let Some(text) = read("available_filter_functions_addrs") {
        let places = text.lines().filter_map(|line| line.split_once(' '));
        let places = places.filter(|(_, function)| glob.matches(name(function)));
        places.filter_map(|(place, _)| u64::from_str_radix(place, 16).ok()).collect()
    } else {
        let text = read("available_filter_functions")?;
        let names: HashSet<&str> = text.lines().map(name).filter(|name| glob.matches(name)).collect();
        facts.symbols()?.iter().filter(|(_, name)| names.contains(name)).map(|(address, _)| address).collect()
    };
    places.sort_unstable();
    places.dedup();
    Some(places)
}

/// The address of a symbol.
fn start(symbol: &str, facts: &Facts) -> Option<u64> {
    facts.symbols()?.addresses(symbol).first().copied()
}

/// The address at which a kprobe is for a function: after the instruction that marks it as a target of indirect branches,
/// if it begins with one (`arch_adjust_kprobe_addr()`).
fn address(function: &str, facts: &Facts) -> Option<u64> {
    let start = start(function, facts)?;
    Some(start + u64::from(mark(start)))
}

/// The address of a function's call of the function tracer, at which fprobes are.
fn traced_address(function: &str, facts: &Facts) -> Option<u64> {
    let start = start(function, facts)?;
    Some(start + u64::from(traced(start)))
}

/// Bytes of the instruction at the start of a function that marks it as a target of indirect branches, on x86; 0 if it
/// has none.
fn mark(start: u64) -> u8 {
    // `endbr64`, and the no-operations that replace it where the kernel does not need it (the last on newer kernels).
    const ENDBR: [u32; 3] = [0xfa1e_0ff3, 0x001f_0f66, 0xd640_1f0f];
    if Arch::native() == Arch::X86_64 && begins_with(start, &ENDBR) { 4 } else { 0 }
}

/// Bytes from the start of a function to its call of the function tracer. On arm64 that follows the instruction that
/// saves the link register (`ftrace_call_adjust()`, arch/arm64/kernel/ftrace.c).
fn traced(start: u64) -> u8 {
    /// `bti c`.
    const BTI: [u32; 1] = [0xd503_245f];
    match Arch::native() {
        Arch::X86_64 => mark(start),
        Arch::Arm64 if begins_with(start, &BTI) => 8,
        Arch::Arm64 => 4,
    }
}

/// Whether the kernel's text at an address begins with one of these words.
fn begins_with(address: u64, words: &[u32]) -> bool {
    kernel_word(address).is_ok_and(|word| words.contains(&(word as u32)))
}

/// Makes the printer for the records of a dynamic event.
pub fn printer(event: &Event, id: u16) -> Printer {
    let head = match (&event.target, event.kind(), event.is_exit()) {
        (Target::Event { system, name, .. }, ..) => ProbeHead::Event(format!("{system}.{name}")),
        (_, Kind::Uprobe, false) => ProbeHead::User,
        (_, Kind::Uprobe, true) => ProbeHead::UserReturn,
        (_, _, false) => ProbeHead::Kernel,
        (_, _, true) => ProbeHead::KernelReturn,
    };
    let base = event.head_size();
    let value = |arg: &Arg| ProbeValue {
        label: format!(" {}=", arg.name),
        ty: arg.ty.name,
        offset: base + arg.offset as usize,
        size: arg.ty.size as usize,
        count: arg.count as usize,
    };
    Printer::probe(&event.format(id), head, event.args.iter().map(value).collect())
}
