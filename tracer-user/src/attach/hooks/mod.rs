//! The hooks of the kernel, one file for each kind: how a program is attached there.

pub(in crate::attach) mod calls;
pub(in crate::attach) mod fentry;
pub(in crate::attach) mod kprobe;
pub(in crate::attach) mod kprobe_multi;
pub(in crate::attach) mod syscalls;
pub(in crate::attach) mod tracepoint;
pub(in crate::attach) mod uprobe;
