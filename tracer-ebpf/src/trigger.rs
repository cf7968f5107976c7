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
use tracer_abi::{SOFT_SLOTS, Switches, control, params, requested};

use crate::{
    emit::{
        HitPlace, HitSource, Origin, admit, area, claim, count_dropped, counts, excluded_by_lists, filter,
        identity, is_other_call, record, release, tracer_trigger,
    },
    map::SWITCHES,
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
    if is_other_call(ctx) {
        return 0;
    }
    let Some(switches) = SWITCHES.get(0) else { return 0 };
    let switches = switches.as_ptr();
    // SAFETY: a looked-up map value is valid for the program's run; others write it concurrently.
    let halted = || unsafe { (&raw const (*switches).halted).read_volatile() };
    if param!(bits) & params::TRIGGERS == 0 && halted() != 0 {
        return 0;
    }
    let Some(thread) = admit(ctx, origin) else { return 0 };
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
        if let Some(word) = filter(ctx, source, place, counters) {
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
