//! From a request to a loaded program: parameters, linked object, and companion programs.

pub(crate) mod builder;
pub(crate) mod companions;
#[cfg(test)]
mod helper_calls;
pub(crate) mod hit_actions;
pub(crate) mod inject;
pub(crate) mod kernel_read;
pub(crate) mod kernel_text;
pub(crate) mod load;
#[cfg(feature = "bpf-log")]
pub(crate) mod logs;
pub(crate) mod object;
