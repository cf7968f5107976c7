//! Maps through which external BPF programs emit a synthetic event. Each map is pinned under the event's name plus a
//! suffix. The mirror and the loader of the external program open the pinned map. The first of them creates it.

/// Maximum number of fields of a synthetic event.
pub const EMIT_FIELDS: usize = 64;

/// Suffixes of the map names: an array with one [`Emitting`], a per-CPU array with one [`Stage`], and one program array
/// per kind of emitting program. The only program in such an array copies the values into the mirror.
pub mod pins {
    /// Array with one [`super::Emitting`].
    pub const STATE: &str = "_state";
    /// Per-CPU array with one [`super::Stage`].
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

/// Whether programs emit the event.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emitting {
    /// 1 if the event is enabled in an instance, else 0.
    pub on: u32,
    /// Always 0.
    pub pad: u32,
    /// Hash of the fields, computed by [`layout`] over type, space, name and semicolon of each field.
    pub layout: u64,
}

const _: () = assert!(size_of::<Emitting>() == 16);

/// The values of an event that a CPU is emitting.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// Not 0 while an emission on this CPU uses the values.
    pub busy: u64,
    /// Number of emissions that were lost because another one was in progress.
    pub lost: u64,
    /// Numbers, and addresses of strings and of stacks.
    pub values: [u64; EMIT_FIELDS],
}

const _: () = assert!(size_of::<Stage>() == 16 + 8 * EMIT_FIELDS);

/// Initial value of [`layout`].
pub const LAYOUT: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds text to the hash of an event's fields (FNV-1a).
pub const fn layout(mut hash: u64, text: &[u8]) -> u64 {
    let mut at = 0;
    while at < text.len() {
        hash = (hash ^ text[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}
