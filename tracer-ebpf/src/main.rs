//! The eBPF side of tracer: templates that generated functions are linked into.
//!
//! One template a probe kind under `probe/`; what they share is the path of a hit (`emit.rs`), the maps
//! (`map.rs`) and what can be known about the interrupted context (`ctx.rs`). What varies from event to event,
//! the filter and the record's making, is not here: templates call `extern "C"` functions that
//! `tracer_user::code::link` defines. User space creates every map and puts its descriptor in; the definitions
//! here only give names.
#![feature(asm_experimental_arch)]
#![no_std]
#![no_main]

mod ctx;
mod emit;
mod map;
mod probe;
mod trigger;

/// GPL-compatible, as the helpers require.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// Never reached: nothing here panics, and the verifier would refuse it.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
