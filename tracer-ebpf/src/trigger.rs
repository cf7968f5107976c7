//! The path of a hit in a program that does more than record: triggers, events that triggers enable and disable,
//! stacks.
//!
//! The order is that of the kernel (`trace_trigger_soft_disabled()`, `trace_event_buffer_reserve()` and
//! `trace_event_buffer_commit()`). Triggers that do not read the record run for every thread, before the program
//! checks whether the event is enabled. Triggers that read the record run after the thread lists, also for hits that
//! are not recorded.

use core::ffi::c_void;

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns, generated::bpf_get_stack,
};
use tracer_abi::{RECORD_AREA, SOFT_SLOTS, Switches, control, params, requested};

use crate::{
    ctx::flags_and_depth,
    emit::{
        Origin, area, claim, compat, count, count_dropped, counts, current, debug_log, excluded_by_lists,
        identity, ids, is_ignored, other, record, release, tracer_filter, tracer_trigger,
    },
    map::{PIDS, SWITCHES},
    parameters::param,
    ring::{self, Ring},
};

/// `BPF_F_USER_STACK`.
const USER_STACK: u64 = 1 << 8;
/// Maximum size of a kernel stack in bytes: 127 addresses (`PERF_MAX_STACK_DEPTH`). The number is also a mask.
const STACK_BYTES: u64 = 8 * 127;
/// Size of a user stack in bytes: eight addresses (`FTRACE_STACK_ENTRIES`, kernel/trace/trace.h).
const USER_STACK_BYTES: u32 = 64;
/// Offset of the addresses in a stack record (`struct stack_entry`, `struct userstack_entry`).
const STACK_AT: usize = 16;

/// Processes one hit: early checks, triggers, filter and record. Returns the requested actions, bits of [`requested`].
#[inline(always)]
pub fn hit(ctx: *mut c_void, origin: Origin) -> u64 {
    if param!(bits) & params::ONE_CALL != 0 {
        // SAFETY: the second argument of raw `sys_enter`, the only hook with this bit.
        let number = unsafe { ctx.cast::<u64>().add(1).read() };
        if number as u32 != param!(call) {
            return 0;
        }
    }
    let Some(switches) = SWITCHES.get(0) else { return 0 };
    let switches = switches.as_ptr();
    // SAFETY: a looked-up map value is valid for the program's run; others write it concurrently.
    let halted = || unsafe { (&raw const (*switches).halted).read_volatile() };
    if param!(bits) & params::TRIGGERS == 0 && halted() != 0 {
        return 0;
    }
    let task = match origin {
        Origin::Current | Origin::Emitted(_) => current(),
        Origin::Record => core::ptr::null(),
    };
    let thread = match origin {
        Origin::Current | Origin::Emitted(_) => {
            let thread = ids(task);
            if param!(bits) & params::PIDS != 0 {
                // The table has the tracer's own threads only on request. A switch from such a thread to a traced
                // thread is a hit of the traced thread.
                if PIDS.get(thread as u32).is_none() && PIDS.get(other(ctx)).is_none() {
                    return 0;
                }
            } else if is_ignored(thread) {
                return 0;
            }
            thread
        }
        // SAFETY: an injected record holds its common fields; the verifier bounds the context.
        Origin::Record => u64::from(unsafe { ctx.cast::<u32>().add(1).read() }),
    };
    if param!(bits) & params::COMPAT != 0 && compat(task) {
        return 0;
    }
    let is_off = |slot: u32| param!(bits) & params::SOFT != 0 && soft(switches, soft_slot(slot));
    let mut requested = 0;
    if param!(bits) & params::TRIGGERS != 0 && param!(bits) & params::SEES_RECORD == 0 {
        let off = param!(bits) & params::SOFT != 0 && is_off(identity(ctx).0);
        // SAFETY: the generated function fulfils its contract; the verifier checks it with the caller's state.
        requested = unsafe { tracer_trigger(ctx, core::ptr::null_mut(), 0, switches) };
        if requested & requested::SNAPSHOT != 0 {
            // This hit's own record may have the same time.
            snapshot(switches, 1);
        }
        if off || halted() != 0 {
            return requested;
        }
    }
    if param!(bits) & params::PID_LISTS != 0 && (origin.is_task() || param!(bits) & params::NO_RECORD == 0) {
        // SAFETY: as for `halted`.
        let lists = unsafe { (&raw const (*switches).lists).read_volatile() };
        if lists != 0 && excluded_by_lists(lists as u8, thread as u32, ctx) {
            return requested;
        }
    }
    let (slot, kind) = identity(ctx);
    let cpu = origin.cpu(ctx);
    let mut claimed = 0;
    if param!(bits) & params::SEES_RECORD == 0 && is_off(slot) {
        return requested;
    }
    if param!(bits) & params::CLAIM != 0 {
        let Some(row) = claim(cpu) else {
            if let Some(counters) = counts(slot, cpu) {
                count_dropped(counters);
            }
            return requested;
        };
        claimed = row;
    }
    let place = HitPlace { slot, cpu, claimed };
    let source = HitSource { origin, thread, kind };
    let requested = filter_and_record(ctx, switches, source, place, requested);
    if param!(bits) & params::CLAIM != 0 {
        release(claimed);
    }
    requested
}

/// The origin, thread and event of a hit.
#[derive(Clone, Copy)]
struct HitSource {
    origin: Origin,
    /// Thread id, with the process id in the upper half.
    thread: u64,
    /// `common_type` of the record.
    kind: u64,
}

impl HitSource {
    /// The common fields; flags and preempt count only if `context` is true.
    #[inline(always)]
    fn common(&self, ctx: *mut c_void, cpu: u32, context: bool) -> u64 {
        let context = match self.origin {
            Origin::Current | Origin::Emitted(_) if context => flags_and_depth(cpu),
            Origin::Current | Origin::Emitted(_) => 0,
            // SAFETY: an injected record holds its common fields; the verifier bounds the context.
            Origin::Record => u64::from(unsafe { ctx.cast::<u16>().add(1).read() }),
        };
        self.kind | context << 16 | self.thread << 32
    }
}

/// The slot, CPU and scratch row of a hit.
#[derive(Clone, Copy)]
struct HitPlace {
    slot: u32,
    cpu: u32,
    /// Row of [`SCRATCH`] under [`params::CLAIM`].
    claimed: u32,
}

impl HitPlace {
    /// Memory for the strings that filters fetch, if any do.
    #[inline(always)]
    fn scratch(&self) -> Option<*mut u8> {
        if param!(bits) & params::FILTER_SCRATCH == 0 {
            return Some(core::ptr::null_mut());
        }
        // SAFETY: the filters' area follows the record's area, inside the value.
        area(self.cpu, self.claimed).map(|area| unsafe { area.add(RECORD_AREA) })
    }
}

/// Runs the triggers that read the record, filters the hit, and records it.
#[inline(always)]
fn filter_and_record(
    ctx: *mut c_void,
    switches: *mut Switches,
    source: HitSource,
    place: HitPlace,
    before: u64,
) -> u64 {
    // SAFETY: a looked-up map value is valid for the program's run; others write it concurrently.
    let halted = || unsafe { (&raw const (*switches).halted).read_volatile() };
    let off = || param!(bits) & params::SOFT != 0 && soft(switches, soft_slot(place.slot));
    let HitPlace { slot, cpu, claimed } = place;
    let mut requested = before;
    let mut recorded = true;
    let mut was_halted = false;
    if param!(bits) & params::TRIGGERS != 0 && param!(bits) & params::SEES_RECORD != 0 {
        let was_off = off();
        was_halted = halted() != 0;
        let Some(scratch) = place.scratch() else { return 0 };
        // SAFETY: the generated function fulfils its contract; the verifier checks it with the caller's state.
        requested = unsafe { tracer_trigger(ctx, scratch, source.common(ctx, cpu, true), switches) };
        // The kernel puts a record that may still be dropped into the buffer only after the triggers.
        let late = param!(bits) & params::TURNS_ON != 0 && (was_off || param!(bits) & params::FILTER != 0);
        let stopped = if late { halted() != 0 } else { was_halted };
        let off = off();
        recorded = !stopped && !off;
    }
    if recorded && param!(bits) & params::NO_RECORD == 0 {
        let Some(counters) = counts(slot, cpu) else { return requested };
        let mut word = 0;
        let mut passes = true;
        if param!(bits) & params::FILTER != 0 {
            word = source.common(ctx, cpu, param!(bits) & params::FILTER_FLAGS != 0);
            let Some(scratch) = place.scratch() else {
                count_dropped(counters);
                return requested;
            };
            // SAFETY: as for the triggers.
            passes = unsafe { tracer_filter(ctx, scratch, word) } != 0;
        }
        if passes {
            if param!(bits) & (params::FILTER | params::FILTER_FLAGS) != params::FILTER | params::FILTER_FLAGS
            {
                word = source.common(ctx, cpu, true);
            }
            record(ctx, cpu, word, claimed, counters);
            if source.origin.is_task() {
                let hook = source.origin.hook(ctx);
                if param!(bits) & params::KERNEL_STACK != 0 {
                    kernel_stack(hook, cpu, claimed, word);
                }
                if param!(bits) & params::USER_STACK != 0 {
                    user_stack(hook, cpu, claimed, word);
                }
            }
        } else {
            count(&mut counters.filtered);
            debug_log!(ctx, "slot {} cpu {}: filtered", param!(slot), cpu);
        }
    }
    if param!(bits) & params::TRIGGERS != 0 && param!(bits) & params::SEES_RECORD != 0 {
        // The snapshot contains the event that requests it.
        if requested & requested::SNAPSHOT != 0 {
            snapshot(switches, 0);
        }
        if requested & requested::STACK != 0 && source.origin.is_task() {
            // By now every trigger has run. Recording may be off because of a trigger that comes after the stack
            // trigger.
            let first = param!(bits) & params::STACK_FIRST != 0;
            let stopped = if first { was_halted } else { halted() != 0 };
            if !stopped {
                kernel_stack(source.origin.hook(ctx), cpu, claimed, source.common(ctx, cpu, true));
            }
        }
    }
    requested
}

/// Whether a trigger has soft-disabled the event at a slot.
#[inline(always)]
fn soft(switches: *mut Switches, slot: u32) -> bool {
    let place = slot as usize & (SOFT_SLOTS - 1);
    // SAFETY: inside the array of a looked-up map value; others write it concurrently.
    unsafe { (&raw const (*switches).soft).cast::<u32>().add(place).read_volatile() != 0 }
}

/// Index of this event in the soft-disable array.
#[inline(always)]
fn soft_slot(slot: u32) -> u32 {
    if param!(bits) & (params::COOKIE | params::BY_CALL) != 0 { slot } else { param!(soft) }
}

/// Requests a snapshot of all records up to this many nanoseconds ago.
#[inline(always)]
fn snapshot(switches: *mut Switches, age: u64) {
    // SAFETY: no arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    if !ring::control(cpu, control::SNAPSHOT, age) {
        // SAFETY: the value is valid for the program's run.
        unsafe { (&raw mut (*switches).snapshot).write_volatile(1) };
    }
}

/// Records the kernel stack at the hook: its depth and the addresses.
#[inline(always)]
fn kernel_stack(ctx: *mut c_void, cpu: u32, claimed: u32, common: u64) {
    let Some(place) = area(cpu, claimed) else { return };
    let place = place.cast::<u64>();
    let kind = u64::from(param!(stacks) & 0xffff);
    // SAFETY: the scratch value has space for head and addresses.
    unsafe {
        let addresses = place.cast::<u8>().add(STACK_AT);
        let got = bpf_get_stack(ctx, addresses.cast(), STACK_BYTES as u32, 0);
        let bytes = if got < 0 { 0 } else { got as u64 & STACK_BYTES };
        place.write(common & !0xffff | kind);
        place.add(1).write(bytes / 8);
        stack_record(cpu, place, STACK_AT as u64 + bytes);
    }
}

/// Records the user stack of the thread: its process id and eight addresses.
#[inline(always)]
fn user_stack(ctx: *mut c_void, cpu: u32, claimed: u32, common: u64) {
    let Some(place) = area(cpu, claimed) else { return };
    let place = place.cast::<u64>();
    let kind = u64::from(param!(stacks) >> 16);
    // SAFETY: as for the kernel's.
    unsafe {
        let addresses = place.add(STACK_AT / 8);
        for at in 0..USER_STACK_BYTES as usize / 8 {
            addresses.add(at).write(0);
        }
        bpf_get_stack(ctx, addresses.cast(), USER_STACK_BYTES, USER_STACK);
        place.write(common & !0xffff | kind);
        place.add(1).write(bpf_get_current_pid_tgid() >> 32);
        stack_record(cpu, place, STACK_AT as u64 + u64::from(USER_STACK_BYTES));
    }
}

/// Writes a stack record to the CPU's ring if there is space.
#[inline(always)]
fn stack_record(cpu: u32, place: *const u64, length: u64) {
    if let Some(ring) = Ring::of(cpu) {
        // SAFETY: no requirements; `length` bytes were written.
        unsafe { ring.output(bpf_ktime_get_ns(), place, length) };
    }
}
