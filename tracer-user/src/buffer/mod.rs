//! Trace buffers, readers and counters.
