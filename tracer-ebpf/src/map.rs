//! The maps by name. The definitions are placeholders: user space creates the maps, sized for the machine, and links
//! their descriptors in by these names (`tracer_abi::map`).

use core::{cell::UnsafeCell, ffi::c_void, ptr::NonNull};

use aya_ebpf::{
    bindings::{
        bpf_map_def,
        bpf_map_type::{
            BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_ARRAY_OF_MAPS, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_PROG_ARRAY,
            BPF_MAP_TYPE_RINGBUF,
        },
    },
    helpers::{
        bpf_map_lookup_elem, bpf_tail_call,
        generated::{bpf_map_delete_elem, bpf_map_update_elem},
    },
};
use tracer_abi::{CLAIM_WORDS, Counters, SCRATCH_SIZE, Switches};

/// `BPF_NOEXIST`, include/uapi/linux/bpf.h.
const NOEXIST: u64 = 1;

/// A map with `u32` keys and values of type `V`.
#[repr(transparent)]
pub struct Map<V> {
    def: UnsafeCell<bpf_map_def>,
    value: core::marker::PhantomData<V>,
}

// SAFETY: the memory is only a name; the loader replaces every reference with a map.
unsafe impl<V> Sync for Map<V> {}

impl<V> Map<V> {
    const fn new(kind: u32) -> Self {
        Self {
            def: UnsafeCell::new(bpf_map_def {
                type_: kind,
                key_size: 4,
                value_size: size_of::<V>() as u32,
                max_entries: 1,
                map_flags: 0,
                id: 0,
                pinning: 0,
            }),
            value: core::marker::PhantomData,
        }
    }

    /// The map pointer for helpers.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut c_void {
        self.def.get().cast()
    }

    /// The value of a key.
    #[inline(always)]
    pub fn get(&self, key: u32) -> Option<NonNull<V>> {
        // SAFETY: the key lives through the call, and the verifier checks map and key.
        let value = unsafe { bpf_map_lookup_elem(self.def.get().cast(), (&raw const key).cast()) };
        NonNull::new(value.cast())
    }

    /// Inserts a value under a new key. Returns false if the insertion fails, for example because the key exists.
    #[inline(always)]
    pub fn insert(&self, key: u32, value: V) -> bool {
        // SAFETY: key and value live through the call.
        unsafe {
            bpf_map_update_elem(self.as_ptr(), (&raw const key).cast(), (&raw const value).cast(), NOEXIST)
                == 0
        }
    }

    /// Removes a key and its value.
    #[inline(always)]
    pub fn remove(&self, key: u32) {
        // SAFETY: the key lives through the call.
        unsafe {
            bpf_map_delete_elem(self.as_ptr(), (&raw const key).cast());
        }
    }

    /// Continues in the program at a key. Returns to the caller if there is none.
    #[inline(always)]
    pub fn tail_call(&self, ctx: *mut c_void, key: u32) {
        // SAFETY: the context is the context of this program.
        unsafe {
            bpf_tail_call(ctx.cast(), self.def.get().cast(), key);
        }
    }
}

/// The rings of records, by CPU.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static RINGS: Map<u8> = Map::new(BPF_MAP_TYPE_ARRAY);

/// CPU number to its ring buffer of control records.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static CONTROLS: Map<u32> = Map::new(BPF_MAP_TYPE_ARRAY_OF_MAPS);

/// Counts of an event on a CPU.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static COUNTERS: Map<Counters> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Words that user space and triggers change.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static SWITCHES: Map<Switches> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Threads that are traced.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static PIDS: Map<u8> = Map::new(BPF_MAP_TYPE_HASH);

/// Memory for records of variable length and for a filter's strings.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static SCRATCH: Map<[u8; SCRATCH_SIZE]> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Rows of [`SCRATCH`] that hits use.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static CLAIMED: Map<[u64; CLAIM_WORDS]> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Addresses of the CPUs' preempt counts.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static CPU_BASES: Map<u64> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Results of `support/context.rs` by CPU: an address and the word there.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static FOUND: Map<[u64; 2]> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Slots and kinds of system call events.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static CALLS: Map<u64> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Programs of system call events.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static SYSCALLS: Map<u32> = Map::new(BPF_MAP_TYPE_PROG_ARRAY);

/// Processes that take part in user events, with their start times.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static TASKS: Map<u64> = Map::new(BPF_MAP_TYPE_HASH);

/// Life-cycle events of these processes.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static TASK_RING: Map<u32> = Map::new(BPF_MAP_TYPE_RINGBUF);

/// Arguments that functions were called with. Generated functions refer to it.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static ENTRY_ARGS: Map<u64> = Map::new(BPF_MAP_TYPE_HASH);

/// The format of a symbol's name and place. Generated functions refer to it.
#[unsafe(no_mangle)]
pub static SYMBOL_FORMAT: [u8; 4] = *b"%pS\0";
