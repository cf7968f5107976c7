//! Files about the threads of records: their names and their processes.

use rustix::io::Errno;

use super::entry::{Entry, ReadKind, Update, lines};
use crate::engine::{Command, instances::words};

/// The kernel's default maximum of pids (`PID_MAX_DEFAULT`), which also limits the number of names.
const MOST: u64 = 0x8000;
/// The kernel keeps the names in a run of pages whose number is a power of two, behind a table of pids (`struct
/// saved_cmdlines_buffer`, kernel/trace/trace_sched_switch.c): bytes of the table, and of a name with its pid.
const TABLE: usize = 131_096;
const NAME: usize = 20;
const PAGE: usize = 4096;

/// `saved_cmdlines`: the names of the threads of records.
pub(super) const SAVED_CMDLINES: Entry = Entry::read(
    "saved_cmdlines",
    ReadKind::Seq(|engine, _| {
        let mut text = Vec::new();
        for (pid, name) in engine.tasks.names() {
            text.extend(format!("{pid} ").bytes());
            text.extend_from_slice(name);
            text.push(b'\n');
        }
        Ok(text)
    }),
)
.updates(Update::AllRecords)
.top();

/// `saved_cmdlines_size`: how many names of threads are kept.
pub(super) const SAVED_CMDLINES_SIZE: Entry = Entry::write(
    "saved_cmdlines_size",
    ReadKind::Text(|engine, _| Ok(lines([engine.tasks.capacity()]))),
    |engine, data| {
        let names = words::number(data)?;
        if names == 0 || names > MOST {
            return Err(Errno::INVAL);
        }
        engine.take(data, Command::SavedNames(rounded(names as usize)))
    },
)
.top();

/// `saved_tgids`: the processes of the threads of records. The option `record-tgid` enables it.
pub(super) const SAVED_TGIDS: Entry = Entry::read(
    "saved_tgids",
    ReadKind::Seq(|engine, _| Ok(lines(engine.tasks.groups().map(|(pid, group)| format!("{pid} {group}"))))),
)
.updates(Update::AllRecords)
.top();

/// The number of names that fit into the pages which `names` names take.
fn rounded(names: usize) -> usize {
    let pages = (TABLE + names * NAME).div_ceil(PAGE).next_power_of_two();
    (pages * PAGE - TABLE) / NAME
}

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
        assert_eq!(rounded(MOST as usize), crate::engine::tasks::CAPACITY_MAX);
    }
}
