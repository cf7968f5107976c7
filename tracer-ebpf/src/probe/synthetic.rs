//! A synthetic event, emitted at the hit of another event. It is a function in the program of that hit, not a
//! separate program. That program builds the record in its own memory, with the layout of an injected record.

use core::ffi::c_void;

use crate::emit::{Origin, hit};

/// Passes a record through the synthetic event's triggers and filter into the ring; `ctx` is the hook's context.
#[unsafe(link_section = "raw_tp")]
#[unsafe(no_mangle)]
pub extern "C" fn synthetic_event(record: *mut c_void, ctx: *mut c_void) -> i32 {
    hit(record, Origin::Emitted(ctx));
    0
}
