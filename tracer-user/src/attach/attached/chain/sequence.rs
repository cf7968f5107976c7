//! Sequences: generated programs that run the programs at several places of an array, one after the other.

use std::os::fd::BorrowedFd;

use crate::{
    attach::{Cause, program::load},
    code::{
        asm::{Alu, Assembler, Function, Helper, Insn, MapRef, Reg},
        join,
    },
    sys::bpf::prog::{Prog, ProgKind, Purpose},
};

/// Name of a sequence.
const NAME: &str = "tracer_sequence";

/// Loads the program that runs the programs at these places of an array, in this order.
pub(super) fn load(kind: ProgKind, places: &[u32], array: BorrowedFd<'_>) -> Result<Prog, Cause> {
    load::load(kind, Purpose::Any, &code(places, array)?, NAME)
}

fn code(places: &[u32], array: BorrowedFd<'_>) -> Result<Vec<Insn>, Cause> {
    let tail_call = |asm: &mut Assembler, place: u32| {
        asm.map(Reg::R2, MapRef::Programs);
        asm.alu32(Alu::Mov, Reg::R3, place.cast_signed());
        asm.call(Helper::TailCall);
        asm.mov(Reg::R0, 0);
        asm.exit();
    };
    let Some((last, others)) = places.split_last() else { return Ok(Vec::new()) };
    let name = |place: u32| format!("place {place}");
    let mut asm = Assembler::new();
    asm.mov(Reg::R6, Reg::R1);
    for place in others {
        asm.call_function(name(*place));
        asm.mov(Reg::R1, Reg::R6);
    }
    tail_call(&mut asm, *last);
    let mut functions: Vec<Function> = vec![asm.finish("sequence")];
    for place in others {
        let mut asm = Assembler::new();
        tail_call(&mut asm, *place);
        functions.push(asm.finish(name(*place)));
    }
    load::bind(&mut functions, |map| (map == MapRef::Programs).then_some(array))?;
    Ok(join::join(&functions, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::listing;

    #[test]
    fn a_sequence_calls_each_place_and_ends_with_the_last() {
        let insns = code(&[7, 9], rustix::stdio::stdin()).unwrap();
        insta::assert_snapshot!(listing::program(&insns), @r"
         0  r6 = r1
         1  call function 1
         2  r1 = r6
         3  r2 = map 0
         5  w3 = 9
         6  call bpf_tail_call
         7  r0 = 0
         8  exit
           ; function 1
         9  r2 = map 0
        11  w3 = 7
        12  call bpf_tail_call
        13  r0 = 0
        14  exit
        ");
    }
}
