//! Injection: a record made in user space takes the same filter and record path. The program is loaded as
//! `BPF_PROG_TYPE_SYSCALL` and run by `BPF_PROG_TEST_RUN` with the record as its context. The section name serves the
//! loader only.

use core::ffi::c_void;

use crate::emit::{Origin, hit};

/// Passes the record through the event's triggers and filter into the ring. This kind of program cannot record a
/// stack, so the caller performs the actions in the result, bits of [`tracer_abi::requested`].
#[unsafe(link_section = "raw_tp")]
#[unsafe(no_mangle)]
pub extern "C" fn inject(ctx: *mut c_void) -> i32 {
    hit(ctx, Origin::Record) as i32
}
