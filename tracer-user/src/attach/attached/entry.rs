//! Entries of program arrays, and gates: small dispatch programs that tail-call an entry. A gate stays attached. The
//! program at the entry is exchanged by one word, so every hit runs either the old program or the new one, exactly
//! once.
//!
//! A dispatch table (`dispatch_table.rs`) is an array for all events of a kind of hook. An event's own gate
//! ([`OwnGate`]) has an array with a single entry, for programs that cannot share an array: an array takes programs
//! of one type and, at functions, of one function.

use std::{os::fd::AsFd, sync::Arc};

use super::gate_pair::SecondGate;
use crate::{
    attach::{Cause, maps, program::load},
    code::asm::{Alu, Assembler, Atomic, Cond, Function, Helper, MapRef, Reg, Width},
    sys::bpf::{
        map::{Map, MapKind},
        prog::{Prog, ProgKind, Purpose},
    },
};

/// How a gate finds the entry that it calls.
#[derive(Clone, Copy)]
pub(crate) enum EntrySource {
    /// The lower half of its attach cookie.
    Cookie,
    /// The lower half of its attach cookie at kprobe.multi. An address that the link does not know has the cookie 0,
    /// for which no program runs.
    CookieOfMany,
    /// The lower half of its attach cookie at fexit.multi, where the program at the entry may read which function ended.
    CookieOfExits,
    /// Constant.
    Fixed(u32),
}

pub(crate) fn program_array(entries: u32, name: &'static str) -> Result<Map, Cause> {
    maps::create(&maps::spec(MapKind::ProgArray, 4, entries, name))
}

/// An entry of an array of programs, which one attached event owns.
#[derive(Debug)]
pub(crate) struct Entry {
    array: Arc<Map>,
    index: u32,
    /// Whether this event has a program there.
    is_set: bool,
}

impl Entry {
    pub(crate) fn new(array: Arc<Map>, index: u32) -> Self {
        Self { array, index, is_set: false }
    }

    /// Sets the program, in place of the old one.
    pub(crate) fn set(&mut self, program: &Prog) -> Result<(), Cause> {
        self.array
            .set_fd(self.index, program.as_fd())
            .map_err(|errno| Cause::System("entry in the table of programs", errno))?;
        self.is_set = true;
        Ok(())
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Replaces the program, if one is set, by a program that does nothing. Where a gate jumps to the entry directly,
    /// this is as quick as any other exchange. [`Entry::clear`] takes some 10 ms there, because the kernel waits for
    /// all CPUs before it removes the jump.
    pub(crate) fn replace_by(&mut self, empty: &Prog) {
        if self.is_set && self.set(empty).is_err() {
            self.clear();
        }
    }

    /// Removes the program: no program runs at hits from here on. Does nothing if none is set, as another event may
    /// own the entry by then.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_set) {
            // Clearing a set entry does not fail.
            let _ = self.array.delete(&self.index.to_ne_bytes());
        }
    }
}

/// The code of a gate. `before` emits what runs before the call and leaves the context in R1.
fn code(source: EntrySource, before: impl FnOnce(&mut Assembler)) -> Function {
    let mut asm = Assembler::new();
    let end = asm.label();
    before(&mut asm);
    match source {
        EntrySource::Cookie | EntrySource::CookieOfMany | EntrySource::CookieOfExits => {
            asm.mov(Reg::R6, Reg::R1);
            if matches!(source, EntrySource::CookieOfExits) {
                // The kernel stores the address only for a linked program that reads it.
                asm.call(Helper::GetFuncIp);
                asm.mov(Reg::R1, Reg::R6);
            }
            asm.call(Helper::GetAttachCookie);
            asm.mov(Reg::R1, Reg::R6);
            if matches!(source, EntrySource::CookieOfMany) {
                asm.jump_if(Cond::Eq, Reg::R0, 0, end);
            }
            asm.alu32(Alu::Mov, Reg::R3, Reg::R0);
        }
        EntrySource::Fixed(index) => asm.alu32(Alu::Mov, Reg::R3, index.cast_signed()),
    }
    asm.map(Reg::R2, MapRef::Programs);
    asm.call(Helper::TailCall);
    asm.bind(end);
    asm.mov(Reg::R0, 0);
    asm.exit();
    asm.finish("gate")
}

/// Loads a gate for an array; `hits` is the counter of a gate whose code counts hits.
pub(crate) fn load_gate(
    kind: ProgKind,
    purpose: Purpose<'_>,
    array: &Map,
    source: EntrySource,
    hits: Option<&Map>,
    name: &'static str,
) -> Result<Prog, Cause> {
    let function = code(source, |asm| {
        if hits.is_some() {
            count(asm);
        }
    });
    let mut functions = [function];
    load::bind(&mut functions, |map| match map {
        MapRef::Programs => Some(array.as_fd()),
        MapRef::Hits => hits.map(AsFd::as_fd),
        _ => None,
    })?;
    let [function] = functions;
    load::load(kind, purpose, &function.insns, name)
}

fn count(asm: &mut Assembler) {
    let uncounted = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    asm.store(Width::W, Reg::R10, -4, 0);
    asm.map(Reg::R1, MapRef::Hits);
    asm.address(Reg::R2, Reg::R10, -4);
    asm.call(Helper::MapLookupElem);
    asm.jump_if(Cond::Eq, Reg::R0, 0, uncounted);
    asm.mov(Reg::R1, 1);
    asm.atomic(Width::D, Atomic::AddOnly, Reg::R0, 0, Reg::R1);
    asm.bind(uncounted);
    asm.mov(Reg::R1, Reg::R6);
}

/// A gate that one event owns.
#[derive(Debug)]
pub(crate) struct OwnGate {
    program: Arc<Prog>,
    second: Option<SecondGate>,
    /// Missed hits from before both gates were linked.
    missed_before: u64,
    /// Hits by CPU, including threads that are not traced, as in the kernel's probe profiles.
    hits: Option<Map>,
}

impl OwnGate {
    /// Loads a gate in front of a single entry.
    pub(crate) fn new(
        kind: ProgKind,
        purpose: Purpose<'_>,
        counts: bool,
        name: &'static str,
    ) -> Result<(Self, Entry), Cause> {
        let array = Arc::new(program_array(1, name)?);
        let hits = counts.then(|| maps::per_cpu(8, "tracer_hits")).transpose()?;
        let program = load_gate(kind, purpose, &array, EntrySource::Fixed(0), hits.as_ref(), name)?;
        Ok((Self { program: Arc::new(program), second: None, missed_before: 0, hits }, Entry::new(array, 0)))
    }

    /// A loaded gate in front of an entry of a larger array.
    pub(crate) fn in_table(program: Prog, second: Option<SecondGate>) -> Self {
        Self { program: Arc::new(program), second, missed_before: 0, hits: None }
    }

    /// The program to attach to the hook.
    pub(crate) fn program(&self) -> &Arc<Prog> {
        &self.program
    }

    /// The second gate, which is attached after the first.
    pub(crate) fn second(&self) -> Option<&SecondGate> {
        self.second.as_ref()
    }

    /// Hits of the hook, if the gate counts them.
    pub(crate) fn hits(&self) -> u64 {
        let counts = self.hits.as_ref().and_then(|hits| hits.lookup_per_cpu(&[0; 4]).ok().flatten());
        let counts = counts.unwrap_or_default();
        let each = counts.iter().filter_map(|count| count.first_chunk()).copied().map(u64::from_ne_bytes);
        each.fold(0, u64::wrapping_add)
    }

    /// Counts missed hits from here on.
    pub(crate) fn begin(&mut self) {
        self.missed_before = self.all_missed();
    }

    /// Hits for which the kernel did not run the gate, nor the second one. A hit that is between its gates may count for
    /// a moment.
    pub(crate) fn missed(&self) -> u64 {
        self.all_missed().saturating_sub(self.missed_before)
    }

    fn all_missed(&self) -> u64 {
        // The second gate's hits are read first, so that hits meanwhile do not hide missed ones.
        let (left, taken) = self.second.as_ref().map_or((0, 0), SecondGate::left_and_taken);
        (missed(&self.program) + left).saturating_sub(taken)
    }
}

/// Hits for which the kernel did not run a program.
pub(crate) fn missed(program: &Prog) -> u64 {
    program.info().map_or(0, |info| info.misses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::listing;

    fn listed(source: EntrySource) -> String {
        listing::program(&code(source, |_| ()).insns)
    }

    #[test]
    fn a_gate_jumps_to_the_program_of_its_entry() {
        insta::assert_snapshot!(listed(EntrySource::Fixed(7)), @r"
        0  w3 = 7
        1  r2 = map programs
        3  call bpf_tail_call
        4  r0 = 0
        5  exit
        ");
        insta::assert_snapshot!(listed(EntrySource::CookieOfExits), @r"
         0  r6 = r1
         1  call bpf_get_func_ip
         2  r1 = r6
         3  call bpf_get_attach_cookie
         4  r1 = r6
         5  w3 = w0
         6  r2 = map programs
         8  call bpf_tail_call
         9  r0 = 0
        10  exit
        ");
        insta::assert_snapshot!(listed(EntrySource::CookieOfMany), @r"
         0  r6 = r1
         1  call bpf_get_attach_cookie
         2  r1 = r6
         3  if r0 == 0 goto L1
         4  w3 = w0
         5  r2 = map programs
         7  call bpf_tail_call
        L1:
         8  r0 = 0
         9  exit
        ");
    }
}
