//! `saved_cmdlines_size`: how many names of threads are kept.

use rustix::io::Errno;

use crate::{
    engine::instance::words,
    fs::entry::{Entry, Shows},
};

/// More than any kernel's pids by default (`PID_MAX_DEFAULT`): nobody can ask for more.
const MOST: u64 = 0x8000;
/// The kernel keeps the names in a run of pages whose number is a power of two, behind a table of pids (`struct
/// saved_cmdlines_buffer`, kernel/trace/trace_sched_switch.c): bytes of the table, and of a name with its pid.
const TABLE: usize = 131_096;
const NAME: usize = 20;
const PAGE: usize = 4096;

/// The number of names that fit the pages which so many names take.
fn rounded(names: usize) -> usize {
    let pages = (TABLE + names * NAME).div_ceil(PAGE).next_power_of_two();
    (pages * PAGE - TABLE) / NAME
}

pub(super) const FILE: Entry = Entry::write(
    "saved_cmdlines_size",
    Shows::Text(|mirror, _| Ok(format!("{}\n", mirror.tasks.kept()).into_bytes())),
    |mirror, _, data| {
        let names = words::number(data)?;
        if names == 0 || names > MOST {
            return Err(Errno::INVAL);
        }
        mirror.tasks.keep(rounded(names as usize));
        mirror.touch();
        Ok(data.len())
    },
)
.top();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        // As 6.18 shows them.
        for (asked, shown) in
            [(1, 6552), (128, 6552), (6552, 6552), (6553, 19659), (19660, 45874), (32768, 45874)]
        {
            assert_eq!(rounded(asked), shown, "{asked}");
        }
        assert_eq!(rounded(MOST as usize), crate::engine::tasks::KEPT_MAX);
    }
}
