//! Maps by which programs of others emit a synthetic event. Each is pinned under the event's name and a suffix, where the mirror
//! and the loader of such a program find it, whoever comes first makes it.

/// Most fields of a synthetic event.
pub const EMIT_FIELDS: usize = 64;

/// Suffixes of the names: an array with one [`Emitting`]; a per-CPU array with one [`Stage`]; and arrays of one program, which
/// takes the values into the mirror, for each kind of program that emits.
pub mod pins {
    /// [`super::Emitting`].
    pub const STATE: &str = "_state";
    /// [`super::Stage`].
    pub const STAGE: &str = "_stage";
    /// For programs at raw tracepoints.
    pub const RAW_TP: &str = "_raw_tp";
    /// For programs at tracepoints.
    pub const TP: &str = "_tp";
    /// For programs at kprobes and uprobes.
    pub const KPROBE: &str = "_kprobe";
    /// For programs at perf events.
    pub const PERF_EVENT: &str = "_perf_event";
}

/// Whether an event is to be emitted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emitting {
    /// Whether it is on in an instance.
    pub on: u32,
    /// 0.
    pub pad: u32,
    /// What its fields are, by [`layout`]: of each the type, a blank, the name and a semicolon.
    pub layout: u64,
}

const _: () = assert!(size_of::<Emitting>() == 16);

/// The values of an event that a CPU is emitting.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// Whether an emission is on its way, which owns the values.
    pub busy: u64,
    /// Emissions that found another one on its way.
    pub lost: u64,
    /// Numbers, and addresses of texts and of stacks.
    pub values: [u64; EMIT_FIELDS],
}

const _: () = assert!(size_of::<Stage>() == 16 + 8 * EMIT_FIELDS);

/// What [`layout`] starts with.
pub const LAYOUT: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds text to what stands for an event's fields (FNV-1a).
pub const fn layout(mut hash: u64, text: &[u8]) -> u64 {
    let mut at = 0;
    while at < text.len() {
        hash = (hash ^ text[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}
