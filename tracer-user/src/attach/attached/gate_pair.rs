//! Two gates at one raw tracepoint, for kernels that preempt programs.
//!
//! The kernel skips a program for a thread that preempts it, until the preempted thread continues. The programs of
//! events disable preemption, but a gate cannot, because it ends with a tail call. So each hit runs two gates in front
//! of the same entry. The first one claims the hit and calls the entry. The second one calls the entry only if the
//! first one did not.
//!
//! Both get the same address of the tracepoint's arguments, which the kernel stores on the thread's stack
//! (`BPF_TRACE_DEFN_x`, kernel/trace/bpf_trace.c). It identifies the hit. A claim is this address in a table that many
//! pairs share. Its place is the hash of the pair and of the address's page, so a pair usually has a place for each
//! stack.
//!
//! - The first gate takes an empty place. It also replaces a claim of the same page, of a hit for which the kernel
//!   skipped the second gate. That hit is over if its address is not above the new one. If it is above, it is over if the
//!   new hit is in a thread with preemption enabled: between two gates only interrupts and the scheduler have hits.
//! - If the first gate gets no place, it leaves its hit to the second one. In an interrupt it takes the hit without a
//!   claim, because the second one takes none there.
//! - The second gate empties the place if it has the hit's address, and then ends. Else it takes the hit.
//! - In an interrupt the second gate takes no hit, because the interrupt may have come in a program that the first one
//!   called, whose memory the same program would use. For the same reason the first one takes no hit in an interrupt
//!   while the second one runs on that CPU (`busy`).
//!
//! So a hit is missed if the kernel skips both gates, or the first one while an old claim has the hit's address. In an
//! interrupt it is missed if the kernel skips the first one, or during `busy`. A claim whose second gate was skipped stays
//! until the pair has another hit in that part of the stack, or for ever. At hits whose place is the same it costs a
//! little time, and in threads they have one gate. So each [`PAIRS_MAX`] pairs have a new table. The missed hits are those
//! for which the kernel skipped the first gate, and those that it left, without those that the second gate took.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, PoisonError},
};

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

/// Number of places, as a power of two. Claims of threads that ended stay, so there are more than threads that are
/// between two gates at the same time.
const PLACES_BITS: u32 = 16;
/// Bytes of the places.
const PLACES_BYTES: usize = 8 << PLACES_BITS;
/// Number of pairs that share a table.
const PAIRS_MAX: u32 = 1024;
/// Largest number of entries, as a power of two. Two pairs never have the same place for the same page, because the first
/// gate may replace a claim of that page.
const PAIRS_BITS: u32 = 13;
/// A page of a stack, as a power of two: all of it belongs to one stack.
const PAGE_BITS: u32 = 12;
/// Bytes of a page.
const PAGE: i32 = 1 << PAGE_BITS;
/// Offset of the hits that the second gate took. They are read before those that it may take, so that a hit meanwhile does
/// not hide a missed one.
const TAKEN: usize = 0;
/// Offset of the hits that the first gate left.
const LEFT: usize = 8;
/// Offset of the number of CPUs on which the second gate runs programs.
const BUSY: usize = 16;
/// Offset of the CPUs' rows.
const ROWS: usize = 24;
/// The bits of the count that say how often preemption was disabled.
const PREEMPTION: u32 = 0xff;
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
    /// The memory of a pair in its first state.
    fn memory(&self) -> Vec<u8> {
        let mut memory = vec![0; ROWS];
        for cpu in 0..self.cpus as usize {
            let address = self.addresses.get(cpu).copied().unwrap_or_default();
            memory.extend(address.to_ne_bytes());
            memory.extend([0; 8]);
        }
        memory
    }

    /// R8 = address of the CPU's row, without [`ROWS`]. Jumps to `unknown` if there is no such row.
    fn row(&self, asm: &mut Assembler, unknown: Label) {
        asm.call(Helper::GetSmpProcessorId);
        asm.jump_if(Cond::Ge, Reg::R0, self.cpus.cast_signed(), unknown);
        asm.alu(Alu::Lsh, Reg::R0, ROW_BITS);
        asm.mov(Reg::R8, Reg::R9);
        asm.alu(Alu::Add, Reg::R8, Reg::R0);
    }

    /// Jumps to `set` in an interrupt or where other bits of the count are set, and where it is unknown. R8 is that of
    /// [`Self::row`].
    fn check(&self, asm: &mut Assembler, other: u32, set: Label) {
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
        asm.jump_if(Cond::Ne, Reg::R0, 0, set);
        asm.load(Width::W, Reg::R1, Reg::R10, -4);
        asm.alu(Alu::And, Reg::R1, (self.mask | other).cast_signed());
        asm.jump_if(Cond::Ne, Reg::R1, 0, set);
    }
}

/// What pairs of gates share. Clones share it too.
#[derive(Clone, Debug)]
pub(crate) struct GatePairs {
    counts: CountPlace,
    newest: Arc<Mutex<NewestClaims>>,
}

/// The table of claims for the next pair.
#[derive(Debug, Default)]
struct NewestClaims {
    table: Option<Arc<Map>>,
    /// Number of pairs that have this table.
    pairs: u32,
}

impl NewestClaims {
    /// The table for another pair.
    fn take(&mut self) -> Result<Arc<Map>, Cause> {
        let table = match &self.table {
            Some(table) if self.pairs < PAIRS_MAX => Arc::clone(table),
            _ => {
                let table = Arc::new(maps::array(PLACES_BYTES, 1, "tracer_claims")?);
                *self = Self { table: Some(Arc::clone(&table)), pairs: 0 };
                table
            }
        };
        self.pairs += 1;
        Ok(table)
    }
}

/// The second gate of a raw tracepoint, and the memory of both.
#[derive(Debug)]
pub(crate) struct SecondGate {
    program: Prog,
    memory: Map,
}

impl SecondGate {
    /// The program to attach to the tracepoint, after the first gate.
    pub(crate) fn program(&self) -> &Prog {
        &self.program
    }

    /// Hits that the first gate left to this one, and hits that this one took.
    pub(crate) fn left_and_taken(&self) -> (u64, u64) {
        let value = self.memory.lookup(&[0; 4]).ok().flatten().unwrap_or_default();
        let at = |offset: usize| {
            let bytes = value.get(offset..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        (at(LEFT), at(TAKEN))
    }
}

impl GatePairs {
    /// No pair yet.
    pub(crate) fn new(counts: CountPlace) -> Self {
        Self { counts, newest: Arc::default() }
    }

    /// Loads both gates in front of the entry at `index` of `array`.
    pub(crate) fn load(
        &self,
        array: &Map,
        index: u32,
        name: &'static str,
    ) -> Result<(Prog, SecondGate), Cause> {
        if index >> PAIRS_BITS != 0 {
            return Err(Cause::TooMany(1 << PAIRS_BITS));
        }
        let claims = self.newest.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let value = self.counts.memory();
        let memory = maps::array(value.len(), 1, "tracer_gates")?;
        memory.update(&[0; 4], &value).map_err(|errno| Cause::Map("tracer_gates", errno))?;
        let load = |functions: Vec<Function>| {
            let insns = bound(functions, [array.as_fd(), claims.as_fd(), memory.as_fd()])?;
            load::load(ProgKind::RawTracepoint, Purpose::Any, &insns, name)
        };
        let first = load(first(index, &self.counts))?;
        let program = load(second(index, &self.counts))?;
        Ok((first, SecondGate { program, memory }))
    }
}

fn bound(
    mut functions: Vec<Function>,
    [array, claims, memory]: [BorrowedFd<'_>; 3],
) -> Result<Vec<Insn>, Cause> {
    load::bind(&mut functions, |map| match map {
        MapRef::Programs => Some(array),
        MapRef::Claims => Some(claims),
        MapRef::Gates => Some(memory),
        _ => None,
    })?;
    Ok(join::join(&functions, &[]))
}

/// Begins a gate: R6 is the context, R9 the pair's memory, R7 the address of the hit's place.
fn begin(asm: &mut Assembler, index: u32) {
    asm.mov(Reg::R6, Reg::R1);
    asm.map_value(Reg::R9, MapRef::Gates);
    asm.map_value(Reg::R2, MapRef::Claims);
    // Fibonacci hashing of the page's number and the pair's. The pair's has the upper bits, which survive the shift.
    asm.alu32(Alu::Mov, Reg::R7, Reg::R6);
    asm.alu32(Alu::Rsh, Reg::R7, PAGE_BITS.cast_signed());
    asm.alu32(Alu::Add, Reg::R7, (index << (32 - PAIRS_BITS)).cast_signed());
    asm.alu32(Alu::Mul, Reg::R7, 0x9e37_79b1_u32.cast_signed());
    asm.alu32(Alu::Rsh, Reg::R7, (32 - PLACES_BITS).cast_signed());
    asm.alu(Alu::Lsh, Reg::R7, 3);
    asm.alu(Alu::Add, Reg::R7, Reg::R2);
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

/// Adds to a number in the pair's memory.
fn add(asm: &mut Assembler, offset: usize, number: i32) {
    asm.mov(Reg::R1, number);
    asm.atomic(Width::D, Atomic::AddOnly, Reg::R9, offset as i16, Reg::R1);
}

fn first(index: u32, place: &CountPlace) -> Vec<Function> {
    let mut asm = Assembler::new();
    let (claims, above, replaces) = (asm.label(), asm.label(), asm.label());
    let (occupied, takes, leaves) = (asm.label(), asm.label(), asm.label());
    begin(&mut asm, index);
    asm.load(Width::D, Reg::R1, Reg::R9, BUSY as i16);
    asm.jump_if(Cond::Eq, Reg::R1, 0, claims);
    place.row(&mut asm, leaves);
    asm.load(Width::D, Reg::R1, Reg::R8, (ROWS + CPU_BUSY) as i16);
    asm.jump_if(Cond::Eq, Reg::R1, 0, claims);
    place.check(&mut asm, 0, leaves);
    asm.bind(claims);
    asm.load(Width::D, Reg::R0, Reg::R7, 0);
    asm.jump_if(Cond::Eq, Reg::R0, 0, replaces);
    // R1 = offset of the hit's address in the page. Comparisons are all that the verifier allows of this address.
    asm.alu32(Alu::Mov, Reg::R1, Reg::R6);
    asm.alu(Alu::And, Reg::R1, PAGE - 1);
    asm.jump_if(Cond::Gt, Reg::R0, Reg::R6, above);
    asm.alu(Alu::Add, Reg::R1, Reg::R0);
    asm.jump_if(Cond::Lt, Reg::R1, Reg::R6, occupied);
    asm.jump(replaces);
    asm.bind(above);
    asm.mov(Reg::R2, Reg::R0);
    asm.alu(Alu::Sub, Reg::R2, PAGE);
    asm.alu(Alu::Add, Reg::R1, Reg::R2);
    asm.jump_if(Cond::Ge, Reg::R1, Reg::R6, occupied);
    asm.store(Width::D, Reg::R10, -16, Reg::R0);
    place.row(&mut asm, leaves);
    place.check(&mut asm, PREEMPTION, occupied);
    asm.load(Width::D, Reg::R0, Reg::R10, -16);
    asm.bind(replaces);
    asm.mov(Reg::R1, Reg::R0);
    asm.atomic(Width::D, Atomic::CompareExchange, Reg::R7, 0, Reg::R6);
    asm.jump_if(Cond::Eq, Reg::R0, Reg::R1, takes);
    asm.bind(occupied);
    place.row(&mut asm, leaves);
    place.check(&mut asm, 0, takes);
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
    begin(&mut asm, index);
    asm.load(Width::D, Reg::R1, Reg::R7, 0);
    asm.jump_if(Cond::Ne, Reg::R1, Reg::R6, takes);
    asm.store(Width::D, Reg::R7, 0, 0);
    asm.jump(leaves);
    asm.bind(takes);
    place.row(&mut asm, leaves);
    place.check(&mut asm, 0, leaves);
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
        listing::program(&bound(functions, [any; 3]).unwrap())
    }

    fn per_cpu() -> CountPlace {
        CountPlace { cpus: 2, addresses: vec![1, 2], offset: None, mask: 0x7f00_0100 }
    }

    #[test]
    fn the_memory_has_a_row_for_each_cpu() {
        let memory = CountPlace { cpus: 3, ..per_cpu() }.memory();
        assert_eq!(memory.len(), ROWS + (3 << ROW_BITS));
        let count = |cpu: usize| memory[ROWS + (cpu << ROW_BITS) + COUNT];
        assert_eq!([count(0), count(1), count(2)], [1, 2, 0]);
    }

    #[test]
    fn pairs_have_different_places_for_a_page() {
        let place = |page: u32, index: u32| {
            page.wrapping_add(index << (32 - PAIRS_BITS)).wrapping_mul(0x9e37_79b1) >> (32 - PLACES_BITS)
        };
        for page in [0, 0x0007_1234, 0x000f_ffff] {
            let mut places: Vec<u32> = (0..1 << PAIRS_BITS).map(|index| place(page, index)).collect();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), 1 << PAIRS_BITS);
        }
    }

    #[test]
    fn the_first_gate_takes_an_empty_place_or_an_old_claim() {
        insta::assert_snapshot!(listed(first(7, &per_cpu())), @r"
         0  r6 = r1
         1  r9 = map 0 + 0
         3  r2 = map 0 + 0
         5  w7 = w6
         6  w7 >>= 12
         7  w7 += 3670016
         8  w7 *= -1640531535
         9  w7 >>= 16
        10  r7 <<= 3
        11  r7 += r2
        12  r1 = *(u64 *)(r9 + 16)
        13  if r1 == 0 goto L1
        14  call bpf_get_smp_processor_id
        15  if r0 >= 2 goto L5
        16  r0 <<= 4
        17  r8 = r9
        18  r8 += r0
        19  r1 = *(u64 *)(r8 + 32)
        20  if r1 == 0 goto L1
        21  r3 = *(u64 *)(r8 + 24)
        22  *(u32 *)(r10 - 4) = -1
        23  r1 = r10
        24  r1 += -4
        25  r2 = 4
        26  call bpf_probe_read_kernel
        27  if r0 != 0 goto L5
        28  r1 = *(u32 *)(r10 - 4)
        29  r1 &= 2130706688
        30  if r1 != 0 goto L5
        L1:
        31  r0 = *(u64 *)(r7 + 0)
        32  if r0 == 0 goto L3
        33  w1 = w6
        34  r1 &= 4095
        35  if r0 > r6 goto L2
        36  r1 += r0
        37  if r1 < r6 goto L4
        38  goto L3
        L2:
        39  r2 = r0
        40  r2 -= 4096
        41  r1 += r2
        42  if r1 >= r6 goto L4
        43  *(u64 *)(r10 - 16) = r0
        44  call bpf_get_smp_processor_id
        45  if r0 >= 2 goto L5
        46  r0 <<= 4
        47  r8 = r9
        48  r8 += r0
        49  r3 = *(u64 *)(r8 + 24)
        50  *(u32 *)(r10 - 4) = -1
        51  r1 = r10
        52  r1 += -4
        53  r2 = 4
        54  call bpf_probe_read_kernel
        55  if r0 != 0 goto L4
        56  r1 = *(u32 *)(r10 - 4)
        57  r1 &= 2130706943
        58  if r1 != 0 goto L4
        59  r0 = *(u64 *)(r10 - 16)
        L3:
        60  r1 = r0
        61  r6 = atomic_compare_exchange(*(u64 *)(r7 + 0), r6)
        62  if r0 == r1 goto L6
        L4:
        63  call bpf_get_smp_processor_id
        64  if r0 >= 2 goto L5
        65  r0 <<= 4
        66  r8 = r9
        67  r8 += r0
        68  r3 = *(u64 *)(r8 + 24)
        69  *(u32 *)(r10 - 4) = -1
        70  r1 = r10
        71  r1 += -4
        72  r2 = 4
        73  call bpf_probe_read_kernel
        74  if r0 != 0 goto L6
        75  r1 = *(u32 *)(r10 - 4)
        76  r1 &= 2130706688
        77  if r1 != 0 goto L6
        L5:
        78  r1 = 1
        79  atomic_add(*(u64 *)(r9 + 8), r1)
        80  r0 = 0
        81  exit
        L6:
        82  r1 = r6
        83  r2 = map 0
        85  w3 = 7
        86  call bpf_tail_call
        87  r0 = 0
        88  exit
        ");
    }

    #[test]
    fn the_second_gate_takes_what_the_first_left() {
        insta::assert_snapshot!(listed(second(7, &per_cpu())), @r"
         0  r6 = r1
         1  r9 = map 0 + 0
         3  r2 = map 0 + 0
         5  w7 = w6
         6  w7 >>= 12
         7  w7 += 3670016
         8  w7 *= -1640531535
         9  w7 >>= 16
        10  r7 <<= 3
        11  r7 += r2
        12  r1 = *(u64 *)(r7 + 0)
        13  if r1 != r6 goto L1
        14  *(u64 *)(r7 + 0) = 0
        15  goto L2
        L1:
        16  call bpf_get_smp_processor_id
        17  if r0 >= 2 goto L2
        18  r0 <<= 4
        19  r8 = r9
        20  r8 += r0
        21  r3 = *(u64 *)(r8 + 24)
        22  *(u32 *)(r10 - 4) = -1
        23  r1 = r10
        24  r1 += -4
        25  r2 = 4
        26  call bpf_probe_read_kernel
        27  if r0 != 0 goto L2
        28  r1 = *(u32 *)(r10 - 4)
        29  r1 &= 2130706688
        30  if r1 != 0 goto L2
        31  r1 = 1
        32  atomic_add(*(u64 *)(r9 + 0), r1)
        33  r1 = 1
        34  atomic_add(*(u64 *)(r9 + 16), r1)
        35  *(u64 *)(r8 + 32) = 1
        36  r1 = r6
        37  call function 1
        38  *(u64 *)(r8 + 32) = 0
        39  r1 = -1
        40  atomic_add(*(u64 *)(r9 + 16), r1)
        L2:
        41  r0 = 0
        42  exit
           ; function 1
        43  r2 = map 0
        45  w3 = 7
        46  call bpf_tail_call
        47  r0 = 0
        48  exit
        ");
    }

    #[test]
    fn the_count_may_be_in_the_task() {
        let place = CountPlace { cpus: 2, addresses: Vec::new(), offset: Some(16), mask: 0x00ff_0100 };
        let mut asm = Assembler::new();
        let end_label = asm.label();
        place.check(&mut asm, 0, end_label);
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
