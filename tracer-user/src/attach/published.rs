//! Synthetic events that programs of other processes emit in the kernel: named maps in a BPF file system.
//!
//! Such a program stages the values on its CPU and tail-calls the **relay**, a program of this crate in a table. It
//! does so from a function of its own, so that it continues afterwards. The relay emits the event in all instances
//! where it is enabled. A program can only tail-call its own type, so there is a table for each type. Nothing blocks:
//! an empty table means that the event is disabled. A killed daemon leaves its relays and their rings until the next
//! daemon takes the names over. An emission inside another emission of the same event on a CPU is lost and counted.

use std::{mem::offset_of, os::fd::AsFd, path::Path};

use tracer_abi::{EMIT_FIELDS, Emitting, LAYOUT, Stage, layout, pins};

use super::{AttachError, Block, Cause, maps, program::load};
use crate::{
    code::{
        asm::{Assembler, Cond, Helper, MapRef, Reg, Width},
        join,
    },
    event::synthetic::Event,
    sys::bpf::{
        map::{Map, MapKind},
        prog::{Prog, ProgKind, Purpose},
    },
};

/// Name of the emission function that the relay calls.
const EMISSION: &str = "emission";

/// The types of programs that can emit.
pub const KINDS: [(ProgKind, &str); 4] = [
    (ProgKind::RawTracepoint, pins::RAW_TP),
    (ProgKind::Tracepoint, pins::TP),
    (ProgKind::Kprobe, pins::KPROBE),
    (ProgKind::PerfEvent, pins::PERF_EVENT),
];

/// The pinned maps of an event.
#[derive(Debug)]
pub struct Pinned {
    state: Map,
    stage: Map,
    tables: Vec<Map>,
}

fn map(dir: &Path, event: &str, suffix: &str, kind: MapKind, value_size: usize) -> Result<Map, AttachError> {
    let name = format!("{event}{suffix}");
    Map::pinned(&dir.join(&name), &maps::spec(kind, value_size, 1, &name))
        .map_err(|errno| AttachError::new(dir.join(&name).display().to_string(), Cause::Map("pinned", errno)))
}

impl Pinned {
    /// Opens an event's maps in a directory and creates missing ones.
    ///
    /// # Errors
    /// When the kernel refuses a map.
    pub fn open(dir: &Path, event: &str) -> Result<Self, AttachError> {
        let state = map(dir, event, pins::STATE, MapKind::Array, size_of::<Emitting>())?;
        let stage = map(dir, event, pins::STAGE, MapKind::PerCpuArray, size_of::<Stage>())?;
        let table = |(_, suffix): &(_, &str)| map(dir, event, suffix, MapKind::ProgArray, 4);
        let tables = KINDS.iter().map(table).collect::<Result<_, _>>()?;
        Ok(Self { state, stage, tables })
    }

    /// Removes the names. Programs that use the maps keep them.
    pub fn unpin(dir: &Path, event: &str) {
        let all = KINDS.iter().map(|(_, suffix)| *suffix).chain([pins::STATE, pins::STAGE]);
        for suffix in all {
            let _ = std::fs::remove_file(dir.join(format!("{event}{suffix}")));
        }
    }

    /// Disables the event.
    ///
    /// # Errors
    /// When the kernel refuses to change a map.
    pub fn turn_off(&self, event: Option<&Event>) -> Result<(), AttachError> {
        self.set(&Emitting { on: 0, pad: 0, layout: event.map_or(0, fields) })?;
        for table in &self.tables {
            table.delete(&[0; 4]).map_err(|errno| AttachError::new("relay", Cause::Map("table", errno)))?;
        }
        Ok(())
    }

    /// Enables the event with these emissions, one for each of [`KINDS`].
    ///
    /// # Errors
    /// When the kernel refuses all programs, or a change of a map.
    pub fn turn_on(&self, event: &Event, emissions: Vec<Block>) -> Result<(), AttachError> {
        debug_assert!(event.fields.len() <= EMIT_FIELDS);
        let mut refused = None;
        let mut any = false;
        for ((table, (kind, _)), emission) in self.tables.iter().zip(KINDS).zip(emissions) {
            match self.relay(kind, &emission, &event.name) {
                Ok(relay) => {
                    let done = table.set_fd(0, relay.as_fd());
                    done.map_err(|errno| AttachError::new(&event.name, Cause::Map("table", errno)))?;
                    any = true;
                }
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if !any => return Err(error),
            Some(error) => tracing::warn!("{error}"),
            None => {}
        }
        self.set(&Emitting { on: 1, pad: 0, layout: fields(event) })
    }

    fn set(&self, state: &Emitting) -> Result<(), AttachError> {
        let bytes = [state.on.to_ne_bytes(), state.pad.to_ne_bytes()].concat();
        let bytes = [bytes, state.layout.to_ne_bytes().to_vec()].concat();
        self.state
            .update(&[0; 4], &bytes)
            .map_err(|errno| AttachError::new("relay", Cause::Map("state", errno)))
    }

    fn relay(&self, kind: ProgKind, emission: &Block, title: &str) -> Result<Prog, AttachError> {
        let mut asm = Assembler::new();
        let out = asm.label();
        asm.mov(Reg::R6, Reg::R1);
        asm.store(Width::D, Reg::R10, -8, 0);
        asm.map(Reg::R1, MapRef::Stage);
        asm.address(Reg::R2, Reg::R10, -8);
        asm.call(Helper::MapLookupElem);
        asm.jump_if(Cond::Eq, Reg::R0, 0, out);
        asm.address(Reg::R1, Reg::R0, offset_of!(Stage, values) as i32);
        asm.mov(Reg::R2, Reg::R6);
        asm.call_function(EMISSION);
        asm.bind(out);
        asm.mov(Reg::R0, 0);
        asm.exit();
        let failed = |cause| AttachError::new(title, cause);
        let mut functions = [asm.finish("relay")];
        load::bind(&mut functions, |map| (map == MapRef::Stage).then_some(self.stage.as_fd()))
            .map_err(failed)?;
        let insns = join::join(&functions, &[(EMISSION, emission.insns())]);
        load::load(kind, Purpose::Any, &insns, title).map_err(failed)
    }
}

/// A hash of an event's fields.
fn fields(event: &Event) -> u64 {
    event
        .fields
        .iter()
        .fold(LAYOUT, |hash, member| layout(hash, format!("{} {};", member.ty(), member.name).as_bytes()))
}
