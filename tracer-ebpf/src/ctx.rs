//! The context that a program interrupted, for the common fields of a record.
//!
//! tracefs fills `common_flags` and `common_preempt_count` from the CPU's flags register and preempt count. BPF cannot
//! read the flags register. Interrupts count as off in a hard interrupt or NMI, and for events that occur only with
//! interrupts off ([`params::IRQS_OFF`]). Otherwise the bit is clear. The preempt count is kernel memory that `attach`
//! located (`CPU_BASES` on x86, `thread_info` elsewhere); without it the depth is 0.

use core::ffi::c_void;

use aya_ebpf::helpers::{bpf_get_current_task, generated::bpf_probe_read_kernel};
use tracer_abi::{flags, params};

use crate::{map::CPU_BASES, parameters::param};

/// Reads a `T` from kernel memory; returns zeroes if the read fails.
#[inline(always)]
pub fn read_kernel<T: Copy + Default>(address: u64) -> T {
    let mut value = T::default();
    // SAFETY: the destination is `size_of::<T>()` bytes of stack; the helper handles a fault at a bad source.
    unsafe {
        bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, address as *const c_void);
    }
    value
}

/// Flags (low byte) and preempt count (next byte) of the common fields.
#[inline(always)]
pub fn flags_and_depth(cpu: u32) -> u64 {
    let mut seen = 0_u8;
    let mut depth = 0_i32;
    let mut address = 0;
    if param!(bits) & params::PREEMPT_CPU != 0 {
        if let Some(place) = CPU_BASES.get(cpu) {
            // SAFETY: a looked-up map value is valid for the program's run.
            address = unsafe { place.read() };
        }
    } else if param!(bits) & params::PREEMPT_TASK != 0 {
        // SAFETY: no arguments.
        address = unsafe { bpf_get_current_task() } + u64::from(param!(preempt_offset));
    }
    if address != 0 {
        let (count, resched) = if param!(bits) & params::PREEMPT_SPLIT != 0 {
            let word: u64 = read_kernel(address);
            (word as u32, word >> 32 == 0)
        } else if param!(bits) & params::PREEMPT_LONG != 0 {
            let word: u64 = read_kernel(address);
            (word as u32, word >> 63 == 0)
        } else {
            let word: u32 = read_kernel(address);
            (word, word & 1 << 31 == 0)
        };
        if resched {
            seen |= flags::NEED_RESCHED | flags::PREEMPT_RESCHED;
        }
        // Layout of preempt_count: include/linux/preempt.h. The bias of the hit is subtracted from the depth alone, so
        // that a borrow cannot change the context bits.
        depth = (count & 0xff) as i32 - param!(preempt_bias) as i32;
        depth = depth.clamp(0, 0x0f);
        // Bit 31 may be that of the pending reschedule.
        let (nmi, hardirq) = if param!(bits) & params::PREEMPT_IRQS != 0 {
            (0x7000_0000, 0x0f00_0000)
        } else {
            (0x00f0_0000, 0x000f_0000)
        };
        if count & nmi != 0 {
            seen |= flags::NMI | flags::IRQS_OFF;
        }
        if count & hardirq != 0 {
            seen |= flags::HARDIRQ | flags::IRQS_OFF;
        }
        if count & 0x0000_0100 != 0 {
            seen |= flags::SOFTIRQ;
        }
        if count >> 8 & 0xff > 1 {
            seen |= flags::BH_OFF;
        }
    }
    if param!(bits) & params::IRQS_OFF != 0 {
        seen |= flags::IRQS_OFF;
    }
    u64::from(seen) | (depth as u64 & 0x0f) << 8
}
