//! The limit on open descriptors, and the size of the process's descriptor table.

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

/// The size of the descriptor table at the start, which suffices for all events of a machine.
const DESCRIPTORS: u64 = 16_384;

/// Raises the limit on open descriptors as far as possible, and makes the descriptor table large. An enabled event
/// needs two descriptors, a probe several, and a process with user events one.
///
/// Call this while the process has one thread. If several threads share the table, the kernel waits for all CPUs
/// whenever the table grows (`expand_files()`, fs/file.c), and all threads that open files wait too.
pub fn allow_descriptors() {
    raise_limit();
    let last = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS).min(DESCRIPTORS).saturating_sub(1);
    if let Ok(last) = i32::try_from(last)
        && let Err(error) = fcntl_dupfd_cloexec(rustix::stdio::stderr(), last)
    {
        tracing::debug!("the table of descriptors grows when it must: {error}");
    }
}

/// Raises the limit to the maximum of the system, or to the hard limit without the privilege to raise that.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|most| most.trim().parse().ok());
    let most = most.max(limit.maximum);
    if limit.maximum.is_some() && setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_ok()
    {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit on open files stays at {:?}: {error}", limit.current);
    }
}
