//! The maps by name. The definitions are placeholders: user space makes the maps, with the sizes of the
//! machine, and links their descriptors in by these names (`tracer_abi::map`).

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

/// A map of keys `u32` and values `V`.
#[repr(transparent)]
pub struct Map<V> {
    def: UnsafeCell<bpf_map_def>,
    value: core::marker::PhantomData<V>,
}

// SAFETY: the memory is only a name; the loader replaces every reference by a map.
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

    /// The map, for helpers.
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

    /// Puts a value at a key that has none; false where it has.
    #[inline(always)]
    pub fn insert(&self, key: u32, value: V) -> bool {
        // SAFETY: key and value live through the call.
        unsafe {
            bpf_map_update_elem(self.as_ptr(), (&raw const key).cast(), (&raw const value).cast(), NOEXIST)
                == 0
        }
    }

    /// Takes the value of a key away.
    #[inline(always)]
    pub fn remove(&self, key: u32) {
        // SAFETY: the key lives through the call.
        unsafe {
            bpf_map_delete_elem(self.as_ptr(), (&raw const key).cast());
        }
    }

    /// Goes on in the program of a key; comes back when there is none.
    #[inline(always)]
    pub fn tail_call(&self, ctx: *mut c_void, key: u32) {
        // SAFETY: the context is the one this program was given.
        unsafe {
            bpf_tail_call(ctx.cast(), self.def.get().cast(), key);
        }
    }
}

/// CPU to its ring buffer.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static RINGS: Map<u32> = Map::new(BPF_MAP_TYPE_ARRAY_OF_MAPS);

/// Counts of an event on a CPU.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static COUNTERS: Map<Counters> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Words that user space flips.
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

/// Rows of [`SCRATCH`] that hits have which were preempted.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static CLAIMED: Map<[u64; CLAIM_WORDS]> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Addresses of the CPUs' preempt counts.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static CPU_BASES: Map<u64> = Map::new(BPF_MAP_TYPE_ARRAY);

/// What `probe/context.rs` found on a CPU: an address and the word there.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static FOUND: Map<[u64; 2]> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Slots and kinds of the events of system calls.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static CALLS: Map<u64> = Map::new(BPF_MAP_TYPE_ARRAY);

/// Programs of system calls.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static SYSCALLS: Map<u32> = Map::new(BPF_MAP_TYPE_PROG_ARRAY);

/// Processes that take part in user events, and since when.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static TASKS: Map<u64> = Map::new(BPF_MAP_TYPE_HASH);

/// What becomes of them.
#[unsafe(link_section = "maps")]
#[unsafe(no_mangle)]
pub static TASK_RING: Map<u32> = Map::new(BPF_MAP_TYPE_RINGBUF);
