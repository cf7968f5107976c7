//! The eBPF side of tracer: templates that generated functions are linked into.
//!
//! `probe/` has one template per probe kind. They share the path of a hit (`emit.rs`), the rings (`ring.rs`), the
//! maps (`map.rs`) and the information about the interrupted context (`ctx.rs`). `support/` has programs that record nothing. Templates call
//! the event-specific parts, the filter and the construction of the record, as `extern "C"` functions that
//! `tracer_user::code::link` defines. User space creates every map and inserts its descriptor. The map definitions
//! here provide names only.
#![feature(asm_experimental_arch)]
#![no_std]
#![no_main]

mod ctx;
mod emit;
mod map;
mod parameters;
mod probe;
mod ring;
mod support;
mod trigger;

/// GPL-compatible, as the helpers require.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Unreachable: no code here panics, and the verifier would reject the loop.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
