//! The path of a hit, the same for every probe kind: gates, count, filter, record.
//!
//! Nothing is reserved for a hit that its filter drops, and every hit that passes the gates is counted once as
//! filtered, recorded or dropped. Counters need no atomics: a program never runs twice at once on a CPU (perf
//! tracepoints and kprobes are guarded by `bpf_prog_active`, raw tracepoints and functions by the program's own `active`),
//! and each row belongs to one program. At uprobes nothing guards: see [`params::CLAIM`].

use core::{ffi::c_void, ptr::NonNull};

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid, bpf_get_current_task, bpf_get_smp_processor_id, bpf_ktime_get_ns,
    generated::{
        bpf_get_attach_cookie, bpf_get_current_task_btf, bpf_get_stack, bpf_ringbuf_output,
        bpf_ringbuf_query, bpf_ringbuf_reserve, bpf_ringbuf_submit,
    },
};
use tracer_abi::{
    CLAIMS, COMMON_SIZE, Counters, MAX_PAYLOAD, Params, RECORD_AREA, SOFT_SLOTS, STAMP_SIZE, Switches, asked,
    control, lists, params,
};

use crate::{
    ctx::{flags_and_depth, peek},
    map::{CLAIMED, COUNTERS, PIDS, RINGS, SCRATCH, SWITCHES},
};

unsafe extern "C" {
    fn tracer_filter(ctx: *mut c_void, scratch: *mut u8, common: u64) -> u64;
    fn tracer_record(ctx: *mut c_void, payload: *mut u8) -> u64;
    fn tracer_trigger(ctx: *mut c_void, scratch: *mut u8, common: u64, switches: *mut Switches) -> u64;
}

/// What is fixed when the program is loaded; user space replaces the zeroes.
#[unsafe(no_mangle)]
pub static PARAMS: Params = Params {
    bits: 0,
    slot: 0,
    cpus: 0,
    size: 0,
    own_tgid: 0,
    kind: 0,
    compat_offset: 0,
    compat_mask: 0,
    preempt_offset: 0,
    preempt_bias: 0,
    watermark: 0,
    other_offset: 0,
    other_arg: 0,
    call: 0,
    task_pid: 0,
    task_tgid: 0,
    stacks: 0,
    soft: 0,
};

/// Reads a parameter where it is used: a constant to the verifier, which drops the branches it rules out.
macro_rules! param {
    ($field:ident) => {
        // SAFETY: a field of a static of plain integers.
        unsafe { (&raw const $crate::emit::PARAMS.$field).read_volatile() }
    };
}
pub(crate) use param;

/// The context as aya-log wants it.
#[cfg(feature = "log")]
struct Logged(*mut c_void);

#[cfg(feature = "log")]
impl aya_ebpf::EbpfContext for Logged {
    fn as_ptr(&self) -> *mut c_void {
        self.0
    }
}

/// Logs through aya-log in a debug build of the object, and is nothing in any other.
macro_rules! note {
    ($ctx:expr, $($message:tt)+) => {
        #[cfg(feature = "log")]
        aya_log_ebpf::debug!(&Logged($ctx), $($message)+);
    };
}

/// `BPF_RB_NO_WAKEUP` and `BPF_RB_FORCE_WAKEUP`, include/uapi/linux/bpf.h.
const NO_WAKEUP: u64 = 1;
const FORCE_WAKEUP: u64 = 2;
/// `BPF_RB_AVAIL_DATA`.
const AVAIL_DATA: u64 = 0;
/// `BPF_F_USER_STACK`.
const USER_STACK: u64 = 1 << 8;
/// Bytes of a kernel stack at most: 127 addresses (`PERF_MAX_STACK_DEPTH`), a number that is a mask as well.
const STACK_BYTES: u64 = 8 * 127;
/// Bytes of a thread's own stack: eight addresses (`FTRACE_STACK_ENTRIES`, kernel/trace/trace.h).
const USER_STACK_BYTES: u32 = 64;
/// Offset of the addresses in the record of a stack (`struct stack_entry`, `struct userstack_entry`).
const STACK_AT: usize = 16;
/// Every so many records of an event on a CPU the ring is asked how full it is.
const ASK_EVERY: u64 = 16;

/// Who hits: the common fields come from the current task, or the record brings its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A kernel hook: the current task.
    Current,
    /// A record made in user space; its common fields are those of the context.
    Record,
}

/// The other thread that a hit is about, as tracefs counts it in for its pid filters: who is switched in, who is
/// woken. 0, which no table holds, for events that are about nobody else.
#[inline(always)]
fn other(ctx: *mut c_void) -> u32 {
    if param!(bits) & params::OTHER_IN_RECORD != 0 {
        peek(ctx as u64 + u64::from(param!(other_offset)))
    } else if param!(bits) & params::OTHER_IN_TASK != 0 {
        let task: u64 = peek(ctx as u64 + u64::from(param!(other_arg)) * 8);
        peek(task + u64::from(param!(other_offset)))
    } else {
        0
    }
}

/// Whether the lists of threads in force leave a hit out: one that no traced thread has part in, or only untraced
/// ones. Who is switched in or woken has part in a hit as the current thread has.
#[inline(always)]
fn left_out(in_force: u8, current: u32, ctx: *mut c_void) -> bool {
    let of = |pid: u32| match PIDS.get(pid) {
        // SAFETY: a looked-up map value is valid for the program's run.
        Some(flags) => unsafe { flags.read() },
        None => 0,
    };
    let mine = of(current);
    let others = if param!(bits) & (params::OTHER_IN_RECORD | params::OTHER_IN_TASK) != 0 {
        of(other(ctx))
    } else {
        mine
    };
    (in_force & lists::TRACED != 0 && (mine | others) & lists::TRACED == 0)
        || (in_force & lists::UNTRACED != 0 && mine & others & lists::UNTRACED != 0)
}

/// Counts one more.
#[inline(always)]
fn count(counter: &mut u64) {
    if param!(bits) & params::CLAIM != 0 {
        // SAFETY: adds to a counter in a map, which is aligned. This target's core library has no atomics.
        unsafe {
            core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) 1_u64);
        }
    } else {
        *counter += 1;
    }
}

/// Memory of this CPU's, for one hit: the CPU's own where hits cannot overlap, else what was claimed.
#[inline(always)]
fn area(cpu: u32, claimed: u32) -> Option<*mut u8> {
    let row = if param!(bits) & params::CLAIM != 0 { claimed } else { cpu };
    SCRATCH.get(row).map(|area| area.as_ptr().cast())
}

/// Finds memory of this CPU's that no hit has that was preempted here; its row in [`SCRATCH`].
#[inline(always)]
fn claim(cpu: u32) -> Option<u32> {
    for number in 0..CLAIMS {
        let row = cpu * CLAIMS + number;
        if CLAIMED.insert(row, 1) {
            return Some(row);
        }
    }
    None
}

/// The current task, where its members are read; a pointer that the verifier knows the type of.
#[inline(always)]
fn current() -> *const u8 {
    if param!(bits) & params::TASK != 0 {
        // SAFETY: no arguments.
        unsafe { bpf_get_current_task_btf() }.cast()
    } else {
        core::ptr::null()
    }
}

/// The current thread's id and, in the upper half, its process's.
#[inline(always)]
fn ids(task: *const u8) -> u64 {
    if param!(bits) & params::TASK != 0 {
        let (pid, tgid) = (param!(task_pid) as usize, param!(task_tgid) as usize);
        // SAFETY: the offsets are those of two numbers in the kernel's `task_struct`, which the verifier checks.
        unsafe {
            let pid = task.add(pid).cast::<u32>().read();
            let tgid = task.add(tgid).cast::<u32>().read();
            u64::from(tgid) << 32 | u64::from(pid)
        }
    } else {
        bpf_get_current_pid_tgid()
    }
}

/// Whether a 32-bit system call is going on.
#[inline(always)]
fn compat(task: *const u8) -> bool {
    let word: u32 = if param!(bits) & params::TASK != 0 {
        let offset = param!(compat_offset) as usize;
        // SAFETY: as above.
        unsafe { task.add(offset).cast::<u32>().read() }
    } else {
        // SAFETY: no arguments.
        peek(unsafe { bpf_get_current_task() } + u64::from(param!(compat_offset)))
    };
    word & param!(compat_mask) != 0
}

/// Takes one hit through gates, triggers, filter and record. What the triggers asked for, bits of [`asked`].
///
/// The order is that of the kernel (`trace_trigger_soft_disabled()`, `trace_event_buffer_reserve()` and
/// `trace_event_buffer_commit()`): triggers that do not look at the record run for every thread and before it is known
/// whether the event is on; those that do come behind the lists of threads, for hits that are not recorded as well.
#[inline(always)]
pub fn hit(ctx: *mut c_void, origin: Origin) -> u64 {
    if param!(bits) & params::ONE_CALL != 0 {
        // SAFETY: the second argument of raw `sys_enter`, where alone the bit is set.
        let number = unsafe { ctx.cast::<u64>().add(1).read() };
        if number as u32 != param!(call) {
            return 0;
        }
    }
    let Some(switches) = SWITCHES.get(0) else { return 0 };
    let switches = switches.as_ptr();
    // SAFETY: a looked-up map value is valid for the program's run; others write it meanwhile.
    let halted = || unsafe { (&raw const (*switches).halted).read_volatile() };
    if param!(bits) & params::TRIGGERS == 0 && halted() != 0 {
        return 0;
    }
    let task = match origin {
        Origin::Current => current(),
        Origin::Record => core::ptr::null(),
    };
    let who = match origin {
        Origin::Current => {
            let who = ids(task);
            if param!(bits) & params::PIDS != 0 {
                // Our own threads are in the table only when asked for; a switch from one of them to a traced thread
                // is the traced one's hit.
                if PIDS.get(who as u32).is_none() && PIDS.get(other(ctx)).is_none() {
                    return 0;
                }
            } else if param!(own_tgid) != 0 {
                // Two branches in place of one comparison of truths: one of them goes when the program is loaded.
                let own = (who >> 32) as u32 == param!(own_tgid);
                if param!(bits) & params::OWN_ONLY != 0 {
                    if !own {
                        return 0;
                    }
                } else if own {
                    return 0;
                }
            }
            who
        }
        // SAFETY: an injected record holds its common fields; the verifier bounds the context.
        Origin::Record => u64::from(unsafe { ctx.cast::<u32>().add(1).read() }),
    };
    if param!(bits) & params::COMPAT != 0 && compat(task) {
        return 0;
    }
    let cookie = || {
        if param!(bits) & params::COOKIE != 0 {
            // SAFETY: the hook was attached with a cookie.
            let cookie = unsafe { bpf_get_attach_cookie(ctx) };
            (cookie as u32, cookie >> 32)
        } else {
            (param!(slot), u64::from(param!(kind)))
        }
    };
    let is_off = |slot: u32| param!(bits) & params::SOFT != 0 && soft(switches, soft_slot(slot));
    let mut asked = 0;
    if param!(bits) & params::TRIGGERS != 0 && param!(bits) & params::SEES_RECORD == 0 {
        let off = param!(bits) & params::SOFT != 0 && is_off(cookie().0);
        // SAFETY: the generated function keeps to its contract; the verifier checks it with the caller's state.
        asked = unsafe { tracer_trigger(ctx, core::ptr::null_mut(), 0, switches) };
        if asked & asked::SNAPSHOT != 0 {
            snapshot(switches);
        }
        if off || halted() != 0 {
            return asked;
        }
    }
    if param!(bits) & params::PID_LISTS != 0 && origin == Origin::Current {
        // SAFETY: as for `halted`.
        let lists = unsafe { (&raw const (*switches).lists).read_volatile() };
        if lists != 0 && left_out(lists as u8, who as u32, ctx) {
            return asked;
        }
    }
    let (slot, kind) = cookie();
    // SAFETY: no arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let mut claimed = 0;
    if param!(bits) & params::SEES_RECORD == 0 && is_off(slot) {
        return asked;
    }
    if param!(bits) & params::CLAIM != 0 {
        let Some(row) = claim(cpu) else {
            if let Some(counters) = COUNTERS.get(slot * param!(cpus) + cpu) {
                // SAFETY: a looked-up map value is valid for the program's run.
                let counters = unsafe { &mut *counters.as_ptr() };
                count(&mut counters.hits);
                count(&mut counters.dropped);
            }
            return asked;
        };
        claimed = row;
    }
    let place = Place { slot, cpu, claimed };
    let who = Who { origin, who, kind };
    let asked = judge(ctx, switches, who, place, asked);
    if param!(bits) & params::CLAIM != 0 {
        CLAIMED.remove(claimed);
    }
    asked
}

/// Whose hit it is.
#[derive(Clone, Copy)]
struct Who {
    origin: Origin,
    /// Thread, and process in the upper half.
    who: u64,
    /// `common_type` of the record.
    kind: u64,
}

impl Who {
    /// The common fields; flags and preempt count only if they are wanted.
    #[inline(always)]
    fn common(&self, ctx: *mut c_void, cpu: u32, context: bool) -> u64 {
        let context = match self.origin {
            Origin::Current if context => flags_and_depth(cpu),
            Origin::Current => 0,
            // SAFETY: an injected record holds its common fields; the verifier bounds the context.
            Origin::Record => u64::from(unsafe { ctx.cast::<u16>().add(1).read() }),
        };
        self.kind | context << 16 | self.who << 32
    }
}

/// Where a hit is, and what it has for itself there.
#[derive(Clone, Copy)]
struct Place {
    slot: u32,
    cpu: u32,
    /// Row of [`SCRATCH`] under [`params::CLAIM`].
    claimed: u32,
}

impl Place {
    /// Memory for the strings that filters fetch, if any do.
    #[inline(always)]
    fn scratch(&self) -> Option<*mut u8> {
        if param!(bits) & params::FILTER_SCRATCH == 0 {
            return Some(core::ptr::null_mut());
        }
        // SAFETY: the filters' area lies behind the record's, inside the value.
        area(self.cpu, self.claimed).map(|area| unsafe { area.add(RECORD_AREA) })
    }
}

/// Runs the triggers that look at the record, filters a hit, and records it.
#[inline(always)]
fn judge(ctx: *mut c_void, switches: *mut Switches, who: Who, place: Place, before: u64) -> u64 {
    // SAFETY: a looked-up map value is valid for the program's run; others write it meanwhile.
    let halted = || unsafe { (&raw const (*switches).halted).read_volatile() };
    let off = || param!(bits) & params::SOFT != 0 && soft(switches, soft_slot(place.slot));
    let Place { slot, cpu, claimed } = place;
    let mut asked = before;
    let mut recorded = true;
    let mut was_halted = false;
    if param!(bits) & params::TRIGGERS != 0 && param!(bits) & params::SEES_RECORD != 0 {
        let was_off = off();
        was_halted = halted() != 0;
        let Some(scratch) = place.scratch() else { return 0 };
        // SAFETY: the generated function keeps to its contract; the verifier checks it with the caller's state.
        asked = unsafe { tracer_trigger(ctx, scratch, who.common(ctx, cpu, true), switches) };
        // A record that may yet be dropped is put into the buffer behind the triggers only.
        let late = param!(bits) & params::TURNS_ON != 0 && (was_off || param!(bits) & params::FILTER != 0);
        let stopped = if late { halted() != 0 } else { was_halted };
        let off = off();
        recorded = !stopped && !off;
    }
    if recorded && param!(bits) & params::NO_RECORD == 0 {
        let Some(counters) = COUNTERS.get(slot * param!(cpus) + cpu) else { return asked };
        // SAFETY: a looked-up map value is valid for the program's run; nothing else writes this row (see above).
        let counters = unsafe { &mut *counters.as_ptr() };
        count(&mut counters.hits);
        let mut word = 0;
        let mut passes = true;
        if param!(bits) & params::FILTER != 0 {
            word = who.common(ctx, cpu, param!(bits) & params::FILTER_FLAGS != 0);
            let Some(scratch) = place.scratch() else { return asked };
            // SAFETY: as for the triggers.
            passes = unsafe { tracer_filter(ctx, scratch, word) } != 0;
        }
        if passes {
            if param!(bits) & (params::FILTER | params::FILTER_FLAGS) != params::FILTER | params::FILTER_FLAGS
            {
                word = who.common(ctx, cpu, true);
            }
            record(ctx, cpu, word, claimed, counters);
            if who.origin == Origin::Current {
                if param!(bits) & params::KERNEL_STACK != 0 {
                    kernel_stack(ctx, cpu, claimed, word);
                }
                if param!(bits) & params::USER_STACK != 0 {
                    user_stack(ctx, cpu, claimed, word);
                }
            }
        } else {
            count(&mut counters.filtered);
            note!(ctx, "slot {} cpu {}: filtered", param!(slot), cpu);
        }
    }
    if param!(bits) & params::TRIGGERS != 0 && param!(bits) & params::SEES_RECORD != 0 {
        // What an event is in is in the snapshot that it asks for.
        if asked & asked::SNAPSHOT != 0 {
            snapshot(switches);
        }
        if asked & asked::STACK != 0 && who.origin == Origin::Current {
            // Triggers have turned recording off by now, also one that is to come behind the stack.
            let first = param!(bits) & params::STACK_FIRST != 0;
            let stopped = if first { was_halted } else { halted() != 0 };
            if !stopped {
                kernel_stack(ctx, cpu, claimed, who.common(ctx, cpu, true));
            }
        }
    }
    asked
}

/// Whether an event at a slot is turned off by a trigger.
#[inline(always)]
fn soft(switches: *mut Switches, slot: u32) -> bool {
    let place = slot as usize & (SOFT_SLOTS - 1);
    // SAFETY: inside the array of a looked-up map value; others write it meanwhile.
    unsafe { (&raw const (*switches).soft).cast::<u32>().add(place).read_volatile() != 0 }
}

/// The slot at which that is said of this event.
#[inline(always)]
fn soft_slot(slot: u32) -> u32 {
    if param!(bits) & params::COOKIE != 0 { slot } else { param!(soft) }
}

/// Writes the record and counts what became of it.
#[inline(always)]
fn record(ctx: *mut c_void, cpu: u32, common: u64, claimed: u32, counters: &mut Counters) {
    let Some(ring) = RINGS.get(cpu) else { return };
    let ring: *mut c_void = ring.as_ptr().cast();
    let wake = |counters: &Counters| {
        // SAFETY: the ring is the map that was looked up.
        if counters.recorded.is_multiple_of(ASK_EVERY)
            && unsafe { bpf_ringbuf_query(ring, AVAIL_DATA) } >= u64::from(param!(watermark))
        {
            FORCE_WAKEUP
        } else {
            NO_WAKEUP
        }
    };
    if param!(size) != 0 {
        let size = u64::from(param!(size)) + STAMP_SIZE as u64;
        // SAFETY: the size is a constant to the verifier.
        let place = unsafe { bpf_ringbuf_reserve(ring, size, 0) };
        let Some(place) = NonNull::new(place.cast::<u64>()) else {
            count(&mut counters.dropped);
            note!(ctx, "slot {} cpu {}: the ring is full", param!(slot), cpu);
            return;
        };
        let place = place.as_ptr();
        // SAFETY: the reservation holds stamp, common fields and payload.
        unsafe {
            place.write(bpf_ktime_get_ns());
            place.add(1).write(common);
            tracer_record(ctx, place.add(1).cast());
        }
        count(&mut counters.recorded);
        note!(ctx, "slot {} cpu {}: recorded {} bytes", param!(slot), cpu, param!(size));
        // SAFETY: submits what was reserved above, once.
        unsafe { bpf_ringbuf_submit(place.cast(), wake(counters)) };
    } else {
        let Some(place) = area(cpu, claimed) else { return };
        let place = place.cast::<u64>();
        // SAFETY: the scratch value has room for stamp, common fields and the largest payload.
        let length = unsafe {
            place.write(bpf_ktime_get_ns());
            place.add(1).write(common);
            tracer_record(ctx, place.add(1).cast())
        };
        let length = if length > MAX_PAYLOAD as u64 { MAX_PAYLOAD as u64 } else { length };
        // SAFETY: `length` bytes of the scratch value behind the stamp were written.
        let done =
            unsafe { bpf_ringbuf_output(ring, place.cast(), length + STAMP_SIZE as u64, wake(counters)) };
        if done == 0 {
            count(&mut counters.recorded);
            note!(ctx, "slot {} cpu {}: recorded {} bytes", param!(slot), cpu, length);
        } else {
            count(&mut counters.dropped);
            note!(ctx, "slot {} cpu {}: the ring is full", param!(slot), cpu);
        }
    }
}

/// Asks for a snapshot of all that is older than this moment.
#[inline(always)]
fn snapshot(switches: *mut Switches) {
    // SAFETY: no arguments.
    let ring = RINGS.get(unsafe { bpf_get_smp_processor_id() });
    if let Some(ring) = ring {
        // SAFETY: the size is a constant to the verifier.
        let place =
            unsafe { bpf_ringbuf_reserve(ring.as_ptr().cast(), (STAMP_SIZE + COMMON_SIZE) as u64, 0) };
        if let Some(place) = NonNull::new(place.cast::<u64>()) {
            let place = place.as_ptr();
            // SAFETY: the reservation holds stamp and common fields, and is submitted once.
            unsafe {
                place.write(bpf_ktime_get_ns());
                place.add(1).write(u64::from(control::SNAPSHOT));
                bpf_ringbuf_submit(place.cast(), NO_WAKEUP);
            }
            return;
        }
    }
    // SAFETY: the value is valid for the program's run.
    unsafe { (&raw mut (*switches).snapshot).write_volatile(1) };
}

/// Records the kernel's stack at the hook: how deep it is, and the addresses.
#[inline(always)]
fn kernel_stack(ctx: *mut c_void, cpu: u32, claimed: u32, common: u64) {
    let Some(place) = area(cpu, claimed) else { return };
    let place = place.cast::<u64>();
    let kind = u64::from(param!(stacks) & 0xffff);
    // SAFETY: the scratch value has room for stamp, head and addresses.
    unsafe {
        let addresses = place.cast::<u8>().add(STAMP_SIZE + STACK_AT);
        let got = bpf_get_stack(ctx, addresses.cast(), STACK_BYTES as u32, 0);
        let bytes = if got < 0 { 0 } else { got as u64 & STACK_BYTES };
        place.write(bpf_ktime_get_ns());
        place.add(1).write(common & !0xffff | kind);
        place.add(2).write(bytes / 8);
        stack_record(cpu, place, STACK_AT as u64 + bytes);
    }
}

/// Records the stack of the thread in user space: its process, and eight addresses.
#[inline(always)]
fn user_stack(ctx: *mut c_void, cpu: u32, claimed: u32, common: u64) {
    let Some(place) = area(cpu, claimed) else { return };
    let place = place.cast::<u64>();
    let kind = u64::from(param!(stacks) >> 16);
    // SAFETY: as for the kernel's.
    unsafe {
        let addresses = place.add((STAMP_SIZE + STACK_AT) / 8);
        for at in 0..USER_STACK_BYTES as usize / 8 {
            addresses.add(at).write(0);
        }
        bpf_get_stack(ctx, addresses.cast(), USER_STACK_BYTES, USER_STACK);
        place.write(bpf_ktime_get_ns());
        place.add(1).write(common & !0xffff | kind);
        place.add(2).write(bpf_get_current_pid_tgid() >> 32);
        stack_record(cpu, place, STACK_AT as u64 + u64::from(USER_STACK_BYTES));
    }
}

/// Puts a stack's record into the CPU's ring, where there is room.
#[inline(always)]
fn stack_record(cpu: u32, place: *mut u64, length: u64) {
    if let Some(ring) = RINGS.get(cpu) {
        // SAFETY: so many bytes behind the stamp were written.
        unsafe {
            bpf_ringbuf_output(ring.as_ptr().cast(), place.cast(), length + STAMP_SIZE as u64, NO_WAKEUP)
        };
    }
}
