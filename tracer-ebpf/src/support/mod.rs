//! Programs that record nothing: they locate the preempt count, follow tasks, and dispatch system calls to templates.

mod context;
mod follow;
mod syscalls;
mod tasks;
