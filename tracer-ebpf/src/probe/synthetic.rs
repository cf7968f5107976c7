//! A synthetic event, emitted at the hit of another event: no program of its own but a function of that hit's program, which
//! builds the record, laid out as an injected one, in memory of its own.

use core::ffi::c_void;

use crate::emit::{Origin, hit};

/// Takes a record through the synthetic event's triggers and filter into the ring buffer; `ctx` is the hook's context.
#[unsafe(link_section = "raw_tp")]
#[unsafe(no_mangle)]
pub extern "C" fn synthetic_event(record: *mut c_void, ctx: *mut c_void) -> i32 {
    hit(record, Origin::Emitted(ctx));
    0
}
