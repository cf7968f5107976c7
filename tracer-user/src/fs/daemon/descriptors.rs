//! The limit and the table of this process's descriptors.

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

/// Descriptors that the process's table is made for at the start: those of all events of a machine.
const DESCRIPTORS: u64 = 16_384;

/// Takes all descriptors that we may have: each event that is on costs two, each probe some, each process that is told of user
/// events one. Who may raise what may be had takes as many as there can be.
///
/// To be called while there is one thread: where several threads share the table, the kernel waits for all CPUs whenever it grows
/// (`expand_files()`, fs/file.c), and every thread that opens a file waits too.
pub fn allow_descriptors() {
    raise_limit();
    let last = getrlimit(Resource::Nofile).current.unwrap_or(DESCRIPTORS).min(DESCRIPTORS).saturating_sub(1);
    if let Ok(last) = i32::try_from(last)
        && let Err(error) = fcntl_dupfd_cloexec(rustix::stdio::stderr(), last)
    {
        tracing::debug!("the table of descriptors grows when it must: {error}");
    }
}

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
