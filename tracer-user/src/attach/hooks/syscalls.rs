//! System call dispatch: one program on raw `sys_enter` or `sys_exit` tail-calls the program at the call's number in an array.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use tracer_abi::{CALL_NUMBERS, SYSCALLS};

use crate::{
    attach::{
        Cause,
        attached::entry::{Entry, program_array},
        program::object,
    },
    kernel::{Cast, syscalls::Registers},
    sys::bpf::{
        map::Map,
        prog::{Prog, ProgKind},
    },
};

/// An attached dispatcher.
#[derive(Debug)]
pub(in crate::attach) struct Dispatcher {
    array: Arc<Map>,
    _program: Prog,
    _link: OwnedFd,
}

impl Dispatcher {
    /// Loads and attaches the dispatcher for entries or exits. The call's number is at this byte offset in
    /// `struct pt_regs`; `cast` as in [`Context`](crate::attach::Context).
    pub(in crate::attach) fn new(enter: bool, number_offset: u32, cast: Option<Cast>) -> Result<Self, Cause> {
        let array = program_array(CALL_NUMBERS, "tracer_syscalls")?;
        let name = if enter { "sys_enter" } else { "sys_exit" };
        let offset = number_offset.to_ne_bytes();
        let image = object::plain(name, &[("NUMBER_OFFSET", &offset)], cast, |map| {
            (map == SYSCALLS).then(|| array.as_fd())
        })?;
        let program = Prog::load(ProgKind::RawTracepoint, &image.bytes(), name)
            .map_err(|error| Cause::Load(ProgKind::RawTracepoint, error))?;
        let link =
            program.attach_raw_tracepoint(name).map_err(|errno| Cause::Hook("raw tracepoint", errno))?;
        Ok(Self { array: Arc::new(array), _program: program, _link: link })
    }

    /// The entry of a number.
    pub(in crate::attach) fn entry(&self, number: u32) -> Entry {
        Entry::new(Arc::clone(&self.array), number)
    }
}

/// The dispatchers of a session, each attached on first use.
#[derive(Debug)]
pub(in crate::attach) struct Dispatchers {
    registers: Option<Registers>,
    cast: Option<Cast>,
    enter: Option<Dispatcher>,
    exit: Option<Dispatcher>,
}

impl Dispatchers {
    /// No dispatcher yet. `registers` and `cast` as in [`Context`](crate::attach::Context).
    pub(in crate::attach) fn new(registers: Option<Registers>, cast: Option<Cast>) -> Self {
        Self { registers, cast, enter: None, exit: None }
    }

    /// The entry of the system call with this number, at its entry or exit.
    pub(in crate::attach) fn entry(&mut self, enter: bool, number: u32) -> Result<Entry, Cause> {
        let side = if enter { &mut self.enter } else { &mut self.exit };
        if let Some(dispatcher) = side {
            return Ok(dispatcher.entry(number));
        }
        let registers = self.registers.ok_or(Cause::NoRegisters)?;
        Ok(side.insert(Dispatcher::new(enter, registers.number, self.cast)?).entry(number))
    }
}
