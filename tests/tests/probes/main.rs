//! Probes of functions, files and tracepoints, compared with the kernel's own.

mod files;
mod joined;
mod kernel;
mod modules;
#[cfg(target_arch = "x86_64")]
mod symbols;
mod values;
