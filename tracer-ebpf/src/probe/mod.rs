//! One template per probe kind, each in a small file with the name of its counterpart in `tracer_user::attach`.

mod context;
mod fentry;
mod fexit;
mod follow;
mod inject;
mod kprobe;
mod kprobe_multi;
mod kretprobe;
mod raw_tp;
mod synthetic;
mod syscalls;
mod tasks;
mod tracepoint;
mod uprobe;
mod uretprobe;
