//! From template and generated functions to the instructions of one program.
//!
//! `code::link` joins the two in an ELF, and aya's object layer resolves calls and map references. The constants of
//! `.rodata` go into their own frozen map.

use std::{
    collections::{HashMap, HashSet},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use aya_obj::{EbpfSectionKind, Map as Definition, Object};
use tracer_abi::{COUNTERS, ENTRY_ARGS, PARAMS, Params, SWITCHES};

use crate::{
    attach::{
        Cause,
        maps::{self, SessionMaps},
        program::load,
    },
    code::{
        asm::{Function, Insn},
        link, listing,
        lower::{self, Needs},
        opt::{self, Frozen, Known},
    },
    event::Format,
    kernel::{Cast, PreemptGuard},
    plan::{filter::Filter, source::ProgramContext, trigger::Trigger},
    sys::bpf::{
        map::{Map, MapKind, MapSpec, flag},
        prog::{Prog, ProgKind, Purpose},
    },
};

/// The templates of `tracer-ebpf`, built by `cargo xtask ebpf`; the same for all architectures.
#[cfg(not(feature = "bpf-log"))]
static TEMPLATES: &[u8] = include_bytes!("../../../ebpf/tracer-ebpf.o");
/// The templates that log, built by `cargo xtask build --debug`.
#[cfg(feature = "bpf-log")]
static TEMPLATES: &[u8] = include_bytes!(env!("TRACER_EBPF_OBJECT"));

/// The functions generated for one event at one hook.
#[derive(Debug)]
pub(crate) struct Functions {
    list: Vec<Function>,
    /// Bytes of every payload; 0 when the length varies.
    pub(crate) size: u32,
    /// Needs of filter and triggers.
    pub(crate) needs: Needs,
}

impl Functions {
    /// Generates filter, record and triggers. For an absent filter or trigger list it generates a function that the
    /// template never calls.
    pub(crate) fn generate(
        format: &Format,
        context: &ProgramContext,
        filter: Option<&Filter>,
        triggers: &[Trigger],
    ) -> Result<Self, Cause> {
        let record = lower::record(format, context).map_err(Cause::Lower)?;
        let filter = lower::filter(filter.unwrap_or(&Filter::Const(true)), context).map_err(Cause::Lower)?;
        let triggers = lower::trigger(triggers, context).map_err(Cause::Lower)?;
        let size = record.size.unwrap_or(0) as u32;
        let list = filter.functions.into_iter().chain(record.functions).chain(triggers.functions).collect();
        let needs = Needs {
            scratch: filter.needs.scratch || triggers.needs.scratch,
            // Triggers always get the flags.
            flags: filter.needs.flags,
            more: filter.needs.more,
        };
        Ok(Self { list, size, needs })
    }

    /// Appends the functions' names and instructions, which identify them.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for function in &self.list {
            out.extend_from_slice(function.name.as_bytes());
            out.push(0);
            out.extend(function.bytes());
            let addresses = function.addresses.iter().map(|(slot, name)| (*slot, name.as_str()));
            for (slot, name) in addresses.chain(function.maps()) {
                out.extend(slot.to_ne_bytes());
                out.extend_from_slice(name.as_bytes());
            }
        }
    }

    #[cfg(test)]
    pub(super) fn list(&self) -> &[Function] {
        &self.list
    }

    pub(crate) fn listing(&self) -> String {
        listing::functions(&self.list)
    }

    /// A listing of a whole program: the template with these functions linked in.
    pub(crate) fn linked(&self, template: &str, cast: Option<Cast>) -> Result<String, Cause> {
        let image = finish(&linked(&self.list)?, template, &[], &[], cast, |_| Some(rustix::stdio::stdin()))?;
        Ok(listing::program(&image.insns))
    }

    /// Functions for templates that call none, because the linker needs every symbol defined.
    fn stubs() -> Vec<Function> {
        [tracer_abi::FILTER, tracer_abi::RECORD, tracer_abi::TRIGGER].into_iter().map(load::nothing).collect()
    }
}

/// The instructions of a program that is ready to load.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) insns: Vec<Insn>,
    /// Frozen maps that the instructions refer to by descriptor. The program keeps them once it is loaded.
    pub(crate) constants: Vec<Map>,
}

/// Links a template with its functions, relocates it, and returns the instructions.
pub(crate) fn image(
    template: &str,
    functions: &Functions,
    fixed: &Params,
    cast: Option<Cast>,
    memory: &Memory<'_>,
) -> Result<Image, Cause> {
    let Memory { maps, scratch, entry_args } = *memory;
    let linked = linked(&functions.list)?;
    let singles: &[&str] = if maps.counters().is_one_value() { &[SWITCHES, COUNTERS] } else { &[SWITCHES] };
    let map = |name: &str| match name {
        ENTRY_ARGS => entry_args.map(AsFd::as_fd),
        _ => maps.named(name, scratch),
    };
    finish(&linked, template, &[(PARAMS, &fixed.bytes())], singles, cast, map)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory<'a> {
    /// The session's shared maps.
    pub(crate) maps: &'a SessionMaps,
    /// Scratch memory that replaces the session's.
    pub(crate) scratch: Option<&'a Map>,
    /// The map of the arguments that functions were called with.
    pub(crate) entry_args: Option<&'a Map>,
}

/// The templates' ELF with these functions defined in it.
pub(super) fn linked(functions: &[Function]) -> Result<Vec<u8>, Cause> {
    link::link(TEMPLATES, functions).map_err(|error| Cause::Link(error.to_string()))
}

/// Loads a template that calls no generated function, with preemption disabled while it runs if there is a `guard`.
pub(crate) fn load_plain<'a>(
    kind: ProgKind,
    template: &str,
    constants: &[(&str, &[u8])],
    cast: Option<Cast>,
    guard: Option<PreemptGuard>,
    map: impl Fn(&str) -> Option<BorrowedFd<'a>>,
) -> Result<Prog, Cause> {
    let image = finish(&linked(&Functions::stubs())?, template, constants, &[SWITCHES], cast, map)?;
    // A template that cannot be guarded misses the hits of threads that preempt it.
    let guarded = guard.and_then(|guard| opt::guarded(&image.insns, guard));
    load::load(kind, Purpose::Any, guarded.as_ref().unwrap_or(&image.insns), template)
}

/// Resolves everything in a linked ELF and returns the instructions of one of its programs.
pub(super) fn finish<'a>(
    linked: &[u8],
    template: &str,
    constants: &[(&str, &[u8])],
    singles: &[&str],
    cast: Option<Cast>,
    map: impl Fn(&str) -> Option<BorrowedFd<'a>>,
) -> Result<Image, Cause> {
    let broken = |error: &dyn std::fmt::Display| Cause::Link(error.to_string());
    let mut object = Object::parse(linked).map_err(|error| broken(&error))?;
    let given = !constants.is_empty();
    let constants: HashMap<&str, (&[u8], bool)> =
        constants.iter().map(|(name, bytes)| (*name, (*bytes, true))).collect();
    object.patch_map_data(constants).map_err(|error| broken(&error))?;
    // Frozen memory has placeholder numbers until it is known whether an instruction reads it.
    let mut frozen: Vec<(RawFd, Vec<u8>)> = Vec::new();
    let mut resolved: Vec<(String, RawFd, Definition)> = Vec::new();
    for (name, definition) in &object.maps {
        let fd = if definition.section_kind() == EbpfSectionKind::Rodata {
            let name = RawFd::MAX - frozen.len() as RawFd;
            frozen.push((name, definition.data().to_vec()));
            name
        } else {
            // A map that only other templates use. Code that refers to it is not linked into this program, and the
            // kernel would refuse a descriptor that is no map.
            map(name).unwrap_or(rustix::stdio::stdin()).as_raw_fd()
        };
        resolved.push((name.clone(), fd, definition.clone()));
    }
    // Programs of other templates refer to maps that are not provided here, so remove them before relocating.
    let key = object
        .programs
        .get(template)
        .map(aya_obj::Program::function_key)
        .ok_or_else(|| Cause::Link(format!("no template {template}")))?;
    let others: Vec<_> =
        object.programs.values().map(aya_obj::Program::function_key).filter(|other| *other != key).collect();
    let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    for other in others {
        object.functions.remove(&other);
    }
    object.programs.retain(|name, _| name == template);
    object
        .relocate_maps(
            resolved.iter().map(|(name, fd, definition)| (name.as_str(), *fd, definition)),
            &sections,
        )
        .map_err(|error| broken(&error))?;
    object.relocate_calls(&sections).map_err(|error| broken(&error))?;
    let function = object.functions.get(&key).ok_or_else(|| Cause::Link("the program is gone".into()))?;
    let insns = function
        .instructions
        .iter()
        .map(|insn| Insn {
            op: insn.code,
            dst: insn.dst_reg(),
            src: insn.src_reg(),
            off: insn.off,
            imm: insn.imm,
            map: None,
        })
        .collect();
    // A listing has no parameters, so the program keeps all branches.
    let known: Vec<Frozen<'_>> =
        if given { frozen.iter().map(|(fd, bytes)| Frozen { fd: *fd, bytes }).collect() } else { Vec::new() };
    let singles = singles.iter().filter(|_| given).filter_map(|name| Some(map(name)?.as_raw_fd()));
    let singles: Vec<RawFd> = singles.collect();
    let mut insns = opt::improve(insns, &Known { cast, frozen: &known, singles: &singles });
    let mut read = Vec::new();
    for (name, bytes) in &frozen {
        let mut users =
            insns.iter_mut().filter(|insn| insn.is_wide() && insn.src != 0 && insn.imm == *name).peekable();
        if users.peek().is_some() {
            let map = constant_map(bytes)?;
            users.for_each(|insn| insn.imm = map.as_fd().as_raw_fd());
            read.push(map);
        }
    }
    Ok(Image { insns, constants: read })
}

/// A frozen array with one value: memory whose content the verifier knows.
pub(crate) fn constant_map(data: &[u8]) -> Result<Map, Cause> {
    let fail = |errno| Cause::Map("read-only array", errno);
    let spec = maps::spec(MapKind::Array, data.len(), 1, "tracer_const");
    let map = Map::create(&MapSpec { flags: flag::RDONLY_PROG, ..spec }).map_err(fail)?;
    map.update(&0_u32.to_ne_bytes(), data).map_err(fail)?;
    map.freeze().map_err(fail)?;
    Ok(map)
}
