//! References of generated code to maps.
//!
//! An instruction keeps its reference in all passes. [`bind`] replaces references by descriptors in programs
//! that contain no template. In functions that are linked into a template, `code::link` makes them relocations.

use std::fmt;

use super::Insn;

/// A map that generated code refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapRef {
    /// The constant format `%pS` of a template.
    SymbolFormat,
    /// The arguments that functions were called with.
    EntryArgs,
    /// The value that user texts are read into to make their pages present.
    Prefault,
    /// A histogram's entries.
    HistTable,
    /// An array whose only value counts a histogram's drops.
    HistDrops,
    /// Memory of each CPU for a histogram.
    HistScratch,
    /// An array whose only value describes the last snapshot ([`crate::plan::hist::snapshot`]).
    HistSnapshot,
    /// The entries of another histogram, one of [`crate::plan::hist::References::owners`].
    HistOwner(u16),
    /// The instance's ring buffers of control records.
    Controls,
    /// The instance's switches.
    Switches,
    /// The instance's lists of threads.
    Pids,
    /// The records that a relay makes.
    RelayArea,
    /// Scratch memory of a relay.
    RelayScratch,
    /// The record of a synthetic event that a program emits.
    Emission,
    /// The values of an event that another program emits.
    Stage,
    /// The program array of a dispatch table.
    Programs,
    /// A per-CPU array whose only value counts the hits of a dispatch table.
    Hits,
    /// An array whose only value has the claims of hits by pairs of gates.
    Claims,
    /// An array whose only value is the memory of a pair of gates.
    Gates,
    /// An array of preempt counts that programs saw.
    Measured,
}

impl MapRef {
    /// The symbol in the template's object that represents the map, if templates have one.
    pub fn symbol(self) -> Option<&'static str> {
        match self {
            Self::SymbolFormat => Some(tracer_abi::SYMBOL_FORMAT),
            Self::EntryArgs => Some(tracer_abi::ENTRY_ARGS),
            Self::Switches => Some(tracer_abi::SWITCHES),
            _ => None,
        }
    }
}

impl fmt::Display for MapRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::SymbolFormat => "symbol_format",
            Self::EntryArgs => "entry_args",
            Self::Prefault => "prefault",
            Self::HistTable => "hist_table",
            Self::HistDrops => "hist_drops",
            Self::HistScratch => "hist_scratch",
            Self::HistSnapshot => "hist_snapshot",
            Self::HistOwner(number) => return write!(f, "hist_owner_{number}"),
            Self::Controls => "controls",
            Self::Switches => "switches",
            Self::Pids => "pids",
            Self::RelayArea => "relay_area",
            Self::RelayScratch => "relay_scratch",
            Self::Stage => "stage",
            Self::Programs => "programs",
            Self::Hits => "hits",
            Self::Claims => "claims",
            Self::Gates => "gates",
            Self::Measured => "measured",
            Self::Emission => "emission",
        };
        f.write_str(name)
    }
}

/// Replaces the references of these instructions by descriptors.
///
/// # Errors
/// The first reference that `descriptor` has no map for.
pub fn bind(insns: &mut [Insn], descriptor: impl Fn(MapRef) -> Option<i32>) -> Result<(), MapRef> {
    for insn in insns {
        if let Some(map) = insn.map {
            insn.imm = descriptor(map).ok_or(map)?;
            insn.map = None;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::asm::{Assembler, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, Reg};

    #[test]
    fn references_become_descriptors_and_unknown_ones_are_errors() {
        let mut asm = Assembler::new();
        asm.map(Reg::R1, MapRef::HistTable);
        asm.map_value(Reg::R2, MapRef::HistOwner(3));
        asm.exit();
        let mut insns = asm.finish("f").insns;
        assert_eq!(
            bind(&mut insns, |map| (map == MapRef::HistTable).then_some(7)),
            Err(MapRef::HistOwner(3))
        );
        assert_eq!((insns[0].src, insns[0].imm, insns[0].map), (PSEUDO_MAP_FD, 7, None));
        bind(&mut insns, |_| Some(9)).unwrap();
        assert_eq!((insns[0].imm, insns[2].src, insns[2].imm), (7, PSEUDO_MAP_VALUE, 9));
    }
}
