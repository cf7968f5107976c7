//! Tables of programs, and the small programs that tail-call into them. The attached program stays, and the program it
//! calls is exchanged by one word: every hit runs either the old one or the new one.
//!
//! `dispatch_table.rs` has one table for all events of a kind of hook. A [`SwapPoint`] is a table with a single slot,
//! for programs that cannot share one: a table takes programs of one type and, at functions, of one function.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::{
    attach::Cause,
    code::asm::{Alu, Assembler, Cond, Helper, Reg},
    sys::bpf::{
        map::{Map, MapKind, MapSpec},
        prog::{Prog, ProgKind, Purpose},
    },
};

/// How a gate finds its slot in the table.
#[derive(Clone, Copy)]
pub(in crate::attach) enum SlotSource {
    /// From its attach cookie.
    Cookie,
    /// From its attach cookie at kprobe.multi, where an address that the link does not know has the cookie 0.
    CookieOfMany,
    /// Constant.
    Fixed(u32),
}

/// Creates a table with this many slots.
pub(in crate::attach) fn table(places: u32, name: &'static str) -> Result<Map, Cause> {
    Map::create(&MapSpec {
        kind: MapKind::ProgArray,
        key_size: 4,
        value_size: 4,
        max_entries: places,
        flags: 0,
        inner: None,
        name,
    })
    .map_err(|errno| Cause::Map("program array", errno))
}

/// Sets the program of a slot.
pub(in crate::attach) fn put(table: &Map, slot: u32, program: &Prog) -> Result<(), Cause> {
    table
        .set_fd(slot, program.as_fd())
        .map_err(|errno| Cause::System("entry in the table of programs", errno))
}

/// Removes the program of a slot.
pub(in crate::attach) fn clear(table: &Map, slot: u32) {
    // The slot is set. If it were empty, there would be nothing to clear.
    let _ = table.delete(&slot.to_ne_bytes());
}

/// The code of a gate; `first` emits what runs before the jump and leaves the context in R1.
pub(in crate::attach) fn code(
    table: BorrowedFd<'_>,
    slot: SlotSource,
    first: impl FnOnce(&mut Assembler),
) -> Vec<u8> {
    let mut asm = Assembler::new();
    let end = asm.label();
    first(&mut asm);
    match slot {
        SlotSource::Cookie | SlotSource::CookieOfMany => {
            asm.mov(Reg::R6, Reg::R1);
            asm.call(Helper::GetAttachCookie);
            asm.mov(Reg::R1, Reg::R6);
            if matches!(slot, SlotSource::CookieOfMany) {
                asm.jump_if(Cond::Eq, Reg::R0, 0, end);
            }
            asm.alu32(Alu::Mov, Reg::R3, Reg::R0);
        }
        SlotSource::Fixed(slot) => asm.alu32(Alu::Mov, Reg::R3, slot.cast_signed()),
    }
    asm.map_fd(Reg::R2, table.as_raw_fd());
    asm.call(Helper::TailCall);
    asm.bind(end);
    asm.mov(Reg::R0, 0);
    asm.exit();
    asm.finish("gate").bytes()
}

/// A gate in front of one exchangeable program.
#[derive(Debug)]
pub(in crate::attach) struct SwapPoint {
    gate: Prog,
    table: Map,
}

impl SwapPoint {
    /// Creates a gate of the program's type and purpose. `first` emits code that runs before the jump and
    /// leaves the context in R1.
    pub(in crate::attach) fn to(
        program: &Prog,
        kind: ProgKind,
        purpose: Purpose<'_>,
        name: &'static str,
        first: impl FnOnce(&mut Assembler),
    ) -> Result<Self, Cause> {
        let table = table(1, name)?;
        put(&table, 0, program)?;
        let code = code(table.as_fd(), SlotSource::Fixed(0), first);
        let gate = Prog::load_for(kind, purpose, &code, name).map_err(|error| Cause::Load(kind, error))?;
        Ok(Self { gate, table })
    }

    /// The program to attach to the hook.
    pub(in crate::attach) fn gate(&self) -> &Prog {
        &self.gate
    }

    /// Exchanges the program.
    pub(in crate::attach) fn exchange(&self, program: &Prog) -> Result<(), Cause> {
        put(&self.table, 0, program)
    }

    /// Removes the program.
    pub(in crate::attach) fn clear(&self) {
        clear(&self.table, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::{asm::Insn, listing};

    fn listed(slot: SlotSource) -> String {
        let code = code(rustix::stdio::stdin(), slot, |_| ());
        let (insns, _) = code.as_chunks();
        listing::program(&insns.iter().map(|insn| Insn::decode(*insn)).collect::<Vec<_>>())
    }

    #[test]
    fn a_gate_jumps_to_the_program_of_its_slot() {
        insta::assert_snapshot!(listed(SlotSource::Fixed(7)), @r"
        0  w3 = 7
        1  r2 = map 0
        3  call bpf_tail_call
        4  r0 = 0
        5  exit
        ");
        insta::assert_snapshot!(listed(SlotSource::CookieOfMany), @r"
         0  r6 = r1
         1  call bpf_get_attach_cookie
         2  r1 = r6
         3  if r0 == 0 goto L1
         4  w3 = w0
         5  r2 = map 0
         7  call bpf_tail_call
        L1:
         8  r0 = 0
         9  exit
        ");
    }
}
