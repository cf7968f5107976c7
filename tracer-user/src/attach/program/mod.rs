//! From a request to a loaded program: parameters, linked object, and companion programs.

pub(in crate::attach) mod builder;
pub(in crate::attach) mod companions;
#[cfg(test)]
mod helper_calls;
pub(in crate::attach) mod hit_actions;
pub(in crate::attach) mod inject;
pub(in crate::attach) mod kernel_read;
pub(in crate::attach) mod kernel_text;
#[cfg(feature = "bpf-log")]
pub(in crate::attach) mod logs;
pub(in crate::attach) mod object;
