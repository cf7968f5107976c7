//! Hits with many known field values, for filters on numbers, text and the task's name.

use std::io;

use super::provoked::Count::{AtLeast, Exactly};
use super::provoked::{Provoked, at_least, syscalls};
use super::raw::seek_nowhere;
use super::site::Site;

/// Offsets of the `lseek` calls, each with every origin of [`WHENCES`].
pub(super) const OFFSETS: [i64; 14] = [
    0,
    1,
    -1,
    2,
    7,
    8,
    255,
    256,
    0x7fff_ffff,
    0x8000_0000,
    -0x8000_0000,
    i64::MAX,
    i64::MIN,
    0x1234_5678_9abc_def0,
];

/// Origins of the `lseek` calls.
pub(super) const WHENCES: [u32; 4] = [0, 2, 5, 0xffff_ffff];

/// Names that the thread sets. After each it tries to open a file of that name, which does not exist.
pub(super) const NAMES: [&str; 10] = [
    "bash",
    "bar",
    "a",
    "tracer-workload",
    "fifteen letters",
    "star*name",
    "what?",
    "[abc]",
    "UPPER",
    "x y z",
];

/// One round.
pub(super) fn run(site: &Site) -> io::Result<()> {
    for name in NAMES {
        rustix::thread::set_name(&std::ffi::CString::new(name)?)?;
        assert!(std::fs::File::open(site.dir.join(name)).is_err(), "{name} is there");
        for offset in OFFSETS {
            for whence in WHENCES {
                seek_nowhere(offset, whence);
            }
        }
    }
    rustix::thread::set_name(c"tracer-workload")?;
    Ok(())
}

/// The events that [`run`] provokes.
pub(super) fn events() -> Vec<Provoked> {
    let names = NAMES.len() as u64;
    let seeks = (OFFSETS.len() * WHENCES.len()) as u64 * names;
    let mut events =
        syscalls(&[("lseek", Exactly(seeks)), ("openat", Exactly(names)), ("prctl", Exactly(names + 1))]);
    events.extend(at_least(&[("task:task_rename", names), ("raw_syscalls:sys_enter", seeks)]));
    events.extend(syscalls(&[("mmap", AtLeast(0))]));
    events
}
