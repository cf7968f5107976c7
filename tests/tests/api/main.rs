//! The event API, and programs that emit events in the kernel.

mod bpf;
mod kprobe;
mod synth;
