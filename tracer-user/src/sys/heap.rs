//! How the C library's allocator shares memory among threads.

/// Has all threads allocate from one heap. glibc gives threads that allocate at the same time heaps of their own, eight for each CPU, none
/// of which gives back what another one could use: a daemon whose threads each make a text once in a while would keep as much
/// memory as all of them together. Other C libraries have no such heaps.
pub fn share() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: this sets a number of the allocator's, before there are other threads.
        let done = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        if done == 0 {
            tracing::debug!("threads have heaps of their own");
        }
    }
}
