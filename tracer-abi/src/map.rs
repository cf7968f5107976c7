//! Names, keys and values of the maps that programs and user space share.

/// `ARRAY`, mmapable: CPU number to that CPU's [ring](crate::ring).
pub const RINGS: &str = "RINGS";
/// `ARRAY_OF_MAPS`: CPU number to that CPU's `RINGBUF` of [`CONTROL_BYTES`] for control records: a timestamp (u64) and one
/// of [`control`](crate::control) (u64).
pub const CONTROLS: &str = "CONTROLS";
/// Bytes of a CPU's ring buffer of control records: some thousand.
pub const CONTROL_BYTES: u32 = 64 * 1024;
/// `ARRAY`, mmapable: `slot * cpus + cpu` to [`Counters`].
pub const COUNTERS: &str = "COUNTERS";
/// `ARRAY` of one [`Switches`], mmapable.
pub const SWITCHES: &str = "SWITCHES";
/// `HASH`: thread id (u32, initial pid namespace) to a byte of [`lists`] bits, the lists that contain the thread.
pub const PIDS: &str = "PIDS";
/// `ARRAY`: CPU number to [`SCRATCH_SIZE`] bytes. One map serves all programs that cannot nest on a CPU (perf
/// tracepoints: `bpf_prog_active`); a raw tracepoint program has its own map.
pub const SCRATCH: &str = "SCRATCH";
/// `ARRAY`: row of [`SCRATCH`] to a word that is not 0 while a hit uses the row, under
/// [`params::CLAIM`](crate::params::CLAIM).
pub const CLAIMED: &str = "CLAIMED";
/// `ARRAY`: CPU number to the address (u64) of that CPU's `__preempt_count`; 0 if it is unknown.
pub const CPU_BASES: &str = "CPU_BASES";
/// `ARRAY`: CPU number to the two words that the search for the preempt count found: an address and the value there.
pub const FOUND: &str = "FOUND";
/// `PROG_ARRAY`: syscall number to the program of its event. One map serves `sys_enter`, another `sys_exit`.
pub const SYSCALLS: &str = "SYSCALLS";
/// `ARRAY`, under [`params::BY_CALL`](crate::params::BY_CALL): syscall number (plus [`CALL_NUMBERS`] for the exit) to
/// the event's [`cookie`](crate::cookie).
pub const CALLS: &str = "CALLS";
/// Arguments that functions were called with, for the programs at their returns.
pub const ENTRY_ARGS: &str = "ENTRY_ARGS";
/// Not a map: the constant format `%pS`.
pub const SYMBOL_FORMAT: &str = "SYMBOL_FORMAT";
/// Upper bound of system call numbers, and number of entries in a dispatcher's table.
pub const CALL_NUMBERS: u32 = 1024;

/// `HASH`: process id (u32, initial pid namespace) to the time at which that process began to take part in user events
/// (u64, nanoseconds of `CLOCK_MONOTONIC`). The time distinguishes it from other processes with the same id. The value
/// at [`TASKS_LOST`] is not 0 if [`TASK_RING`] had no space for an event.
pub const TASKS: &str = "TASKS";
/// The key in [`TASKS`] that marks lost events. No process has this id.
pub const TASKS_LOST: u32 = 0;
/// `RINGBUF` of [`TaskEvent`] records.
pub const TASK_RING: &str = "TASK_RING";

/// A life-cycle event of a process that takes part in user events.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskEvent {
    /// One of [`task_event`].
    pub kind: u32,
    /// Process id in the initial pid namespace.
    pub task: u32,
    /// Process id of its child, for a fork.
    pub other: u32,
    /// For a fork: 1 if parent and child share their memory, else 0.
    pub shares: u32,
    /// For a fork: the time of the child's birth. Otherwise: the time at which the process began to take part, its
    /// value in [`TASKS`].
    pub time: u64,
}

const _: () = assert!(size_of::<TaskEvent>() == 24);

/// Kinds of [`TaskEvent`].
pub mod task_event {
    /// The process has a new child.
    pub const FORK: u32 = 1;
    /// The process ended or executed another program.
    pub const GONE: u32 = 2;
}

/// Largest payload in bytes, the limit of the kernel's perf records (`PERF_MAX_TRACE_SIZE`).
pub const MAX_PAYLOAD: usize = 8192;
/// Byte offset of the record's length in bytes (u32) in an injection program's context. The record is before it,
/// padded with zeroes.
pub const INJECT_LENGTH: usize = MAX_PAYLOAD;
/// Byte offset in that context of the CPU (u32) of the record's writer.
pub const INJECT_CPU: usize = INJECT_LENGTH + 4;
/// Byte offset of the writer's name in that context: 16 bytes, padded with NULs.
pub const INJECT_COMM: usize = INJECT_CPU + 4;
/// Size in bytes of that context.
pub const INJECT_SIZE: usize = INJECT_COMM + 16;

/// Bytes of a [`SCRATCH`] value for a payload of variable length, with the timestamp first. It is twice the largest
/// payload, so that the verifier sees that a masked offset plus a masked length stays inside.
pub const RECORD_AREA: usize = 2 * MAX_PAYLOAD;
/// Bytes of a [`SCRATCH`] value, after the record area, for strings that a filter fetches.
pub const FILTER_AREA: usize = 2 * MAX_PAYLOAD;
/// Number of [`SCRATCH`] values per CPU under [`params::CLAIM`](crate::params::CLAIM): hits of this many threads can be
/// in progress on one CPU.
pub const CLAIMS: u32 = 4;
/// Words of a [`CLAIMED`] value. Only the first is used; the others keep CPUs on separate cache lines.
pub const CLAIM_WORDS: usize = 8;
/// Size in bytes of a [`SCRATCH`] value.
pub const SCRATCH_SIZE: usize = RECORD_AREA + FILTER_AREA;

/// One event's counts on one CPU. `passed == recorded + dropped` whenever no hit is in progress. A hit that the filter
/// drops, the most common and cheapest case, increments one counter.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Hits that the filter accepted, or that had no filter.
    pub passed: u64,
    /// Hits that the filter dropped.
    pub filtered: u64,
    /// Hits written to the ring.
    pub recorded: u64,
    /// Hits lost because the ring was full.
    pub dropped: u64,
}

const _: () = assert!(size_of::<Counters>() == 32);

impl Counters {
    /// Hits that passed the early checks (tracing on, thread ids, not the tracer's own thread).
    pub fn hits(&self) -> u64 {
        self.passed + self.filtered
    }

    /// Adds both counts.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            filtered: self.filtered + other.filtered,
            recorded: self.recorded + other.recorded,
            dropped: self.dropped + other.dropped,
        }
    }

    /// Subtracts earlier counts, `part`. The result is never below 0.
    #[must_use]
    pub fn minus(self, part: Self) -> Self {
        Self {
            passed: self.passed.saturating_sub(part.passed),
            filtered: self.filtered.saturating_sub(part.filtered),
            recorded: self.recorded.saturating_sub(part.recorded),
            dropped: self.dropped.saturating_sub(part.dropped),
        }
    }
}

/// Number of slots whose events triggers can enable and disable; a power of two. Triggers cannot control events with
/// higher slots.
pub const SOFT_SLOTS: usize = 8192;
/// Maximum number of counted triggers in a session.
pub const TRIGGER_COUNTS: usize = 4096;

/// Maximum number of histograms in a session. The offset of their words fits into one BPF instruction.
pub const HISTS: usize = 2048;

/// Words that user space and triggers change while programs run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    /// Bits of [`halted`], the reasons why hits are not recorded; 0 while they are recorded.
    pub halted: u32,
    /// Bits of [`lists`], the thread lists in force. Only programs with [`params::PID_LISTS`](crate::params::PID_LISTS)
    /// read it.
    pub lists: u32,
    /// Not 0 if a snapshot was requested and the ring of control records had no space for it.
    pub snapshot: u32,
    /// Number of bytes of a system call's user memory that its record has at most (`syscall_user_buf_size`).
    pub user_data: u32,
    /// By histogram: not 0 while it is paused.
    pub paused: [u32; HISTS],
    /// By histogram: the request for its next counted hit, one of [`hist`]. The hit resets it to 0.
    pub awaited: [u32; HISTS],
    /// By slot: not 0 while the hits of an attached event are not recorded. Only programs with
    /// [`params::SOFT`](crate::params::SOFT) read it.
    pub soft: [u32; SOFT_SLOTS],
    /// By trigger: how often it may still act; a value below 0 counts as 0.
    pub counts: [u64; TRIGGER_COUNTS],
}

const _: () = assert!(size_of::<Switches>() == 16 + 8 * HISTS + 4 * SOFT_SLOTS + 8 * TRIGGER_COUNTS);

/// Requests in [`Switches::awaited`].
pub mod hist {
    /// Reset the word, so that user space sees that a hit was counted.
    pub const NOTE: u32 = 1;
    /// Also wake the waiting reader with a record of the kind [`control::HIST`](crate::control::HIST).
    pub const WAKE: u32 = 2;
}

/// Bits of [`Switches::halted`].
pub mod halted {
    /// `tracing_on` is 0.
    pub const OFF: u32 = 1;
    /// A reader paused recording (`pause-on-trace`).
    pub const PAUSED: u32 = 1 << 1;
}

/// Thread lists: bits of [`Switches::lists`] and of the bytes in [`PIDS`].
pub mod lists {
    /// Only these threads are traced (`set_event_pid`).
    pub const TRACED: u8 = 1;
    /// These threads are not traced (`set_event_notrace_pid`).
    pub const UNTRACED: u8 = 1 << 1;
}
