//! Dynamic events on their hooks, each behind a gate of its own.
//!
//! As with trace events (`gate.rs`), what hangs on the hook is a tiny program that jumps to what stands in a table, so that a
//! filter is changed by exchanging one word. A table takes programs of one kind and, at functions, of one function; so
//! every probe has its own, of one place.

use std::os::fd::{AsFd, AsRawFd};

use super::{AttachError, Cause, Link, Request, Session, Via};
use crate::sys::{
    map::{Map, MapKind, MapSpec},
    prog::{Prog, ProgInfo},
};

/// `bpf_tail_call`, include/uapi/linux/bpf.h.
const TAIL_CALL: i32 = 12;

/// A dynamic event behind its gate. It hangs on its hook as long as this lives.
#[derive(Debug)]
pub struct Gated {
    /// Row of the counters.
    pub slot: u32,
    via: Via,
    // The link first: it goes before what it refers to.
    _link: Link,
    gate: Prog,
    table: Map,
    program: Prog,
    scratch: Option<Map>,
}

impl Gated {
    /// What the kernel knows of the program on the hook.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn info(&self) -> Result<ProgInfo, crate::sys::Errno> {
        self.gate.info()
    }

    /// The hook.
    pub fn via(&self) -> &Via {
        &self.via
    }
}

impl Session {
    /// Hangs a dynamic event on its hook.
    ///
    /// # Errors
    /// When a program does not pass the verifier or the hook is refused.
    pub fn hang_gated(&mut self, request: &Request<'_>) -> Result<Gated, AttachError> {
        let name = || request.format.full_name();
        let slot = self.take_slot()?;
        if request.extras.soft_slot.is_none() {
            self.shared.set_soft(slot, request.extras.begins_off);
        }
        let hung = self.gated(request, slot);
        if hung.is_err() {
            self.gate.give_back(slot);
        }
        hung.map_err(|cause| match cause {
            Failed::Attach(error) => error,
            Failed::Cause(cause) => AttachError::new(name(), cause),
        })
    }

    fn gated(&mut self, request: &Request<'_>, slot: u32) -> Result<Gated, Failed> {
        let (program, scratch) = self.program(request, slot, None)?;
        let table = Map::create(&MapSpec {
            kind: MapKind::ProgArray,
            key_size: 4,
            value_size: 4,
            max_entries: 1,
            flags: 0,
            inner: None,
            name: "tracer_probe",
        })
        .map_err(|errno| Cause::Map("program array", errno))?;
        let kind = request.via.kind();
        let gate =
            Prog::load_for(kind, request.via.purpose(), &code(table.as_fd().as_raw_fd()), "tracer_probe")
                .map_err(|error| Cause::Load(kind, error))?;
        put(&table, &program)?;
        let link = self.hook(&gate, request.via)?;
        Ok(Gated { slot, via: request.via.clone(), _link: link, gate, table, program, scratch })
    }

    /// Gives a dynamic event another program: every hit is seen by the old or by the new one, and once.
    ///
    /// # Errors
    /// When the program does not pass the verifier; the old one goes on then.
    pub fn change_gated(&mut self, gated: &mut Gated, request: &Request<'_>) -> Result<(), AttachError> {
        let (program, scratch) = self.program(request, gated.slot, gated.scratch.as_ref())?;
        put(&gated.table, &program).map_err(|cause| AttachError::new(request.format.full_name(), cause))?;
        gated.program = program;
        gated.scratch = scratch.or(gated.scratch.take());
        Ok(())
    }

    /// Takes a dynamic event off its hook.
    pub fn unhang_gated(&mut self, gated: Gated) {
        // At once; the rest waits for all CPUs.
        let _ = gated.table.delete(&0_u32.to_ne_bytes());
        self.gate.give_back(gated.slot);
        drop(gated);
    }
}

/// An error with or without the event's name.
enum Failed {
    Attach(AttachError),
    Cause(Cause),
}

impl From<AttachError> for Failed {
    fn from(error: AttachError) -> Self {
        Self::Attach(error)
    }
}

impl From<Cause> for Failed {
    fn from(cause: Cause) -> Self {
        Self::Cause(cause)
    }
}

pub(super) fn put(table: &Map, program: &Prog) -> Result<(), Cause> {
    table.set_fd(0, program.as_fd()).map_err(|errno| Cause::System("entry in the table of programs", errno))
}

/// The gate's instructions.
pub(super) fn code(table: i32) -> Vec<u8> {
    // op, destination and source register, offset, immediate (struct bpf_insn).
    let insn = |op: u8, dst: u8, src: u8, imm: i32| {
        let mut bytes = vec![op, dst | src << 4, 0, 0];
        bytes.extend(imm.to_le_bytes());
        bytes
    };
    [
        insn(0x18, 2, 1, table),     // r2 = the table
        insn(0, 0, 0, 0),            //   (second half)
        insn(0xb7, 3, 0, 0),         // r3 = 0
        insn(0x85, 0, 0, TAIL_CALL), // bpf_tail_call(r1, r2, r3)
        insn(0xb7, 0, 0, 0),         // r0 = 0
        insn(0x95, 0, 0, 0),         // exit
    ]
    .concat()
}
