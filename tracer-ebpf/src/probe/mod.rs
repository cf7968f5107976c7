//! One template per probe kind. A file has the name of its counterpart in `tracer_user::attach`. It contains the
//! entry and the return of a function where that file handles both.

mod fentry;
mod inject;
mod kprobe;
mod kprobe_multi;
mod raw_tp;
mod synthetic;
mod tracepoint;
mod uprobe;
