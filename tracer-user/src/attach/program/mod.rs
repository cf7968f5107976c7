//! From a request to a loaded program: parameters, linked object, and companion programs.

pub(in crate::attach) mod builder;
pub(in crate::attach) mod companions;
pub(in crate::attach) mod hit_actions;
pub(in crate::attach) mod inject;
pub(in crate::attach) mod kernel_read;
#[cfg(feature = "bpf-log")]
pub(in crate::attach) mod logs;
pub(in crate::attach) mod object;
