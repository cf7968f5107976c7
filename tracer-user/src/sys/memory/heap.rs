//! How the C library's allocator shares memory among threads.

/// Makes all threads allocate from one heap.
///
/// glibc creates further heaps for threads that allocate at the same time, up to eight for each CPU. Memory freed in
/// one heap is not available to another, so a daemon whose threads occasionally build a text would keep the sum of
/// all their peaks. Other C libraries have no such heaps.
pub fn share() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: this sets an allocator parameter, before there are other threads.
        let done = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        if done == 0 {
            tracing::debug!("threads have heaps of their own");
        }
    }
}
