//! The path of a hit, the same for every probe kind: early checks, filter, record, counters.
//!
//! Programs with triggers or stacks, and those of events that triggers enable, take the same steps in another order, with
//! their own in between ([`trigger`](crate::trigger)). Each order has a function of its own. With one function for both,
//! a program that only records `sched_switch` had 461 instructions in place of 440, and with a filter 501 in place of 464.
//!
//! The program reserves no ring space for a hit that the filter drops. Every hit that passes the early checks is
//! counted once as filtered, recorded or dropped. Most counters need no atomics, because a program does not run twice
//! at once on a CPU and each row belongs to one program. `bpf_prog_active` guards perf tracepoints and kprobes; the
//! program's own `active` guards raw tracepoints and functions. Uprobes have no guard ([`params::NESTS`]), and some
//! rows belong to several programs ([`params::SHARED_ROW`]): their counters are incremented atomically.

use core::ffi::c_void;

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid, bpf_get_current_task, bpf_get_smp_processor_id, bpf_ktime_get_ns,
    generated::{bpf_get_attach_cookie, bpf_get_current_task_btf},
};
use tracer_abi::{
    CALL_NUMBERS, CLAIMS, Counters, INJECT_CPU, MAX_PAYLOAD, RECORD_AREA, Switches, lists, params,
};

use crate::{
    ctx::{flags_and_depth, read_kernel},
    map::{CALLS, CLAIMED, COUNTERS, PIDS, SCRATCH, SWITCHES},
    parameters::param,
    ring::Ring,
};

unsafe extern "C" {
    pub(crate) fn tracer_filter(ctx: *mut c_void, scratch: *mut u8, common: u64) -> u64;
    fn tracer_record(ctx: *mut c_void, payload: *mut u8) -> u64;
    pub(crate) fn tracer_trigger(
        ctx: *mut c_void,
        scratch: *mut u8,
        common: u64,
        switches: *mut Switches,
    ) -> u64;
}

/// The context in the form that aya-log needs.
#[cfg(feature = "log")]
pub(crate) struct Logged(pub(crate) *mut c_void);

#[cfg(feature = "log")]
impl aya_ebpf::EbpfContext for Logged {
    fn as_ptr(&self) -> *mut c_void {
        self.0
    }
}

/// Logs through aya-log in a debug build of the object; expands to nothing in other builds.
macro_rules! debug_log {
    ($ctx:expr, $($message:tt)+) => {
        #[cfg(feature = "log")]
        aya_log_ebpf::debug!(&$crate::emit::Logged($ctx), $($message)+);
    };
}

/// The origin of a hit's common fields: the current task or the record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A kernel hook: the current task.
    Current,
    /// A record made in user space; the common fields are in the context.
    Record,
    /// A record made by a program at another event's hook, with that hook's context: the current task.
    Emitted(*mut c_void),
}

impl Origin {
    /// Whether the hit belongs to the current task.
    #[inline(always)]
    pub(crate) fn is_task(self) -> bool {
        !matches!(self, Self::Record)
    }

    /// The hook's own context, from which helpers walk stacks.
    #[inline(always)]
    pub(crate) fn hook(self, ctx: *mut c_void) -> *mut c_void {
        match self {
            Self::Emitted(hook) => hook,
            Self::Current | Self::Record => ctx,
        }
    }

    /// The CPU that the hit counts for: the CPU of the record's writer for an injected record, else the current CPU.
    #[inline(always)]
    pub(crate) fn cpu(self, ctx: *mut c_void) -> u32 {
        if let Self::Record = self {
            // SAFETY: the context holds the writer's CPU; the verifier bounds it.
            let cpu = unsafe { ctx.cast::<u8>().add(INJECT_CPU).cast::<u32>().read() };
            return if cpu < param!(cpus) { cpu } else { 0 };
        }
        // SAFETY: no arguments.
        unsafe { bpf_get_smp_processor_id() }
    }
}

/// The id of the second thread of a hit, the thread that is switched in or woken. The pid filters of tracefs test it
/// too. For other events it is 0, which is in no table.
#[inline(always)]
pub(crate) fn other(ctx: *mut c_void) -> u32 {
    if param!(bits) & params::OTHER_IN_RECORD != 0 {
        read_kernel(ctx as u64 + u64::from(param!(other_offset)))
    } else if param!(bits) & params::OTHER_IN_TASK != 0 {
        let task: u64 = read_kernel(ctx as u64 + u64::from(param!(other_arg)) * 8);
        read_kernel(task + u64::from(param!(other_offset)))
    } else {
        0
    }
}

/// Whether the thread lists in force exclude a hit: none of its threads is traced, or all of them are untraced. A
/// thread that is switched in or woken counts like the current thread.
#[inline(always)]
pub(crate) fn excluded_by_lists(in_force: u8, current: u32, ctx: *mut c_void) -> bool {
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

/// Increments a counter.
#[inline(always)]
pub(crate) fn count(counter: &mut u64) {
    if param!(bits) & (params::NESTS | params::SHARED_ROW) != 0 {
        // SAFETY: adds to a counter in a map, which is aligned. This target's core library has no atomics.
        unsafe {
            core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) 1_u64);
        }
    } else {
        *counter += 1;
    }
}

/// Memory of this CPU for one hit: the CPU's own row if hits cannot overlap, else the claimed row.
#[inline(always)]
pub(crate) fn area(cpu: u32, claimed: u32) -> Option<*mut u8> {
    let row = if param!(bits) & params::CLAIM != 0 { claimed } else { cpu };
    SCRATCH.get(row).map(|area| area.as_ptr().cast())
}

/// Claims memory of this CPU that no preempted hit uses. Returns its row in [`SCRATCH`].
#[inline(always)]
pub(crate) fn claim(cpu: u32) -> Option<u32> {
    for number in 0..CLAIMS {
        let row = cpu * CLAIMS + number;
        let word = CLAIMED.get(row)?;
        let mut taken = 1_u64;
        // SAFETY: exchanges a word of a looked-up map value, which is aligned. This target's core library has no
        // atomics.
        unsafe {
            core::arch::asm!("{1} = xchg_64({0} + 0, {1})", in(reg) word.as_ptr(), inout(reg) taken);
        }
        if taken == 0 {
            return Some(row);
        }
    }
    None
}

/// Releases the row that [`claim`] returned. The next claimant is on the same CPU, because programs do not migrate.
#[inline(always)]
pub(crate) fn release(row: u32) {
    if let Some(word) = CLAIMED.get(row) {
        // SAFETY: as above.
        unsafe { word.cast::<u64>().as_ptr().write_volatile(0) };
    }
}

/// The current task, as a pointer whose type the verifier knows; null if the program does not read the task's
/// members.
#[inline(always)]
pub(crate) fn current() -> *const u8 {
    if param!(bits) & params::TASK != 0 {
        // SAFETY: no arguments.
        unsafe { bpf_get_current_task_btf() }.cast()
    } else {
        core::ptr::null()
    }
}

/// The current thread id and, in the upper half, its process id.
#[inline(always)]
pub(crate) fn ids(task: *const u8) -> u64 {
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

/// Whether the session ignores a thread's hits. It ignores its own threads, or with `OWN_ONLY` all other threads.
#[inline(always)]
pub(crate) fn is_ignored(thread: u64) -> bool {
    if param!(own_tgid) == 0 {
        return false;
    }
    // Two branches instead of one comparison of booleans: the verifier removes one of them when the program is loaded.
    let own = (thread >> 32) as u32 == param!(own_tgid);
    if param!(bits) & params::OWN_ONLY != 0 { !own } else { own }
}

/// The counters of a row.
#[inline(always)]
pub(crate) fn counts(slot: u32, cpu: u32) -> Option<&'static mut Counters> {
    let row = slot * param!(cpus) + cpu;
    let place = if param!(bits) & params::ONE_TABLE != 0 {
        let mut row = u64::from(row);
        // SAFETY: no instruction. The verifier must see the compared value and the added value as one, without a copy
        // truncated to 32 bits.
        unsafe { core::arch::asm!("/* {0} */", inout(reg) row) };
        if row >= u64::from(param!(rows)) {
            return None;
        }
        // SAFETY: the value holds that many rows.
        unsafe { COUNTERS.get(0)?.add(row as usize) }
    } else {
        COUNTERS.get(row)?
    };
    // SAFETY: a looked-up map value is valid for the program's run. Either this program alone writes the row, or all
    // its writers add atomically (`count`).
    Some(unsafe { &mut *place.as_ptr() })
}

/// Counts a hit as passed and dropped, because there is no space for it.
#[inline(always)]
pub(crate) fn count_dropped(counters: &mut Counters) {
    count(&mut counters.passed);
    count(&mut counters.dropped);
}

/// Whether the current system call is a 32-bit one.
#[inline(always)]
pub(crate) fn compat(task: *const u8) -> bool {
    let word: u32 = if param!(bits) & params::TASK != 0 {
        let offset = param!(compat_offset) as usize;
        // SAFETY: as above.
        unsafe { task.add(offset).cast::<u32>().read() }
    } else {
        // SAFETY: no arguments.
        read_kernel(unsafe { bpf_get_current_task() } + u64::from(param!(compat_offset)))
    };
    word & param!(compat_mask) != 0
}

/// Slot and kind of the event.
#[inline(always)]
pub(crate) fn identity(ctx: *mut c_void) -> (u32, u64) {
    let cookie = if param!(bits) & params::COOKIE != 0 {
        // SAFETY: the hook was attached with a cookie.
        unsafe { bpf_get_attach_cookie(ctx) }
    } else if param!(bits) & params::BY_CALL != 0 {
        // SAFETY: the two arguments of raw `sys_enter` and `sys_exit`, the only hooks with this bit.
        let [regs, second] = unsafe { ctx.cast::<[u64; 2]>().read() };
        let row = if param!(call) == 0 {
            second as u32
        } else {
            read_kernel::<u32>(regs + u64::from(param!(call))).wrapping_add(CALL_NUMBERS)
        };
        match CALLS.get(row) {
            // SAFETY: a looked-up map value is valid for the program's run.
            Some(cookie) => unsafe { cookie.read() },
            None => 0,
        }
    } else {
        return (param!(slot), u64::from(param!(kind)));
    };
    (cookie as u32, cookie >> 32)
}

/// Whether the hit is another system call than the one that a program at raw `sys_enter` traces.
#[inline(always)]
pub(crate) fn is_other_call(ctx: *mut c_void) -> bool {
    if param!(bits) & params::ONE_CALL == 0 {
        return false;
    }
    // SAFETY: the second argument of raw `sys_enter`, the only hook with this bit.
    let number = unsafe { ctx.cast::<u64>().add(1).read() };
    number as u32 != param!(call)
}

/// The thread of a hit with its process in the upper half, unless the hit is of no traced thread or of a 32-bit call. 0
/// if the filter runs before the thread is looked at ([`params::OWN_LATE`]).
#[inline(always)]
pub(crate) fn admit(ctx: *mut c_void, origin: Origin) -> Option<u64> {
    let late = param!(bits) & params::OWN_LATE != 0;
    if let Origin::Record = origin {
        let task = core::ptr::null();
        // SAFETY: an injected record holds its common fields; the verifier bounds the context.
        let thread = unsafe { ctx.cast::<u32>().add(1).read() };
        return (param!(bits) & params::COMPAT == 0 || !compat(task)).then_some(u64::from(thread));
    }
    let task = if late { core::ptr::null() } else { current() };
    let thread = if late { 0 } else { ids(task) };
    if param!(bits) & params::PIDS != 0 {
        // The table has the tracer's own threads only on request. A switch from such a thread to a traced thread is a
        // hit of the traced thread.
        if PIDS.get(thread as u32).is_none() && PIDS.get(other(ctx)).is_none() {
            return None;
        }
    } else if !late && is_ignored(thread) {
        return None;
    }
    if param!(bits) & params::COMPAT != 0 && compat(task) {
        return None;
    }
    Some(thread)
}

/// The origin, thread and event of a hit.
#[derive(Clone, Copy)]
pub(crate) struct HitSource {
    pub(crate) origin: Origin,
    /// Thread id, with the process id in the upper half.
    pub(crate) thread: u64,
    /// `common_type` of the record.
    pub(crate) kind: u64,
}

impl HitSource {
    /// The common fields; flags and preempt count only if `context` is true.
    #[inline(always)]
    pub(crate) fn common(&self, ctx: *mut c_void, cpu: u32, context: bool) -> u64 {
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
pub(crate) struct HitPlace {
    pub(crate) slot: u32,
    pub(crate) cpu: u32,
    /// Row of [`SCRATCH`] under [`params::CLAIM`].
    pub(crate) claimed: u32,
}

impl HitPlace {
    /// Memory for the strings that filters fetch, if any do.
    #[inline(always)]
    pub(crate) fn scratch(&self) -> Option<*mut u8> {
        if param!(bits) & params::FILTER_SCRATCH == 0 {
            return Some(core::ptr::null_mut());
        }
        // SAFETY: the filters' area follows the record's area, inside the value.
        area(self.cpu, self.claimed).map(|area| unsafe { area.add(RECORD_AREA) })
    }
}

/// Filters a hit. Returns the common fields of its record; counts a hit that has none.
#[inline(always)]
pub(crate) fn filter(
    ctx: *mut c_void,
    mut source: HitSource,
    place: HitPlace,
    counters: &mut Counters,
) -> Option<u64> {
    let mut word = 0;
    if param!(bits) & params::FILTER != 0 {
        word = source.common(ctx, place.cpu, param!(bits) & params::FILTER_FLAGS != 0);
        let Some(scratch) = place.scratch() else {
            count_dropped(counters);
            return None;
        };
        // SAFETY: the generated function fulfils its contract; the verifier checks it with the caller's state.
        if unsafe { tracer_filter(ctx, scratch, word) } == 0 {
            count(&mut counters.filtered);
            debug_log!(ctx, "slot {} cpu {}: filtered", param!(slot), place.cpu);
            return None;
        }
        if param!(bits) & params::OWN_LATE != 0 && source.origin.is_task() {
            source.thread = ids(current());
            if is_ignored(source.thread) {
                count(&mut counters.filtered);
                return None;
            }
        }
    }
    if param!(bits) & (params::FILTER | params::FILTER_FLAGS) != params::FILTER | params::FILTER_FLAGS {
        word = source.common(ctx, place.cpu, true);
    }
    Some(word)
}

/// Bits of programs that do more than record: see [`trigger`](crate::trigger).
const EXTENDED_PATH: u32 =
    params::TRIGGERS | params::SOFT | params::KERNEL_STACK | params::USER_STACK | params::NO_RECORD;

/// Processes one hit: early checks, triggers, filter and record. Returns the actions that triggers requested, bits of
/// [`tracer_abi::requested`].
#[inline(always)]
pub fn hit(ctx: *mut c_void, origin: Origin) -> u64 {
    if param!(bits) & EXTENDED_PATH != 0 {
        crate::trigger::hit(ctx, origin)
    } else {
        plain(ctx, origin);
        0
    }
}

/// Processes one hit: early checks, filter and record.
#[inline(always)]
fn plain(ctx: *mut c_void, origin: Origin) {
    if is_other_call(ctx) {
        return;
    }
    let Some(switches) = SWITCHES.get(0) else { return };
    // SAFETY: a looked-up map value is valid for the program's run.
    let switches = unsafe { &*switches.as_ptr() };
    if switches.halted != 0 {
        return;
    }
    let Some(thread) = admit(ctx, origin) else { return };
    if param!(bits) & params::PID_LISTS != 0
        && switches.lists != 0
        && excluded_by_lists(switches.lists as u8, thread as u32, ctx)
    {
        return;
    }
    let (slot, kind) = identity(ctx);
    let cpu = origin.cpu(ctx);
    let Some(counters) = counts(slot, cpu) else { return };
    let mut claimed = 0;
    if param!(bits) & params::CLAIM != 0 {
        let Some(row) = claim(cpu) else {
            count_dropped(counters);
            return;
        };
        claimed = row;
    }
    let place = HitPlace { slot, cpu, claimed };
    if let Some(word) = filter(ctx, HitSource { origin, thread, kind }, place, counters) {
        record(ctx, cpu, word, claimed, counters);
    }
    if param!(bits) & params::CLAIM != 0 {
        release(claimed);
    }
}

/// Writes the record and counts it as recorded or dropped.
#[inline(always)]
pub(crate) fn record(ctx: *mut c_void, cpu: u32, common: u64, claimed: u32, counters: &mut Counters) {
    let Some(ring) = Ring::of(cpu) else {
        count_dropped(counters);
        return;
    };
    count(&mut counters.passed);
    // Read the clock before reserving space in the ring. A hit that interrupts the program is then younger, as in the
    // kernel.
    // SAFETY: the helper has no requirements.
    let now = unsafe { bpf_ktime_get_ns() };
    let recorded = if param!(size) != 0 {
        match ring.reserve(now, u64::from(param!(size))) {
            Some(place) => {
                // SAFETY: the reservation holds common fields and payload.
                unsafe {
                    place.write(common);
                    tracer_record(ctx, place.cast());
                }
                ring.commit();
                true
            }
            None => false,
        }
    } else if let Some(place) = area(cpu, claimed) {
        let place = place.cast::<u64>();
        // SAFETY: the scratch value has space for common fields and the largest payload.
        let length = unsafe {
            place.write(common);
            tracer_record(ctx, place.cast())
        };
        let length = if length > MAX_PAYLOAD as u64 { MAX_PAYLOAD as u64 } else { length };
        // SAFETY: `length` bytes were written.
        unsafe { ring.output(now, place, length) }
    } else {
        false
    };
    if recorded {
        count(&mut counters.recorded);
        debug_log!(ctx, "slot {} cpu {}: recorded", param!(slot), cpu);
    } else {
        count(&mut counters.dropped);
        debug_log!(ctx, "slot {} cpu {}: the ring is full", param!(slot), cpu);
    }
}
