//! Draining the per-CPU BPF ring buffers.
