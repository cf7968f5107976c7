//! The interface between templates and generated code: the symbols that a template leaves undefined and `code::link`
//! defines, and the parameters that are constant after a program is loaded.

/// `fn tracer_filter(ctx: *mut c_void, scratch: *mut u8, common: u64) -> u64`: returns nonzero if the template
/// records the hit. `scratch` points to [`FILTER_AREA`](crate::FILTER_AREA) bytes of map memory for strings that the
/// filter fetches. It is null in a program whose filter fetches none. `common` is a [`Common`](crate::Common) in one
/// word; its flags and preempt count are filled only under [`params::FILTER_FLAGS`].
pub const FILTER: &str = "tracer_filter";

/// `fn tracer_record(ctx: *mut c_void, payload: *mut u8) -> u64`: writes everything after the common fields to
/// `payload` and returns the length of the whole payload in bytes. `payload` points to the first byte of the payload,
/// common fields included.
pub const RECORD: &str = "tracer_record";

/// `fn tracer_trigger(ctx: *mut c_void, scratch: *mut u8, common: u64, switches: *mut Switches) -> u64`: runs the
/// event's triggers, each if its filter accepts the hit. The triggers write to [`Switches`](crate::Switches). The
/// result has the bits of [`requested`] for the actions that the template performs. The first three arguments are
/// those of [`FILTER`], with flags and preempt count always filled. Without [`params::SEES_RECORD`], the second is
/// null and the third is 0.
pub const TRIGGER: &str = "tracer_trigger";

/// Actions that [`TRIGGER`] requests from the template.
pub mod requested {
    /// Write a control record for a snapshot.
    pub const SNAPSHOT: u64 = 1;
    /// Write a record of the kernel stack.
    pub const STACK: u64 = 1 << 1;
}

/// Name of the constant that holds the [`Params`] in every template.
pub const PARAMS: &str = "PARAMS";

/// Parameters that are constant after a program is loaded. They are in frozen read-only memory, so the verifier knows
/// the values and removes dead branches.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// Bits of [`params`].
    pub bits: u32,
    /// Slot: row of [`COUNTERS`](crate::COUNTERS).
    pub slot: u32,
    /// Number of CPUs: columns of [`COUNTERS`](crate::COUNTERS).
    pub cpus: u32,
    /// Payload size in bytes if all records have the same size; 0 if the length varies.
    pub size: u32,
    /// Process id of the tracer in the initial pid namespace; its threads are not traced. 0: all processes are traced.
    pub own_tgid: u32,
    /// Event id, `common_type`.
    pub kind: u32,
    /// Byte offset in `task_struct` of the word that [`params::COMPAT`] tests.
    pub compat_offset: u32,
    /// Bits of that word that indicate a 32-bit system call.
    pub compat_mask: u32,
    /// Byte offset in `task_struct` of `thread_info.preempt_count` under [`params::PREEMPT_TASK`].
    pub preempt_offset: u32,
    /// Amount that a hit of this kind of hook adds to the preempt count. It is negative (as `i32`) where the kernel
    /// makes its own record at a greater depth.
    pub preempt_bias: u32,
    /// Number of words in a CPU's [ring](crate::ring) at which the program wakes the reader.
    pub watermark: u32,
    /// Under [`params::OTHER_IN_RECORD`]: byte offset of the other thread's id in the context. Under
    /// [`params::OTHER_IN_TASK`]: byte offset of its id in the `task_struct` that an argument points to.
    pub other_offset: u32,
    /// Number of that argument.
    pub other_arg: u32,
    /// Under [`params::ONE_CALL`]: the system call number. Under [`params::BY_CALL`]: its byte offset in the registers
    /// at the exit of the call.
    pub call: u32,
    /// Byte offset of `pid` in `task_struct` under [`params::TASK`].
    pub task_pid: u32,
    /// Byte offset of `tgid` in `task_struct` under [`params::TASK`].
    pub task_tgid: u32,
    /// Number of rows in the counter table under [`params::ONE_TABLE`].
    pub rows: u32,
    /// Kind of kernel stack records; in the upper half, the kind of user stack records.
    pub stacks: u32,
    /// Under [`params::SOFT`]: index in [`Switches::soft`](crate::Switches::soft), unless the cookie or the system call
    /// determines the slot.
    pub soft: u32,
    /// Number of words in a CPU's [ring](crate::ring), a power of two.
    pub ring_words: u32,
}

/// Bits of [`Params::bits`].
pub mod params {
    /// Numbers the bits in the order of their names, so that each bit is unique.
    macro_rules! bits {
        ($($(#[$doc:meta])* $name:ident,)+) => {
            #[expect(clippy::upper_case_acronyms, non_camel_case_types, reason = "the names of the bits")]
            #[repr(u32)]
            enum Place {
                $($name,)+
            }
            $(
                $(#[$doc])*
                pub const $name: u32 = 1 << Place::$name as u32;
            )+
        };
    }

    bits! {
        /// The program has a filter.
        FILTER,
        /// The filter fetches strings and needs scratch memory.
        FILTER_SCRATCH,
        /// The filter reads `common_flags` or `common_preempt_count`.
        FILTER_FLAGS,
        /// Only threads in [`PIDS`](crate::PIDS) are traced.
        PIDS,
        /// 32-bit system calls are skipped.
        COMPAT,
        /// The preempt count is read at the address in [`CPU_BASES`](crate::CPU_BASES).
        PREEMPT_CPU,
        /// The preempt count is read from the current task.
        PREEMPT_TASK,
        /// A hit is also traced if the thread whose id is in the context is traced (`next_pid` of `sched_switch`).
        OTHER_IN_RECORD,
        /// The same, for an argument of a raw tracepoint that points to the thread's `task_struct`.
        OTHER_IN_TASK,
        /// The event occurs only with interrupts off.
        IRQS_OFF,
        /// Only threads of [`Params::own_tgid`](super::Params::own_tgid) are traced, instead of all others.
        OWN_ONLY,
        /// Raw `sys_enter` only: the program takes the hits of one system call.
        ONE_CALL,
        /// The thread lists that [`Switches::lists`](crate::Switches::lists) names are applied.
        PID_LISTS,
        /// The program reads the current thread's ids from its `task_struct`. One helper call serves both the ids and
        /// [`params::COMPAT`](COMPAT).
        TASK,
        /// The program checks the thread's process after the filter, because the filter is cheaper. Hits of the
        /// tracer's own threads then count as filtered, whether the filter drops them or accepts them.
        OWN_LATE,
        /// [`COUNTERS`](crate::COUNTERS) has one value that holds all rows.
        ONE_TABLE,
        /// Slot and kind come from the attach cookie, so that events can share the program: see
        /// [`cookie`](super::cookie).
        COOKIE,
        /// Slot and kind are those of the current system call in [`CALLS`](crate::CALLS), so that events can share the
        /// program. The system call number is the second argument. If [`Params::call`](super::Params::call) is not 0,
        /// it is an `int` at that byte offset from the address in the first argument.
        BY_CALL,
        /// A program of this kind can preempt itself on a CPU, so counters are incremented atomically.
        NESTS,
        /// As [`params::NESTS`](NESTS), and the program needs [`SCRATCH`](crate::SCRATCH): a CPU has
        /// [`CLAIMS`](crate::CLAIMS) values of it, and each hit claims one.
        CLAIM,
        /// The program has triggers.
        TRIGGERS,
        /// The triggers read the record: they run after the check of the thread lists and before the event's own
        /// filter.
        SEES_RECORD,
        /// A trigger turns recording on. If the event has a filter or was soft-disabled, this takes effect for the
        /// same hit.
        TURNS_ON,
        /// A trigger that turns recording off comes after the trigger that records the stack.
        STACK_FIRST,
        /// [`Switches::soft`](crate::Switches::soft) can soft-disable the event.
        SOFT,
        /// Every record is followed by a record of the kernel stack.
        KERNEL_STACK,
        /// Every record is followed by a record of the thread's user stack.
        USER_STACK,
        /// The program records nothing and only runs triggers.
        NO_RECORD,
        /// Several programs use the row at once, so counters are incremented atomically.
        SHARED_ROW,
        /// The preempt count has eight bytes; the upper half is 0 if a reschedule is pending (arm64). Otherwise it has
        /// four bytes, and a clear bit 31 means a pending reschedule (x86).
        PREEMPT_SPLIT,
        /// The preempt count has eight bytes, and a clear bit 63 means a pending reschedule (x86, seen on 7.3).
        PREEMPT_LONG,
        /// Bits 16 to 23 of the preempt count are the depth of disabled interrupts, and those of hard interrupts and
        /// NMIs come after them (seen on 7.3).
        PREEMPT_IRQS,
    }
}

const _: () = assert!(size_of::<Params>() == 80);

impl Params {
    /// The bytes in the layout that the program reads.
    pub fn bytes(&self) -> [u8; 80] {
        let words = [
            self.bits,
            self.slot,
            self.cpus,
            self.size,
            self.own_tgid,
            self.kind,
            self.compat_offset,
            self.compat_mask,
            self.preempt_offset,
            self.preempt_bias,
            self.watermark,
            self.other_offset,
            self.other_arg,
            self.call,
            self.task_pid,
            self.task_tgid,
            self.rows,
            self.stacks,
            self.soft,
            self.ring_words,
        ];
        let mut bytes = [0; 80];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// The attach cookie under [`params::COOKIE`]: the slot in the lower half, the kind in the upper.
pub fn cookie(slot: u32, kind: u16) -> u64 {
    u64::from(slot) | u64::from(kind) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_follow_the_layout() {
        let params = Params { bits: 1, slot: 2, kind: 7, watermark: 9, ..Params::default() };
        let bytes = params.bytes();
        let word = |offset: usize| u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap());
        assert_eq!(word(core::mem::offset_of!(Params, slot)), 2);
        assert_eq!(word(core::mem::offset_of!(Params, kind)), 7);
        assert_eq!(word(core::mem::offset_of!(Params, watermark)), 9);
    }
}
