//! Synthetic events of a mirror, emitted in the kernel from any aya-ebpf program: the in-kernel event API for BPF.
//!
//! The mirror runs with `tracer mount --pin DIR`, where DIR is on a BPF file system. The user defines an event there,
//! for example `echo 'long_wait pid_t pid; char[16] comm; u64 wait_us' > synthetic_events`. A program that emits it
//! declares the event:
//!
//! ```ignore
//! synth_event! {
//!     mod long_wait: "long_wait" at tracepoint {
//!         "pid_t" pid: i32,
//!         "char[16]" comm: &mut [u8; 16],
//!         "u64" wait_us: u64,
//!     }
//! }
//! ```
//!
//! The program emits it from a BPF program of the declared kind (`raw_tracepoint`, `tracepoint`, `perf_event`, or
//! `kprobe`, which also covers uprobes):
//!
//! ```ignore
//! let _ = synth_event_trace!(long_wait, &ctx, pid, &mut comm, waited / 1000);
//! ```
//!
//! The loader finds the maps by their names: `EbpfLoader::new().map_pin_path(DIR)` (or `default_map_pin_directory`,
//! from aya 0.14 on). The mirror and the program can start in any order; the first of them creates the maps.
//!
//! While the event is disabled, or without a mirror, an emission costs one array lookup. While it is enabled, the
//! emission passes the record through the filter and triggers of each instance that enables it, in the kernel. The
//! stack frames of the program down to the emission may use 256 bytes. The program must be built with type
//! information: `-Cdebuginfo=2 -Clink-arg=--btf`. An emission never waits for another process. A killed mirror
//! therefore blocks no program, and the next mirror with the same directory adopts the event.
#![no_std]
#![feature(asm_experimental_arch)]

pub use aya_ebpf;
use aya_ebpf::{
    EbpfContext,
    maps::{Array, PerCpuArray},
};
pub use tracer_abi;
use tracer_abi::{EMIT_FIELDS, Emitting, Stage};

/// Why an enabled event was not emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitError {
    /// The event in the mirror has different fields.
    Fields,
    /// This emission interrupted another emission of the same event on this CPU.
    Busy,
}

/// A value for a field.
pub trait EmitValue {
    /// Whether it is a string.
    const TEXT: bool;
    /// Size in bytes of a number; 0 for a string.
    const SIZE: usize;

    /// The number, or the address of the string.
    fn word(self) -> u64;
}

macro_rules! numbers {
    ($($ty:ty),+) => {
        $(impl EmitValue for $ty {
            const TEXT: bool = false;
            const SIZE: usize = size_of::<$ty>();

            #[inline(always)]
            fn word(self) -> u64 {
                self as u64
            }
        })+
    };
}

numbers!(u8, u16, u32, u64, i8, i16, i32, i64, bool);

/// A string in the program's own memory. The last byte becomes the terminating NUL.
impl<const N: usize> EmitValue for &mut [u8; N] {
    const TEXT: bool = true;
    const SIZE: usize = 0;

    #[inline(always)]
    fn word(self) -> u64 {
        self[N - 1] = 0;
        self.as_ptr() as u64
    }
}

/// A string in kernel memory, such as a task's name. The kernel reads it as `bpf_probe_read_kernel_str` does.
impl EmitValue for *const u8 {
    const TEXT: bool = true;
    const SIZE: usize = 0;

    #[inline(always)]
    fn word(self) -> u64 {
        self as u64
    }
}

/// Size in bytes of a numeric type of event definitions; 0 for a string.
///
/// # Panics
/// At compile time, if the type does not exist or cannot be emitted.
pub const fn size(ty: &str) -> usize {
    const TYPES: [(&str, usize); 17] = [
        ("s64", 8),
        ("u64", 8),
        ("s32", 4),
        ("u32", 4),
        ("s16", 2),
        ("u16", 2),
        ("s8", 1),
        ("u8", 1),
        ("char", 1),
        ("unsigned char", 1),
        ("int", 4),
        ("unsigned int", 4),
        ("long", 8),
        ("unsigned long", 8),
        ("bool", 1),
        ("pid_t", 4),
        ("gfp_t", 4),
    ];
    let mut at = 0;
    while at < TYPES.len() {
        if same(ty.as_bytes(), TYPES[at].0.as_bytes(), false) {
            return TYPES[at].1;
        }
        at += 1;
    }
    assert!(same(ty.as_bytes(), b"char[", true), "no type of synthetic events");
    0
}

const fn same(text: &[u8], other: &[u8], start: bool) -> bool {
    if text.len() < other.len() || (!start && text.len() > other.len()) {
        return false;
    }
    let mut at = 0;
    while at < other.len() {
        if text[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// Whether a Rust type matches a type of event definitions.
pub const fn fits<V: EmitValue>(ty: &str) -> bool {
    let size = size(ty);
    V::TEXT == (size == 0) && V::SIZE == size
}

/// Emits an event: stages the values, and calls `jump` to enter the mirror's program.
///
/// # Errors
/// If the event is enabled and could not be emitted.
#[inline(always)]
pub fn emit<const N: usize>(
    state: &Array<Emitting>,
    stage: &PerCpuArray<Stage>,
    layout: u64,
    values: [u64; N],
    jump: impl FnOnce() -> i32,
) -> Result<(), EmitError> {
    const { assert!(N <= EMIT_FIELDS, "more fields than a synthetic event has") };
    let Some(state) = state.get(0) else { return Ok(()) };
    if state.on == 0 {
        return Ok(());
    }
    if state.layout != layout {
        return Err(EmitError::Fields);
    }
    let Some(stage) = stage.get_ptr_mut(0) else { return Ok(()) };
    // SAFETY: the stage belongs to this CPU; the emission that found it free owns it until the release below.
    unsafe {
        let busy = &raw mut (*stage).busy;
        let mut before = 1_u64;
        core::arch::asm!("{value} = xchg_64({busy} + 0, {value})", value = inout(reg) before, busy = in(reg) busy);
        if before != 0 {
            let lost = &raw mut (*stage).lost;
            core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) lost, in(reg) 1_u64);
            return Err(EmitError::Busy);
        }
        let mut at = 0;
        while at < N {
            (&raw mut (*stage).values).cast::<u64>().add(at).write_volatile(values[at]);
            at += 1;
        }
        jump();
        busy.write_volatile(0);
    }
    Ok(())
}

/// Tail-calls the program in a table. That program returns to the caller of the function that contains this call. The
/// kernel requires the containing function to return a number and to have BTF types.
#[inline(always)]
pub fn jump<C: EbpfContext>(ctx: &C, table: &aya_ebpf::maps::ProgramArray) -> i32 {
    // SAFETY: no value needs a drop if the call does not return.
    unsafe { table.tail_call(ctx, 0) };
    0
}

/// Declares a synthetic event and the kind of programs that emit it: expands to a module with a function `trace`.
#[macro_export]
macro_rules! synth_event {
    (@suffix raw_tracepoint) => { "_raw_tp" };
    (@suffix tracepoint) => { "_tp" };
    (@suffix kprobe) => { "_kprobe" };
    (@suffix perf_event) => { "_perf_event" };
    (@context raw_tracepoint) => { $crate::aya_ebpf::programs::RawTracePointContext };
    (@context tracepoint) => { $crate::aya_ebpf::programs::TracePointContext };
    (@context kprobe) => { $crate::aya_ebpf::programs::ProbeContext };
    (@context perf_event) => { $crate::aya_ebpf::programs::PerfEventContext };
    ($(#[$meta:meta])* $vis:vis mod $module:ident: $name:literal at $kind:ident {
        $($ty:literal $field:ident: $value:ty),+ $(,)?
    }) => {
        $(#[$meta])*
        $vis mod $module {
            use $crate::aya_ebpf::maps::{Array, PerCpuArray, ProgramArray};
            use $crate::tracer_abi::{self, Emitting, Stage};

            #[unsafe(link_section = "maps")]
            #[unsafe(export_name = concat!($name, "_state"))]
            static STATE: Array<Emitting> = Array::pinned(1, 0);
            #[unsafe(link_section = "maps")]
            #[unsafe(export_name = concat!($name, "_stage"))]
            static STAGE: PerCpuArray<Stage> = PerCpuArray::pinned(1, 0);
            #[unsafe(link_section = "maps")]
            #[unsafe(export_name = concat!($name, $crate::synth_event!(@suffix $kind)))]
            static TABLE: ProgramArray = ProgramArray::pinned(1, 0);

            const LAYOUT: u64 = {
                let hash = tracer_abi::LAYOUT;
                $(
                    assert!($crate::fits::<$value>($ty), "the Rust type does not go with the field's");
                    let hash = tracer_abi::layout(hash, concat!($ty, " ", stringify!($field), ";").as_bytes());
                )+
                hash
            };

            // A tail call does not return to its function, so it needs a separate function.
            #[inline(never)]
            fn jump(ctx: &$crate::synth_event!(@context $kind)) -> i32 {
                $crate::jump(ctx, &TABLE)
            }

            /// Emits the event if it is enabled.
            ///
            /// # Errors
            /// If it is enabled and could not be emitted.
            #[inline(always)]
            pub fn trace(
                ctx: &$crate::synth_event!(@context $kind),
                $($field: $value),+
            ) -> Result<(), $crate::EmitError> {
                let values = [$($crate::EmitValue::word($field)),+];
                $crate::emit(&STATE, &STAGE, LAYOUT, values, || jump(ctx))
            }
        }
    };
}

/// Emits a synthetic event that [`synth_event!`] declared: takes its module, the program's context, and a value for
/// each field.
#[macro_export]
macro_rules! synth_event_trace {
    ($module:ident, $ctx:expr, $($value:expr),+ $(,)?) => {
        $module::trace($ctx, $($value),+)
    };
}
