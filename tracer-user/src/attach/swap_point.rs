//! Tables of programs, and the small programs that tail-call into them. The attached program stays, and the program it
//! calls is exchanged by one word: every hit runs either the old one or the new one.
//!
//! `dispatch_table.rs` has one table for all events of a kind of hook. A [`SwapPoint`] is a table with a single slot,
//! for programs that cannot share one: a table takes programs of one type and, at functions, of one function.

use std::os::fd::{AsFd, AsRawFd};

use super::Cause;
use crate::sys::{
    map::{Map, MapKind, MapSpec},
    prog::{Prog, ProgKind, Purpose},
};

/// Helpers: `bpf_tail_call` and `bpf_get_attach_cookie`, include/uapi/linux/bpf.h.
const TAIL_CALL: i32 = 12;
const ATTACH_COOKIE: i32 = 174;

/// How a gate finds its slot in the table.
#[derive(Clone, Copy)]
pub(super) enum Slot {
    /// From its attach cookie.
    Cookie,
    /// From its attach cookie at kprobe.multi, where an address that the link does not know has the cookie 0.
    CookieOfMany,
    /// Constant.
    Fixed(u32),
}

/// Creates a table with this many slots.
pub(super) fn table(places: u32, name: &'static str) -> Result<Map, Cause> {
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
pub(super) fn put(table: &Map, slot: u32, program: &Prog) -> Result<(), Cause> {
    table
        .set_fd(slot, program.as_fd())
        .map_err(|errno| Cause::System("entry in the table of programs", errno))
}

/// Removes the program of a slot.
pub(super) fn clear(table: &Map, slot: u32) {
    // The slot is set. If it were empty, there would be nothing to clear.
    let _ = table.delete(&slot.to_ne_bytes());
}

/// Encodes an instruction: opcode, destination and source register, offset, immediate (`struct bpf_insn`).
pub(super) fn insn(op: u8, dst: u8, src: u8, off: i16, imm: i32) -> Vec<u8> {
    let mut bytes = vec![op, dst | src << 4];
    bytes.extend(off.to_le_bytes());
    bytes.extend(imm.to_le_bytes());
    bytes
}

/// The instructions of a gate, with the context in R1.
pub(super) fn code(table: &Map, slot: Slot) -> Vec<u8> {
    let mut code = match slot {
        Slot::Cookie => vec![
            insn(0xbf, 6, 1, 0, 0),             // r6 = r1
            insn(0x85, 0, 0, 0, ATTACH_COOKIE), // r0 = bpf_get_attach_cookie(r1)
            insn(0xbf, 1, 6, 0, 0),             // r1 = r6
            insn(0xbc, 3, 0, 0, 0),             // w3 = w0
        ],
        Slot::CookieOfMany => vec![
            insn(0xbf, 6, 1, 0, 0),             // r6 = r1
            insn(0x85, 0, 0, 0, ATTACH_COOKIE), // r0 = bpf_get_attach_cookie(r1)
            insn(0xbf, 1, 6, 0, 0),             // r1 = r6
            insn(0x15, 0, 0, 4, 0),             // if r0 == 0 skip to the end
            insn(0xbc, 3, 0, 0, 0),             // w3 = w0
        ],
        Slot::Fixed(slot) => vec![insn(0xb4, 3, 0, 0, slot.cast_signed())], // w3 = slot
    };
    code.extend([
        insn(0x18, 2, 1, 0, table.as_fd().as_raw_fd()), // r2 = the table
        insn(0, 0, 0, 0, 0),                            //   (second half)
        insn(0x85, 0, 0, 0, TAIL_CALL),                 // bpf_tail_call(r1, r2, r3)
        insn(0xb7, 0, 0, 0, 0),                         // r0 = 0
        insn(0x95, 0, 0, 0, 0),                         // exit
    ]);
    code.concat()
}

/// A gate in front of one exchangeable program.
#[derive(Debug)]
pub(super) struct SwapPoint {
    gate: Prog,
    table: Map,
}

impl SwapPoint {
    /// Creates a gate of the program's type and purpose. `first` is code that runs before the jump and leaves the
    /// context in R1.
    pub(super) fn to(
        program: &Prog,
        kind: ProgKind,
        purpose: Purpose<'_>,
        name: &'static str,
        first: &[u8],
    ) -> Result<Self, Cause> {
        let table = table(1, name)?;
        put(&table, 0, program)?;
        let code = [first, &code(&table, Slot::Fixed(0))].concat();
        let gate = Prog::load_for(kind, purpose, &code, name).map_err(|error| Cause::Load(kind, error))?;
        Ok(Self { gate, table })
    }

    /// The program to attach to the hook.
    pub(super) fn gate(&self) -> &Prog {
        &self.gate
    }

    /// Exchanges the program.
    pub(super) fn exchange(&self, program: &Prog) -> Result<(), Cause> {
        put(&self.table, 0, program)
    }

    /// Removes the program.
    pub(super) fn clear(&self) {
        clear(&self.table, 0);
    }
}
