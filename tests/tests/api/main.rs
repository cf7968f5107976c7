//! The event API, and programs that emit events in the kernel.

mod bpf;
mod examples;
mod kprobe;
mod synth;
