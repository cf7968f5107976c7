//! The processor's cycle counter.

/// The cycle counter of the CPU that this thread runs on; 0 on architectures other than x86-64.
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and the kernel allows it in user space.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        0
    }
}
