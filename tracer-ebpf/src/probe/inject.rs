//! Injection: a record made in user space passes the same filter and record path. The program is loaded as
//! `BPF_PROG_TYPE_SYSCALL` and run by `BPF_PROG_TEST_RUN` with the record as its context; its section name only
//! says that to nobody but the loader.

use core::ffi::c_void;

use crate::emit::{Origin, hit};

/// Takes the record through the event's triggers and filter into the ring buffer. What triggers ask for that this kind of
/// program cannot do (a stack) is for who runs it: the result is [`tracer_abi::asked`].
#[unsafe(link_section = "raw_tp")]
#[unsafe(no_mangle)]
pub extern "C" fn inject(ctx: *mut c_void) -> i32 {
    hit(ctx, Origin::Record) as i32
}
