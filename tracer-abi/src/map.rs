//! Names, keys and values of the maps that programs and user space share.

/// `ARRAY_OF_MAPS`: CPU number to that CPU's `RINGBUF`.
pub const RINGS: &str = "RINGS";
/// `ARRAY`, mmapable: `slot * cpus + cpu` to [`Counters`].
pub const COUNTERS: &str = "COUNTERS";
/// `ARRAY` of one [`Switches`], mmapable.
pub const SWITCHES: &str = "SWITCHES";
/// `HASH`: thread id (u32, initial pid namespace) to a byte of [`lists`] bits: which lists the thread is in.
pub const PIDS: &str = "PIDS";
/// `ARRAY`: CPU number to [`SCRATCH_SIZE`] bytes. One map serves all programs that cannot nest on a CPU
/// (perf tracepoints: `bpf_prog_active`); a raw tracepoint program has its own.
pub const SCRATCH: &str = "SCRATCH";
/// `ARRAY`: row of [`SCRATCH`] to a word that is not 0 while a hit has that row, under [`params::CLAIM`](crate::params::CLAIM).
pub const CLAIMED: &str = "CLAIMED";
/// `ARRAY`: CPU number to the address (u64) of that CPU's `__preempt_count`, 0 when it is not known.
pub const CPU_BASES: &str = "CPU_BASES";
/// `ARRAY`: CPU number to two words that the search for the preempt count found: an address, and what lies there.
pub const FOUND: &str = "FOUND";
/// `PROG_ARRAY`: syscall number to the program of its event; one for `sys_enter`, one for `sys_exit`.
pub const SYSCALLS: &str = "SYSCALLS";
/// `ARRAY`: under [`params::BY_CALL`](crate::params::BY_CALL), syscall number, and [`CALL_NUMBERS`] more for its exit, to the
/// event's [`cookie`](crate::cookie).
pub const CALLS: &str = "CALLS";
/// Numbers of system calls are below; the table of a dispatcher has so many places.
pub const CALL_NUMBERS: u32 = 1024;

/// `HASH`: process id (u32, initial pid namespace) to when that process began to take part in user events (u64, nanoseconds of
/// `CLOCK_MONOTONIC`): no other process with its id has the same. At [`TASKS_LOST`] it is not 0 when something happened to one of
/// them that [`TASK_RING`] had no room for.
pub const TASKS: &str = "TASKS";
/// The key in [`TASKS`] that is no process's.
pub const TASKS_LOST: u32 = 0;
/// `RINGBUF`: a [`TaskEvent`] each.
pub const TASK_RING: &str = "TASK_RING";

/// What became of a process that takes part in user events.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskEvent {
    /// One of [`task_event`].
    pub kind: u32,
    /// Its id, in the initial pid namespace.
    pub task: u32,
    /// Its child's.
    pub other: u32,
    /// Whether the two have their memory in common.
    pub shares: u32,
    /// When the child was born, or when the one that is gone began to take part: the value of [`TASKS`].
    pub time: u64,
}

const _: () = assert!(size_of::<TaskEvent>() == 24);

/// Kinds of [`TaskEvent`].
pub mod task_event {
    /// It has a child.
    pub const FORK: u32 = 1;
    /// It ended, or runs another program.
    pub const GONE: u32 = 2;
}

/// Largest payload in bytes, as the kernel's perf records (`PERF_MAX_TRACE_SIZE`).
pub const MAX_PAYLOAD: usize = 8192;
/// Byte offset in an injection program's context of the record's length in bytes (u32); in front of it lies the
/// record, and behind the record zeroes.
pub const INJECT_LENGTH: usize = MAX_PAYLOAD;
/// Byte offset in that context of the CPU (u32) that the record's writer is on.
pub const INJECT_CPU: usize = INJECT_LENGTH + 4;
/// Byte offset of the writer's name, 16 bytes with its NULs.
pub const INJECT_COMM: usize = INJECT_CPU + 4;
/// Size in bytes of that context.
pub const INJECT_SIZE: usize = INJECT_COMM + 16;

/// Bytes of a [`SCRATCH`] value in which a payload of variable length is built, stamp in front. Twice the
/// largest payload, so that a masked offset plus a masked length stays inside for the verifier.
pub const RECORD_AREA: usize = 2 * MAX_PAYLOAD;
/// Bytes of a [`SCRATCH`] value, behind the record area, for strings that a filter fetches.
pub const FILTER_AREA: usize = 2 * MAX_PAYLOAD;
/// Bytes behind a [`SCRATCH`] value, in programs of event probes on other dynamic events: the record of that event.
pub const BASE_AREA: usize = 2 * MAX_PAYLOAD;
/// Values of [`SCRATCH`] that a CPU has under [`params::CLAIM`](crate::params::CLAIM): hits of this many threads can be under
/// way on one.
pub const CLAIMS: u32 = 4;
/// Words of a [`CLAIMED`] value, of which the first counts: CPUs do not share lines of their caches.
pub const CLAIM_WORDS: usize = 8;
/// Size in bytes of a [`SCRATCH`] value.
pub const SCRATCH_SIZE: usize = RECORD_AREA + FILTER_AREA;

/// One event's counts on one CPU. `passed == recorded + dropped` whenever no hit is in flight. A hit is counted as often as
/// its way is long: one that the filter drops, the commonest and cheapest, once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Hits that the filter let pass, or that met none.
    pub passed: u64,
    /// Hits that the filter dropped.
    pub filtered: u64,
    /// Hits written to the ring buffer.
    pub recorded: u64,
    /// Hits lost because the ring buffer was full.
    pub dropped: u64,
}

const _: () = assert!(size_of::<Counters>() == 32);

impl Counters {
    /// Hits that passed the gates (tracing on, pid, not our own thread).
    pub fn hits(&self) -> u64 {
        self.passed + self.filtered
    }

    /// Counts together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            filtered: self.filtered + other.filtered,
            recorded: self.recorded + other.recorded,
            dropped: self.dropped + other.dropped,
        }
    }

    /// Counts that came since others, which are part of them.
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

/// Slots whose events can be turned on and off by triggers; a power of two. A session with more of them has none such
/// behind these.
pub const SOFT_SLOTS: usize = 8192;
/// Triggers of a session that can be counted.
pub const TRIGGER_COUNTS: usize = 4096;

/// Histograms of a session; their words lie where one instruction reaches them from the beginning.
pub const HISTS: usize = 2048;

/// Words that user space and triggers flip while programs run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    /// Bits of [`halted`]: why hits are not recorded; 0 while they are.
    pub halted: u32,
    /// Bits of [`lists`]: which lists of threads are in force. Only programs with
    /// [`params::PID_LISTS`](crate::params::PID_LISTS) look at it.
    pub lists: u32,
    /// Not 0 when a snapshot was asked for and its control record found the ring full.
    pub snapshot: u32,
    /// Nothing.
    pub padding: u32,
    /// By histogram: not 0 while it does not count.
    pub paused: [u32; HISTS],
    /// By histogram: what is asked of the next hit that it counts, one of [`hist`]; 0 once there was one.
    pub awaited: [u32; HISTS],
    /// By slot: not 0 while an event's hits are not recorded although it hangs on its hook. Only programs with
    /// [`params::SOFT`](crate::params::SOFT) look at it.
    pub soft: [u32; SOFT_SLOTS],
    /// By trigger: how often it may still act; below 0 is as good as 0.
    pub counts: [u64; TRIGGER_COUNTS],
}

const _: () = assert!(size_of::<Switches>() == 16 + 8 * HISTS + 4 * SOFT_SLOTS + 8 * TRIGGER_COUNTS);

/// What [`Switches::awaited`] asks for.
pub mod hist {
    /// To say that there was one.
    pub const NOTE: u32 = 1;
    /// To tell somebody too who waits for it, by a record of the kind [`control::HIST`](crate::control::HIST).
    pub const WAKE: u32 = 2;
}

/// Bits of [`Switches::halted`].
pub mod halted {
    /// `tracing_on` is 0.
    pub const OFF: u32 = 1;
    /// Somebody reads who does not want to be disturbed (`pause-on-trace`).
    pub const PAUSED: u32 = 1 << 1;
}

/// Lists of threads, bits of [`Switches::lists`] and of the bytes in [`PIDS`].
pub mod lists {
    /// Threads that are traced, and no others (`set_event_pid`).
    pub const TRACED: u8 = 1;
    /// Threads that are not traced (`set_event_notrace_pid`).
    pub const UNTRACED: u8 = 1 << 1;
}
