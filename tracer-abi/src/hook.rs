//! The seam between templates and generated code: symbols that a template leaves undefined and
//! `code::link` defines, and the parameters that are fixed when a program is loaded.

/// `fn tracer_filter(ctx: *mut c_void, scratch: *mut u8, common: u64) -> u64`: not 0 when the hit is to be
/// recorded. `scratch` points to [`FILTER_AREA`](crate::FILTER_AREA) bytes of map memory for strings that a
/// filter fetches, and is null in a program whose filter fetches none. `common` is a
/// [`Common`](crate::Common) in one word; its flags and preempt count are filled only under
/// [`params::FILTER_FLAGS`].
pub const FILTER: &str = "tracer_filter";

/// `fn tracer_record(ctx: *mut c_void, payload: *mut u8) -> u64`: writes everything behind the common
/// fields to `payload` (which points at the payload's first byte, common fields included) and returns the
/// payload's whole length in bytes.
pub const RECORD: &str = "tracer_record";

/// `fn tracer_trigger(ctx: *mut c_void, scratch: *mut u8, common: u64, switches: *mut Switches) -> u64`: what the
/// event's triggers do to [`Switches`](crate::Switches) at a hit, each if its filter takes it; bits of [`asked`] for what
/// they leave to the template. The first three arguments are those of [`FILTER`], flags and preempt count always
/// filled; without [`params::SEES_RECORD`] the second is null and the third 0.
pub const TRIGGER: &str = "tracer_trigger";

/// What [`TRIGGER`] asks of the template.
pub mod asked {
    /// A control record for a snapshot.
    pub const SNAPSHOT: u64 = 1;
    /// A record of the kernel's stack.
    pub const STACK: u64 = 1 << 1;
}

/// Name of the constant in every template that holds its [`Params`].
pub const PARAMS: &str = "PARAMS";

/// What is fixed when a program is loaded. It lies in frozen read-only memory, so that the verifier knows the
/// values and removes the branches they rule out.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// Bits of [`params`].
    pub bits: u32,
    /// Row of [`COUNTERS`](crate::COUNTERS).
    pub slot: u32,
    /// Number of CPUs, columns of [`COUNTERS`](crate::COUNTERS).
    pub cpus: u32,
    /// Payload size in bytes when every record has the same; 0 when the length varies.
    pub size: u32,
    /// Process id of the tracer in the initial pid namespace; its threads are not traced. 0: trace
    /// all.
    pub own_tgid: u32,
    /// Event id, `common_type`.
    pub kind: u32,
    /// Byte offset in `task_struct` of what [`params::COMPAT`] tests.
    pub compat_offset: u32,
    /// Bits of that word that mean a 32-bit system call.
    pub compat_mask: u32,
    /// Byte offset in `task_struct` of `thread_info.preempt_count` under [`params::PREEMPT_TASK`].
    pub preempt_offset: u32,
    /// What a hit of this kind of hook adds to the preempt count by itself; negative (as `i32`) where the kernel's own record
    /// is made deeper.
    pub preempt_bias: u32,
    /// Bytes in a CPU's ring buffer from which on the reader is woken.
    pub watermark: u32,
    /// Under [`params::OTHER_IN_RECORD`] the byte offset in the context of the other thread's id; under
    /// [`params::OTHER_IN_TASK`] its byte offset in the `task_struct` that an argument points to.
    pub other_offset: u32,
    /// That argument's number.
    pub other_arg: u32,
    /// Under [`params::ONE_CALL`] the number of the system call; under [`params::BY_CALL`] where it is at its exit.
    pub call: u32,
    /// Byte offset of `pid` in `task_struct` under [`params::TASK`].
    pub task_pid: u32,
    /// Byte offset of `tgid`.
    pub task_tgid: u32,
    /// Rows of the table of counters under [`params::ONE_TABLE`].
    pub rows: u32,
    /// The kind of records of the kernel's stack, and in the upper half that of a thread's own stack.
    pub stacks: u32,
    /// Under [`params::SOFT`] the place in [`Switches::soft`](crate::Switches::soft), unless the slot is told by the cookie or the call.
    pub soft: u32,
}

/// Bits of [`Params::bits`].
pub mod params {
    /// Numbers the bits in the order of their names, so that no two are the same.
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
        /// The filter fetches strings and wants scratch memory.
        FILTER_SCRATCH,
        /// The filter looks at `common_flags` or `common_preempt_count`.
        FILTER_FLAGS,
        /// Only threads in [`PIDS`](crate::PIDS) are traced.
        PIDS,
        /// 32-bit system calls are skipped.
        COMPAT,
        /// The preempt count is read at the address in [`CPU_BASES`](crate::CPU_BASES).
        PREEMPT_CPU,
        /// The preempt count is read from the current task.
        PREEMPT_TASK,
        /// A hit is traced too when the thread whose id is in the context is (`next_pid` of sched_switch).
        OTHER_IN_RECORD,
        /// The same, with an argument of a raw tracepoint that points to the thread's `task_struct`.
        OTHER_IN_TASK,
        /// The event only ever happens with interrupts off.
        IRQS_OFF,
        /// Only threads of [`Params::own_tgid`](super::Params::own_tgid) are traced, in place of all others.
        OWN_ONLY,
        /// Of all hits of raw `sys_enter` only those of one system call are taken.
        ONE_CALL,
        /// The lists of threads that [`Switches::lists`](crate::Switches::lists) names are in force.
        PID_LISTS,
        /// The current thread's ids are read from its `task_struct`: one call of a helper serves them and
        /// [`params::COMPAT`](COMPAT).
        TASK,
        /// Whose hit it is, is asked behind the filter, which is cheaper: our own hits that it drops count as dropped by it,
        /// and so do those that it lets pass.
        OWN_LATE,
        /// [`COUNTERS`](crate::COUNTERS) is one value that holds all rows.
        ONE_TABLE,
        /// Slot and kind come from the attach cookie, so that events share the program: see [`cookie`](super::cookie).
        COOKIE,
        /// Slot and kind are those of the system call that is going on, in [`CALLS`](crate::CALLS), so that events share the
        /// program. The number is the second argument or, where [`Params::call`](super::Params::call) is not 0, an `int`
        /// so many bytes behind where the first points to.
        BY_CALL,
        /// Programs of this kind can be preempted by themselves on a CPU: counters are counted atomically.
        NESTS,
        /// So they can, and this one wants [`SCRATCH`](crate::SCRATCH): a CPU has [`CLAIMS`](crate::CLAIMS) values of it, which
        /// hits claim.
        CLAIM,
        /// The program has triggers.
        TRIGGERS,
        /// The triggers see the record: they run behind the lists of threads and before the event's own filter.
        SEES_RECORD,
        /// A trigger turns recording on, which counts for a hit that is filtered.
        TURNS_ON,
        /// A trigger that turns recording off comes behind the one that records the stack.
        STACK_FIRST,
        /// The event can be turned off by [`Switches::soft`](crate::Switches::soft).
        SOFT,
        /// Every record is followed by one of the kernel's stack.
        KERNEL_STACK,
        /// Every record is followed by one of the thread's own stack.
        USER_STACK,
        /// Nothing is recorded by the program: it runs triggers only.
        NO_RECORD,
        /// Several programs count in the row at once: counters are counted atomically.
        SHARED_ROW,
        /// The preempt count is eight bytes, the upper half 0 when a reschedule is pending (arm64); otherwise that
        /// is said by bit 31 of four bytes being clear (x86).
        PREEMPT_SPLIT,
    }
}

const _: () = assert!(size_of::<Params>() == 76);

impl Params {
    /// The bytes as the program reads them.
    pub fn bytes(&self) -> [u8; 76] {
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
        ];
        let mut bytes = [0; 76];
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
