//! Synthetic events of a mirror, emitted in the kernel from any aya-ebpf program: the in-kernel event API for BPF.
//!
//! The mirror runs with `tracer mount --pin DIR`, where DIR is on a BPF file system, and an event is defined there, such as
//! `echo 'long_wait pid_t pid; char[16] comm; u64 wait_us' > synthetic_events`. A program that emits it says what it is,
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
//! and emits it, from a program of that kind (`raw_tracepoint`, `tracepoint`, `perf_event`, or `kprobe`, which is for uprobes as well):
//!
//! ```ignore
//! let _ = synth_event_trace!(long_wait, &ctx, pid, &mut comm, waited / 1000);
//! ```
//!
//! Its loader finds the maps by their names: `EbpfLoader::new().map_pin_path(DIR)` (or `default_map_pin_directory`, from
//! aya 0.14 on). Neither has to come first: whoever does makes the maps.
//!
//! What it costs while the event is off, or there is no mirror, is a look into an array. While it is on, the record goes through
//! filter and triggers in each instance where it is on, in the kernel, at that moment. The frames of the program down to the
//! emission may have 256 bytes of stack, and the program is built with types: `-Cdebuginfo=2 -Clink-arg=--btf`. Nothing of this waits for anybody, and a mirror that is killed leaves nothing that
//! a program could wait for; the next one with the same directory takes the event over.
#![no_std]
#![feature(asm_experimental_arch)]

pub use aya_ebpf;
use aya_ebpf::{
    EbpfContext,
    maps::{Array, PerCpuArray},
};
pub use tracer_abi;
use tracer_abi::{EMIT_FIELDS, Emitting, Stage};

/// Why an event was not emitted that is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The event that the mirror has is one of other fields.
    Fields,
    /// This CPU is in the middle of an emission of the same event, which this one interrupted.
    Busy,
}

/// What a field can be given.
pub trait Value {
    /// Whether it is text.
    const TEXT: bool;
    /// Bytes of a number.
    const SIZE: usize;

    /// The number, or the address of the text.
    fn word(self) -> u64;
}

macro_rules! numbers {
    ($($ty:ty),+) => {
        $(impl Value for $ty {
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

/// Text of the program's own; its last byte becomes its end if nothing is before.
impl<const N: usize> Value for &mut [u8; N] {
    const TEXT: bool = true;
    const SIZE: usize = 0;

    #[inline(always)]
    fn word(self) -> u64 {
        self[N - 1] = 0;
        self.as_ptr() as u64
    }
}

/// Text in the kernel, such as a task's name: an address that is read as `bpf_probe_read_kernel_str` does.
impl Value for *const u8 {
    const TEXT: bool = true;
    const SIZE: usize = 0;

    #[inline(always)]
    fn word(self) -> u64 {
        self as u64
    }
}

/// Bytes of a number of a type as definitions have it; 0 for text.
///
/// # Panics
/// At compile time, for a type that there is none of, or that cannot be emitted.
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

/// Whether a Rust type goes with a type of definitions.
pub const fn fits<V: Value>(ty: &str) -> bool {
    let size = size(ty);
    V::TEXT == (size == 0) && V::SIZE == size
}

/// Emits an event: stages the values, and lets `jump` go to the mirror's program.
///
/// # Errors
/// When the event is on and could not be emitted.
#[inline(always)]
pub fn emit<const N: usize>(
    state: &Array<Emitting>,
    stage: &PerCpuArray<Stage>,
    layout: u64,
    values: [u64; N],
    jump: impl FnOnce() -> i32,
) -> Result<(), Refused> {
    const { assert!(N <= EMIT_FIELDS, "more fields than a synthetic event has") };
    let Some(state) = state.get(0) else { return Ok(()) };
    if state.on == 0 {
        return Ok(());
    }
    if state.layout != layout {
        return Err(Refused::Fields);
    }
    let Some(stage) = stage.get_ptr_mut(0) else { return Ok(()) };
    // SAFETY: the stage is this CPU's; whoever finds that it was free has it until it is given back below.
    unsafe {
        let busy = &raw mut (*stage).busy;
        let mut before = 1_u64;
        core::arch::asm!("{value} = xchg_64({busy} + 0, {value})", value = inout(reg) before, busy = in(reg) busy);
        if before != 0 {
            let lost = &raw mut (*stage).lost;
            core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) lost, in(reg) 1_u64);
            return Err(Refused::Busy);
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

/// Jumps to the program that stands in a table. It comes back to the caller of the function that this is inlined into, which is
/// to be a function of its own, and to return a number: the kernel wants both, and types that say so.
#[inline(always)]
pub fn jump<C: EbpfContext>(ctx: &C, table: &aya_ebpf::maps::ProgramArray) -> i32 {
    // SAFETY: nothing is left to be dropped where it does not come back.
    unsafe { table.tail_call(ctx, 0) };
    0
}

/// Says what a synthetic event is, and the kind of programs that emit it: a module with a function `trace`.
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

            // A jump that comes back needs a function of its own.
            #[inline(never)]
            fn jump(ctx: &$crate::synth_event!(@context $kind)) -> i32 {
                $crate::jump(ctx, &TABLE)
            }

            /// Emits the event where it is on.
            ///
            /// # Errors
            /// When it is on and could not be emitted.
            #[inline(always)]
            pub fn trace(
                ctx: &$crate::synth_event!(@context $kind),
                $($field: $value),+
            ) -> Result<(), $crate::Refused> {
                let values = [$($crate::Value::word($field)),+];
                $crate::emit(&STATE, &STAGE, LAYOUT, values, || jump(ctx))
            }
        }
    };
}

/// Emits a synthetic event that [`synth_event!`] has told of: its module, the program's context, and a value for each field.
#[macro_export]
macro_rules! synth_event_trace {
    ($module:ident, $ctx:expr, $($value:expr),+ $(,)?) => {
        $module::trace($ctx, $($value),+)
    };
}
