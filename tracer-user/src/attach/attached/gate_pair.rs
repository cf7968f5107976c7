//! Two gates at one raw tracepoint, for kernels that preempt programs.
//!
//! The kernel skips a program for a thread that preempts it, until the preempted thread continues. The programs of
//! events disable preemption, but a gate cannot, because it ends with a tail call. So each hit runs two gates in front
//! of the same entry. The first one claims the hit and calls the entry. The second one calls the entry only if the
//! first one did not.
//!
//! Both get the same address of the tracepoint's arguments, which the kernel stores on the thread's stack
//! (`BPF_TRACE_DEFN_x`, kernel/trace/bpf_trace.c). It identifies the hit. A claim is this address in the place of a
//! table at the address's hash.
//!
//! - The first gate takes an empty place. If another hit has the place, it leaves its hit to the second gate. It may
//!   find its own address, of an earlier hit for which the kernel skipped the second gate.
//! - The second gate empties the place if it has the hit's address, and then ends. Else it takes the hit.
//! - In an interrupt the second gate takes no hit, because the interrupt may have come in a program that the first one
//!   called, whose memory the same program would use. For the same reason the first one takes no hit in an interrupt
//!   while the second one runs on that CPU (`busy`).
//!
//! So a hit is missed if the kernel skips both gates. In an interrupt it is missed if the kernel skips the first one, or
//! if that one leaves it. A claim whose second gate was skipped stays until a hit has the same address. The missed hits
//! are those for which the kernel skipped the first gate, and those that it left, without those that the second gate took.

use std::os::fd::{AsFd, BorrowedFd};

use crate::{
    attach::{Cause, maps, program::load},
    code::{
        asm::{Alu, Assembler, Atomic, Cond, Function, Helper, Insn, Label, MapRef, Reg, Width},
        join,
    },
    sys::bpf::{
        map::Map,
        prog::{Prog, ProgKind, Purpose},
    },
};

/// Number of places, as a power of two. Only hits that are between their gates at the same time collide.
const PLACES_BITS: u32 = 9;
/// Bytes of the places.
const PLACES_BYTES: usize = 8 << PLACES_BITS;
/// Offset of the hits that the first gate left.
const LEFT: usize = PLACES_BYTES;
/// Offset of the hits that the second gate took.
const TAKEN: usize = LEFT + 8;
/// Offset of the number of CPUs on which the second gate runs programs.
const BUSY: usize = TAKEN + 8;
/// Offset of the CPUs' rows.
const ROWS: usize = BUSY + 8;
/// In a row: the address of the CPU's preempt count.
const COUNT: usize = 0;
/// In a row: whether the second gate runs programs on this CPU.
const CPU_BUSY: usize = 8;
/// Bytes of a row, as a power of two.
const ROW_BITS: i32 = 4;
/// The function of the second gate that calls the entry.
const CALL: &str = "entry";

/// Where programs read the preempt count, to recognise interrupts.
#[derive(Clone, Debug)]
pub(crate) struct CountPlace {
    /// The machine's number of CPU numbers.
    pub(crate) cpus: u32,
    /// Addresses by CPU number; empty if the count is in the task.
    pub(crate) addresses: Vec<u64>,
    /// Offset in the task.
    pub(crate) offset: Option<u32>,
    /// The bits that are set in an interrupt.
    pub(crate) mask: u32,
}

impl CountPlace {
    /// The table in its first state.
    fn table(&self) -> Vec<u8> {
        let mut table = vec![0; ROWS];
        for cpu in 0..self.cpus as usize {
            let address = self.addresses.get(cpu).copied().unwrap_or_default();
            table.extend(address.to_ne_bytes());
            table.extend([0; 8]);
        }
        table
    }

    /// R8 = address of the CPU's row, without [`ROWS`]. Jumps to `unknown` if the table has no such row.
    fn row(&self, asm: &mut Assembler, unknown: Label) {
        asm.call(Helper::GetSmpProcessorId);
        asm.jump_if(Cond::Ge, Reg::R0, self.cpus.cast_signed(), unknown);
        asm.alu(Alu::Lsh, Reg::R0, ROW_BITS);
        asm.mov(Reg::R8, Reg::R9);
        asm.alu(Alu::Add, Reg::R8, Reg::R0);
    }

    /// Jumps to `interrupt` in an interrupt, and where the count is unknown. R8 is that of [`Self::row`].
    fn check(&self, asm: &mut Assembler, interrupt: Label) {
        if let Some(offset) = self.offset {
            asm.call(Helper::GetCurrentTask);
            asm.address(Reg::R3, Reg::R0, offset.cast_signed());
        } else {
            asm.load(Width::D, Reg::R3, Reg::R8, (ROWS + COUNT) as i16);
        }
        asm.store(Width::W, Reg::R10, -4, -1);
        asm.address(Reg::R1, Reg::R10, -4);
        asm.mov(Reg::R2, 4);
        asm.call(Helper::ProbeReadKernel);
        asm.jump_if(Cond::Ne, Reg::R0, 0, interrupt);
        asm.load(Width::W, Reg::R1, Reg::R10, -4);
        asm.alu(Alu::And, Reg::R1, self.mask.cast_signed());
        asm.jump_if(Cond::Ne, Reg::R1, 0, interrupt);
    }
}

/// The second gate of a raw tracepoint, and the table of both.
#[derive(Debug)]
pub(crate) struct SecondGate {
    program: Prog,
    table: Map,
}

impl SecondGate {
    /// The program to attach to the tracepoint, after the first gate.
    pub(crate) fn program(&self) -> &Prog {
        &self.program
    }

    /// Hits that the first gate left to this one, and hits that this one took.
    pub(crate) fn left_and_taken(&self) -> (u64, u64) {
        let value = self.table.lookup(&[0; 4]).ok().flatten().unwrap_or_default();
        let at = |offset: usize| {
            let bytes = value.get(offset..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        (at(LEFT), at(TAKEN))
    }
}

/// Loads both gates in front of the entry at `index` of `array`.
pub(crate) fn load_pair(
    array: &Map,
    index: u32,
    place: &CountPlace,
    name: &'static str,
) -> Result<(Prog, SecondGate), Cause> {
    let value = place.table();
    let table = maps::array(value.len(), 1, "tracer_claims")?;
    table.update(&[0; 4], &value).map_err(|errno| Cause::Map("tracer_claims", errno))?;
    let load = |functions: Vec<Function>| {
        let insns = bound(functions, array.as_fd(), table.as_fd())?;
        load::load(ProgKind::RawTracepoint, Purpose::Any, &insns, name)
    };
    let first = load(first(index, place))?;
    let program = load(second(index, place))?;
    Ok((first, SecondGate { program, table }))
}

fn bound(
    mut functions: Vec<Function>,
    array: BorrowedFd<'_>,
    table: BorrowedFd<'_>,
) -> Result<Vec<Insn>, Cause> {
    load::bind(&mut functions, |map| match map {
        MapRef::Programs => Some(array),
        MapRef::Claims => Some(table),
        _ => None,
    })?;
    Ok(join::join(&functions, &[]))
}

/// Begins a gate: R6 is the context, R9 the table, R7 the address of the hit's place.
fn begin(asm: &mut Assembler) {
    asm.mov(Reg::R6, Reg::R1);
    asm.map_value(Reg::R9, MapRef::Claims);
    // Fibonacci hashing. The stacks of threads differ in bits above 12.
    asm.alu32(Alu::Mov, Reg::R7, Reg::R6);
    asm.alu32(Alu::Rsh, Reg::R7, 4);
    asm.alu32(Alu::Mul, Reg::R7, 0x9e37_79b1_u32.cast_signed());
    asm.alu32(Alu::Rsh, Reg::R7, (32 - PLACES_BITS).cast_signed());
    asm.alu(Alu::Lsh, Reg::R7, 3);
    asm.alu(Alu::Add, Reg::R7, Reg::R9);
}

/// Calls the entry, and ends.
fn call(asm: &mut Assembler, index: u32) {
    asm.map(Reg::R2, MapRef::Programs);
    asm.alu32(Alu::Mov, Reg::R3, index.cast_signed());
    asm.call(Helper::TailCall);
    end(asm);
}

fn end(asm: &mut Assembler) {
    asm.mov(Reg::R0, 0);
    asm.exit();
}

/// Adds to a number of the table.
fn add(asm: &mut Assembler, offset: usize, number: i32) {
    asm.mov(Reg::R1, number);
    asm.atomic(Width::D, Atomic::AddOnly, Reg::R9, offset as i16, Reg::R1);
}

fn first(index: u32, place: &CountPlace) -> Vec<Function> {
    let mut asm = Assembler::new();
    let (claims, takes, leaves) = (asm.label(), asm.label(), asm.label());
    begin(&mut asm);
    asm.load(Width::D, Reg::R1, Reg::R9, BUSY as i16);
    asm.jump_if(Cond::Eq, Reg::R1, 0, claims);
    place.row(&mut asm, leaves);
    asm.load(Width::D, Reg::R1, Reg::R8, (ROWS + CPU_BUSY) as i16);
    asm.jump_if(Cond::Eq, Reg::R1, 0, claims);
    place.check(&mut asm, leaves);
    asm.bind(claims);
    asm.mov(Reg::R0, 0);
    asm.atomic(Width::D, Atomic::CompareExchange, Reg::R7, 0, Reg::R6);
    asm.jump_if(Cond::Eq, Reg::R0, 0, takes);
    asm.jump_if(Cond::Eq, Reg::R0, Reg::R6, takes);
    asm.bind(leaves);
    add(&mut asm, LEFT, 1);
    end(&mut asm);
    asm.bind(takes);
    asm.mov(Reg::R1, Reg::R6);
    call(&mut asm, index);
    vec![asm.finish("first_gate")]
}

fn second(index: u32, place: &CountPlace) -> Vec<Function> {
    let mut asm = Assembler::new();
    let (takes, leaves) = (asm.label(), asm.label());
    begin(&mut asm);
    asm.load(Width::D, Reg::R1, Reg::R7, 0);
    asm.jump_if(Cond::Ne, Reg::R1, Reg::R6, takes);
    asm.store(Width::D, Reg::R7, 0, 0);
    asm.jump(leaves);
    asm.bind(takes);
    place.row(&mut asm, leaves);
    place.check(&mut asm, leaves);
    add(&mut asm, TAKEN, 1);
    add(&mut asm, BUSY, 1);
    asm.store(Width::D, Reg::R8, (ROWS + CPU_BUSY) as i16, 1);
    asm.mov(Reg::R1, Reg::R6);
    // A tail call in a function returns here.
    asm.call_function(CALL);
    asm.store(Width::D, Reg::R8, (ROWS + CPU_BUSY) as i16, 0);
    add(&mut asm, BUSY, -1);
    asm.bind(leaves);
    end(&mut asm);
    let gate = asm.finish("second_gate");
    let mut asm = Assembler::new();
    call(&mut asm, index);
    vec![gate, asm.finish(CALL)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::listing;

    fn listed(functions: Vec<Function>) -> String {
        let any = rustix::stdio::stdin();
        listing::program(&bound(functions, any, any).unwrap())
    }

    fn per_cpu() -> CountPlace {
        CountPlace { cpus: 2, addresses: vec![1, 2], offset: None, mask: 0x7f00_0100 }
    }

    #[test]
    fn the_table_has_a_row_for_each_cpu() {
        let table = CountPlace { cpus: 3, ..per_cpu() }.table();
        assert_eq!(table.len(), ROWS + (3 << ROW_BITS));
        let count = |cpu: usize| table[ROWS + (cpu << ROW_BITS) + COUNT];
        assert_eq!([count(0), count(1), count(2)], [1, 2, 0]);
    }

    #[test]
    fn the_first_gate_takes_an_empty_place() {
        insta::assert_snapshot!(listed(first(7, &per_cpu())), @r"
         0  r6 = r1
         1  r9 = map 0 + 0
         3  w7 = w6
         4  w7 >>= 4
         5  w7 *= -1640531535
         6  w7 >>= 23
         7  r7 <<= 3
         8  r7 += r9
         9  r1 = *(u64 *)(r9 + 4112)
        10  if r1 == 0 goto L1
        11  call bpf_get_smp_processor_id
        12  if r0 >= 2 goto L2
        13  r0 <<= 4
        14  r8 = r9
        15  r8 += r0
        16  r1 = *(u64 *)(r8 + 4128)
        17  if r1 == 0 goto L1
        18  r3 = *(u64 *)(r8 + 4120)
        19  *(u32 *)(r10 - 4) = -1
        20  r1 = r10
        21  r1 += -4
        22  r2 = 4
        23  call bpf_probe_read_kernel
        24  if r0 != 0 goto L2
        25  r1 = *(u32 *)(r10 - 4)
        26  r1 &= 2130706688
        27  if r1 != 0 goto L2
        L1:
        28  r0 = 0
        29  r6 = atomic_compare_exchange(*(u64 *)(r7 + 0), r6)
        30  if r0 == 0 goto L3
        31  if r0 == r6 goto L3
        L2:
        32  r1 = 1
        33  atomic_add(*(u64 *)(r9 + 4096), r1)
        34  r0 = 0
        35  exit
        L3:
        36  r1 = r6
        37  r2 = map 0
        39  w3 = 7
        40  call bpf_tail_call
        41  r0 = 0
        42  exit
        ");
    }

    #[test]
    fn the_second_gate_takes_what_the_first_left() {
        insta::assert_snapshot!(listed(second(7, &per_cpu())), @r"
         0  r6 = r1
         1  r9 = map 0 + 0
         3  w7 = w6
         4  w7 >>= 4
         5  w7 *= -1640531535
         6  w7 >>= 23
         7  r7 <<= 3
         8  r7 += r9
         9  r1 = *(u64 *)(r7 + 0)
        10  if r1 != r6 goto L1
        11  *(u64 *)(r7 + 0) = 0
        12  goto L2
        L1:
        13  call bpf_get_smp_processor_id
        14  if r0 >= 2 goto L2
        15  r0 <<= 4
        16  r8 = r9
        17  r8 += r0
        18  r3 = *(u64 *)(r8 + 4120)
        19  *(u32 *)(r10 - 4) = -1
        20  r1 = r10
        21  r1 += -4
        22  r2 = 4
        23  call bpf_probe_read_kernel
        24  if r0 != 0 goto L2
        25  r1 = *(u32 *)(r10 - 4)
        26  r1 &= 2130706688
        27  if r1 != 0 goto L2
        28  r1 = 1
        29  atomic_add(*(u64 *)(r9 + 4104), r1)
        30  r1 = 1
        31  atomic_add(*(u64 *)(r9 + 4112), r1)
        32  *(u64 *)(r8 + 4128) = 1
        33  r1 = r6
        34  call function 1
        35  *(u64 *)(r8 + 4128) = 0
        36  r1 = -1
        37  atomic_add(*(u64 *)(r9 + 4112), r1)
        L2:
        38  r0 = 0
        39  exit
           ; function 1
        40  r2 = map 0
        42  w3 = 7
        43  call bpf_tail_call
        44  r0 = 0
        45  exit
        ");
    }

    #[test]
    fn the_count_may_be_in_the_task() {
        let place = CountPlace { cpus: 2, addresses: Vec::new(), offset: Some(16), mask: 0x00ff_0100 };
        let mut asm = Assembler::new();
        let end_label = asm.label();
        place.check(&mut asm, end_label);
        asm.bind(end_label);
        end(&mut asm);
        insta::assert_snapshot!(listed(vec![asm.finish("check")]), @r"
         0  call bpf_get_current_task
         1  r3 = r0
         2  r3 += 16
         3  *(u32 *)(r10 - 4) = -1
         4  r1 = r10
         5  r1 += -4
         6  r2 = 4
         7  call bpf_probe_read_kernel
         8  if r0 != 0 goto L1
         9  r1 = *(u32 *)(r10 - 4)
        10  r1 &= 16711936
        11  if r1 != 0 goto L1
        L1:
        12  r0 = 0
        13  exit
        ");
    }
}
