//! One template a probe kind, each a small file named as its counterpart in `tracer_user::attach`.

mod context;
mod follow;
mod inject;
mod raw_tp;
mod syscalls;
mod tracepoint;
