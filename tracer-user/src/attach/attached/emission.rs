//! Code that is linked into programs of other events: the emission of a synthetic event, and the processing of its
//! record. Synthetic events have no hook of their own. Programs of other events emit them in the kernel, and user
//! space injects them. The same generated functions process the record in both cases.

use std::{os::fd::AsFd, sync::Arc};

use tracer_abi::INJECT_SIZE;

use crate::{
    attach::{AttachError, maps, program::load},
    code::{
        asm::{Function, Insn, MapRef},
        join, lower,
    },
    event::synthetic::Event,
    sys::bpf::map::Map,
};

/// A self-contained part of a program (`code::join`), and the maps that it refers to by descriptor. The block must live
/// until the program is loaded.
#[derive(Debug)]
pub struct Block {
    insns: Vec<Insn>,
    /// Owned so that their descriptors stay open.
    maps: Vec<Arc<Map>>,
}

impl Block {
    pub(crate) fn new(insns: Vec<Insn>, maps: Vec<Arc<Map>>) -> Self {
        Self { insns, maps }
    }

    /// Joins functions, the first of which is the entry, with the parts that they call by the names `part 0`, `part 1`
    /// and so on.
    pub(crate) fn joined(functions: &[Function], parts: &[Self], mut maps: Vec<Arc<Map>>) -> Self {
        let names = names(parts);
        let joined: Vec<join::Part<'_>> =
            names.iter().map(String::as_str).zip(parts.iter().map(Self::insns)).collect();
        let insns = join::join(functions, &joined);
        maps.extend(parts.iter().flat_map(|part| part.maps.iter().cloned()));
        Self { insns, maps }
    }

    pub(crate) fn into_maps(self) -> Vec<Arc<Map>> {
        self.maps
    }

    /// Its instructions; the first is the entry.
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }
}

/// The code that one program calls to emit the synthetic event with this id. `parts`, from `Session::block`, process
/// the record in the instances where the event is enabled. [`lower::emission`] defines the arguments. Returns `None`
/// if the event's record is too long.
///
/// # Errors
/// When the kernel refuses a map.
pub fn emission(event: &Event, id: u16, parts: &[Block]) -> Result<Option<Block>, AttachError> {
    let failed = |cause| AttachError::new(&event.name, cause);
    let area = maps::per_cpu(INJECT_SIZE, "tracer_emit").map_err(failed)?;
    let names = names(parts);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(function) = lower::emission(event, id, &names) else { return Ok(None) };
    let mut functions = [function];
    load::bind(&mut functions, |map| (map == MapRef::Emission).then_some(area.as_fd())).map_err(failed)?;
    Ok(Some(Block::joined(&functions, parts, vec![Arc::new(area)])))
}

pub(crate) fn names(parts: &[Block]) -> Vec<String> {
    (0..parts.len()).map(|number| format!("part {number}")).collect()
}
