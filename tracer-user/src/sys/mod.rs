//! The only room with `unsafe`: bpf(2), perf_event_open(2), mmap and mounts as typed calls.

pub mod mount;
