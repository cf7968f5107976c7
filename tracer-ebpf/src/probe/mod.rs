//! One template per probe kind. A file has the name of its counterpart in `tracer_user::attach` and contains the probe
//! kinds that share it: the entry and the return of a function.

mod fentry;
mod inject;
mod kprobe;
mod kprobe_multi;
mod raw_tp;
mod synthetic;
mod tracepoint;
mod uprobe;
