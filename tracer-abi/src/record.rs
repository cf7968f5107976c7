//! The record in a ring: a word with the time, then the payload. The event's `format` file describes the payload byte
//! for byte, common fields first.

/// Bytes before every payload in a ring: time and length ([`ring::record_head`](crate::ring::record_head)). In scratch
/// memory and in control records, the time of the hit: `CLOCK_MONOTONIC` nanoseconds (u64).
pub const STAMP_SIZE: usize = 8;

/// Size in bytes of the common fields at the start of every payload (`common_type` u16, `common_flags` u8,
/// `common_preempt_count` u8, `common_pid` i32): `struct trace_entry`, include/linux/trace_events.h.
pub const COMMON_SIZE: usize = 8;

/// The common fields of a payload.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// The event's id (`events/SYS/NAME/id`), or one of [`control`] for a control record.
    pub kind: u16,
    /// [`flags`] bits.
    pub flags: u8,
    /// Preemption depth in the low four bits, migrate-disable depth in the high four.
    pub preempt_count: u8,
    /// Thread id in the initial pid namespace.
    pub pid: i32,
}

const _: () = assert!(size_of::<Common>() == COMMON_SIZE);

/// Values of [`Common::flags`], `enum trace_flag_type` of include/linux/trace_events.h.
pub mod flags {
    /// Interrupts were off.
    pub const IRQS_OFF: u8 = 0x01;
    /// A lazy reschedule was pending (6.12 and later; older kernels: "irq state unknown").
    pub const NEED_RESCHED_LAZY: u8 = 0x02;
    /// A reschedule was pending (`TIF_NEED_RESCHED`).
    pub const NEED_RESCHED: u8 = 0x04;
    /// In a hard interrupt.
    pub const HARDIRQ: u8 = 0x08;
    /// In a soft interrupt.
    pub const SOFTIRQ: u8 = 0x10;
    /// A preemptive reschedule was pending.
    pub const PREEMPT_RESCHED: u8 = 0x20;
    /// In a non-maskable interrupt.
    pub const NMI: u8 = 0x40;
    /// Bottom halves were disabled.
    pub const BH_OFF: u8 = 0x80;
}

/// Values of [`Common::kind`] that mark control records. Event ids stay below `0xff00`: `TRACE_EVENT_TYPE_MAX` is
/// higher, but no kernel has so many events.
pub mod control {
    /// First control value; all lower values are event ids.
    pub const FIRST: u16 = 0xff00;
    /// A trigger requests a snapshot of the records up to this time.
    pub const SNAPSHOT: u16 = 0xfff0;
    /// A histogram has counted a hit that a reader waits for.
    pub const HIST: u16 = 0xfff1;
    /// A ring has passed its watermark.
    pub const FULL: u16 = 0xfff2;
}
