//! From a request to a loaded program: parameters, linked object, maps, and programs that run beside it.

pub(in crate::attach) mod builder;
pub(in crate::attach) mod companions;
pub(in crate::attach) mod hit_actions;
pub(in crate::attach) mod inject;
pub(in crate::attach) mod kernel_read;
#[cfg(feature = "bpf-log")]
pub(in crate::attach) mod logs;
pub(in crate::attach) mod maps;
pub(in crate::attach) mod object;
