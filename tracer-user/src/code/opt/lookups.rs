//! Replaces lookups in one-entry arrays by the address of the value.
//!
//! The value of an array with one entry has a fixed address, which an instruction can name (`BPF_PSEUDO_MAP_VALUE`,
//! 4.19). The kernel's inlined lookup takes nine instructions and a test. Templates look such maps up with key 0 only.

use super::{
    flow,
    program::{Edit, Item, Program},
};
use crate::code::asm::{Helper, Insn, LD_IMM64, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE, Reg};

/// Replaces the lookups in these maps.
pub(super) fn direct(program: &mut Program, singles: &[i32]) {
    let landings = program.landings();
    let fds: Vec<Option<i32>> =
        (0..program.items.len()).map(|at| looked_up(program, &landings, at)).collect();
    program.edit(|at, _| match fds[at] {
        Some(fd) if singles.contains(&fd) => {
            let first =
                Insn { op: LD_IMM64, dst: Reg::R0 as u8, src: PSEUDO_MAP_VALUE, imm: fd, ..Insn::default() };
            Edit::Replace(vec![Item { insn: first, second: Some(Insn::default()), to: None }])
        }
        _ => Edit::Keep,
    });
}

/// The descriptor of the map, if the item is a lookup.
fn looked_up(program: &Program, landings: &[bool], at: usize) -> Option<i32> {
    if program.items[at].insn != Insn::call(Helper::MapLookupElem) {
        return None;
    }
    let map = program.items[flow::definition(program, landings, at, Reg::R1 as u8)?].insn;
    (map.op == LD_IMM64 && map.src == PSEUDO_MAP_FD).then_some(map.imm)
}
