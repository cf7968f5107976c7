//! System call dispatch: one program on raw `sys_enter` or `sys_exit` tail-calls the program of the call's number.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tracer_abi::{CALL_NUMBERS, SYSCALLS};

use crate::{
    attach::{Cause, program::object},
    kernel::Cast,
    sys::bpf::{
        map::{Map, MapKind, MapSpec},
        prog::{Prog, ProgKind},
    },
};

/// An attached dispatcher.
#[derive(Debug)]
pub(in crate::attach) struct Dispatcher {
    table: Map,
    _program: Prog,
    _link: OwnedFd,
}

impl Dispatcher {
    /// Loads and attaches the dispatcher for entries or exits. The call's number is at this byte offset in
    /// `struct pt_regs`; `cast` as in [`Context`](crate::attach::Context).
    pub(in crate::attach) fn new(enter: bool, number_offset: u32, cast: Option<Cast>) -> Result<Self, Cause> {
        let table = Map::create(&MapSpec {
            kind: MapKind::ProgArray,
            key_size: 4,
            value_size: 4,
            max_entries: CALL_NUMBERS,
            flags: 0,
            inner: None,
            name: "tracer_syscalls",
        })
        .map_err(|errno| Cause::Map("program array", errno))?;
        let name = if enter { "sys_enter" } else { "sys_exit" };
        let offset = number_offset.to_ne_bytes();
        let image = object::plain(name, &[("NUMBER_OFFSET", &offset)], cast, |map| {
            (map == SYSCALLS).then(|| table.as_fd())
        })?;
        let program = Prog::load(ProgKind::RawTracepoint, &image.bytes(), name)
            .map_err(|error| Cause::Load(ProgKind::RawTracepoint, error))?;
        let link =
            program.attach_raw_tracepoint(name).map_err(|errno| Cause::Hook("raw tracepoint", errno))?;
        Ok(Self { table, _program: program, _link: link })
    }

    /// Sets the program of a number.
    pub(in crate::attach) fn set(&self, number: u32, program: BorrowedFd<'_>) -> Result<(), Cause> {
        self.table.set_fd(number, program).map_err(|errno| Cause::System("entry in the syscall table", errno))
    }

    /// Removes the program of a number.
    pub(in crate::attach) fn clear(&self, number: u32) -> Result<(), Cause> {
        self.table
            .delete(&number.to_ne_bytes())
            .map(drop)
            .map_err(|errno| Cause::System("entry in the syscall table", errno))
    }
}
