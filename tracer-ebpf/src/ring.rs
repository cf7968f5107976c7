//! A program's side of a CPU's ring ([`tracer_abi::ring`]), and its control records.

use core::{ffi::c_void, ptr::NonNull};

use aya_ebpf::helpers::{
    bpf_ktime_get_ns,
    generated::{bpf_probe_read_kernel, bpf_ringbuf_output, bpf_ringbuf_query},
};
use tracer_abi::{
    CONTROL_BYTES, control,
    ring::{self, DATA, RingWords, record_head, record_words},
};

use crate::{
    map::{CONTROLS, RINGS},
    parameters::param,
};

/// `BPF_RB_NO_WAKEUP` and `BPF_RB_FORCE_WAKEUP`, include/uapi/linux/bpf.h.
const NO_WAKEUP: u64 = 1;
const FORCE_WAKEUP: u64 = 2;
/// `BPF_RB_AVAIL_DATA`
const AVAIL_DATA: u64 = 0;

/// The ring of a CPU.
pub struct Ring {
    base: NonNull<u8>,
    cpu: u32,
}

impl RingWords for Ring {
    #[inline(always)]
    fn load(&self, word: usize) -> u64 {
        // SAFETY: the words are inside the looked-up map value.
        unsafe { self.base.add(word).cast::<u64>().read_volatile() }
    }

    #[inline(always)]
    fn store(&self, word: usize, value: u64) {
        // SAFETY: as above.
        unsafe { self.base.add(word).cast::<u64>().write_volatile(value) }
    }

    #[inline(always)]
    fn compare_exchange(&self, word: usize, old: u64, new: u64) -> u64 {
        let mut was = old;
        // SAFETY: exchanges an aligned word of the map value. This target's core library has no atomics.
        unsafe {
            core::arch::asm!(
                "r0 = cmpxchg_64({place} + 0, r0, {new})",
                place = in(reg) self.base.add(word).as_ptr(),
                new = in(reg) new,
                inout("r0") was,
            );
        }
        was
    }

    #[inline(always)]
    fn fetch_add(&self, word: usize, value: u64) -> u64 {
        let mut was = value;
        // SAFETY: as above.
        unsafe {
            core::arch::asm!(
                "{was} = atomic_fetch_add((u64 *)({place} + 0), {was})",
                place = in(reg) self.base.add(word).as_ptr(),
                was = inout(reg) was,
            );
        }
        was
    }

    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        let mut number = number;
        // SAFETY: no instruction.
        unsafe { core::arch::asm!("/* {0} */", inout(reg) number) };
        number
    }
}

impl Ring {
    /// The ring of a CPU.
    #[inline(always)]
    pub fn of(cpu: u32) -> Option<Self> {
        Some(Self { base: RINGS.get(cpu)?, cpu })
    }

    /// Reserves space for a record with this payload and writes its head. Returns the payload's place, which takes
    /// [`MAX_PAYLOAD`](tracer_abi::MAX_PAYLOAD) bytes to the verifier. `None` if there is no space.
    #[inline(always)]
    pub fn reserve(&self, time: u64, payload: u64) -> Option<*mut u64> {
        let Some(position) = ring::reserve(self, record_words(payload), u64::from(param!(ring_words))) else {
            self.wake(ring::reserved(self));
            return None;
        };
        let at = position << 3 & (u64::from(param!(ring_words)) * 8 - 1);
        // SAFETY: the record is inside the value, which has `SLACK` bytes after the ring's end.
        unsafe {
            let place = self.base.add(DATA).add(at as usize).cast::<u64>().as_ptr();
            place.write(record_head(time, payload));
            Some(place.add(1))
        }
    }

    /// Commits the record that was reserved last and is complete.
    #[inline(always)]
    pub fn commit(&self) {
        if let Some(position) = ring::commit(self, ring::step_of(u64::from(param!(ring_words)))) {
            self.wake(position);
        }
    }

    /// Writes a record whose payload is elsewhere. Returns false if there is no space.
    ///
    /// # Safety
    /// `payload` points to `length` bytes, at most [`MAX_PAYLOAD`](tracer_abi::MAX_PAYLOAD).
    #[inline(always)]
    pub unsafe fn output(&self, time: u64, payload: *const u64, length: u64) -> bool {
        let Some(place) = self.reserve(time, length) else { return false };
        // SAFETY: the place takes that many bytes.
        unsafe { bpf_probe_read_kernel(place.cast(), length as u32, payload.cast()) };
        self.commit();
        true
    }

    /// Wakes the reader if enough is unread up to this position.
    #[inline(always)]
    fn wake(&self, position: u64) {
        if ring::wants_reader(self, position, u64::from(param!(watermark)))
            && !control(self.cpu, control::FULL, 0)
        {
            ring::not_woken(self);
        }
    }
}

/// Writes a control record whose time is this many nanoseconds ago. It wakes the reader; a request for a snapshot does so
/// only if half of the space is used. Returns false if there is no space.
#[inline(never)]
pub fn control(cpu: u32, kind: u16, age: u64) -> bool {
    let Some(ring) = CONTROLS.get(cpu) else { return false };
    // SAFETY: no arguments.
    let record = [unsafe { bpf_ktime_get_ns() } - age, u64::from(kind)];
    // SAFETY: the value of the outer map is a ring.
    let used = || unsafe { bpf_ringbuf_query(ring.as_ptr().cast(), AVAIL_DATA) };
    let waits = kind == control::SNAPSHOT && used() < CONTROL_BYTES as u64 / 2;
    let flags = if waits { NO_WAKEUP } else { FORCE_WAKEUP };
    let from = (&raw const record).cast_mut().cast::<c_void>();
    // SAFETY: the record lives through the call, and the value of the outer map is a ring.
    unsafe { bpf_ringbuf_output(ring.as_ptr().cast(), from, size_of_val(&record) as u64, flags) == 0 }
}
