//! The unsafe code for system calls and the linker's symbols: one ioctl, and an iterator over the events of this
//! program.

use core::ffi::c_int;
use std::{io, os::fd::AsRawFd as _};

use crate::Event;

unsafe extern "C" {
    fn ioctl(fd: c_int, request: u64, ...) -> c_int;
}

/// Creates the section in a program without events.
#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = "tracer_events")]
static NONE: [u64; 0] = [];

#[cfg(target_os = "linux")]
unsafe extern "C" {
    // The linker defines these symbols for the section that contains the events.
    #[link_name = "__start_tracer_events"]
    static START: u8;
    #[link_name = "__stop_tracer_events"]
    static STOP: u8;
}

/// Calls the ioctl that registers an event with user_events, or unregisters it.
pub(crate) fn register<T>(data: &std::fs::File, request: u64, argument: *mut T) -> io::Result<()> {
    // SAFETY: callers pass the argument that the request takes (`struct user_reg`, `struct user_unreg`).
    let done = unsafe { ioctl(data.as_raw_fd(), request, argument) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The events in this program or library, as far as the linker makes them visible.
#[cfg(target_os = "linux")]
pub(crate) fn events() -> impl Iterator<Item = &'static Event> {
    let stop = (&raw const STOP).addr();
    #[expect(clippy::cast_ptr_alignment, reason = "the section is aligned as events are")]
    let mut at = (&raw const START).cast::<usize>();
    core::iter::from_fn(move || {
        while at.addr() + size_of::<Event>() <= stop {
            let place = at;
            // SAFETY: inside the section, which has events, aligned to eight bytes, and zeroes between them.
            if unsafe { place.read() } == 0 {
                at = place.wrapping_add(1);
            } else {
                at = place.cast::<Event>().wrapping_add(1).cast();
                // SAFETY: the first non-zero word is the start of an event.
                return Some(unsafe { &*place.cast::<Event>() });
            }
        }
        None
    })
}
