//! Names of threads for `saved_cmdlines` and records: the name of a thread at the time of its record.
//!
//! The kernel stores the name of each recorded thread. This program records the two events that change names,
//! `task:task_newtask` and `task:task_rename`, so that the name is right at each point in time. The name of a thread
//! that existed before is read from /proc when it first appears.

use foldhash::{HashMap, HashMapExt as _};

use crate::{event::Format, kernel::proc::process_of, render::line::Tasks};

/// Maximum length of a name with its NUL, `TASK_COMM_LEN`.
const COMM_LEN: usize = 16;

/// `CLONE_THREAD` of clone(2): the new thread belongs to its creator's process.
const CLONE_THREAD: u64 = 0x0001_0000;

/// Default number of stored names: the number that fits in the 64 pages of the kernel's smallest table.
const CAPACITY: usize = 6552;

/// Maximum number of stored names: the capacity of the kernel's table for the default number of pids.
pub const CAPACITY_MAX: usize = 45_874;

/// Names and processes of threads. The threads that were unused for longest are dropped first.
#[derive(Clone, Debug)]
pub struct TaskNames {
    /// Name, and when it was last used.
    names: HashMap<i32, (Vec<u8>, u64)>,
    /// Process of a thread, if requested.
    groups: HashMap<i32, i32>,
    /// Threads created since the start, and their creator if they belong to its process: /proc does not show ended
    /// threads.
    made: HashMap<i32, Option<i32>>,
    capacity: usize,
    now: u64,
    /// Number of changes of names.
    changes: u64,
    /// Whether names are recorded (`record-cmd`).
    records: bool,
    /// Names older than this may have changed while none were recorded.
    stale: u64,
    /// The thread whose known name was used last.
    newest: Option<i32>,
}

impl Default for TaskNames {
    fn default() -> Self {
        Self {
            names: HashMap::new(),
            groups: HashMap::new(),
            made: HashMap::new(),
            capacity: CAPACITY,
            now: 0,
            changes: 0,
            records: true,
            stale: 0,
            newest: None,
        }
    }
}

/// Offsets of the fields of one of the two events.
#[derive(Clone, Copy, Debug)]
pub struct NameEvent {
    pid: usize,
    comm: usize,
    /// For `task_newtask`: offsets of the creator's thread id and the clone flags.
    maker: Option<(usize, usize)>,
}

impl NameEvent {
    /// Finds the fields: `pid` and `comm` or `newcomm`. From 6.16 on, task_rename has no `pid`, and the common one is
    /// used.
    pub fn of(format: &Format) -> Option<Self> {
        let comm = format.field("newcomm").or_else(|| format.field("comm"))?;
        let pid = format.field("pid").or_else(|| format.field("common_pid"))?;
        let maker = format.field("common_pid").filter(|maker| maker.size == 4);
        let maker = maker.zip(format.field("clone_flags").filter(|flags| flags.size == 8));
        let maker = maker.map(|(maker, flags)| (maker.offset, flags.offset));
        (comm.size == COMM_LEN && pid.size == 4).then_some(Self { pid: pid.offset, comm: comm.offset, maker })
    }
}

/// Bytes of a record at an offset.
fn bytes<const N: usize>(payload: &[u8], at: usize) -> Option<[u8; N]> {
    payload.get(at..at.checked_add(N)?)?.try_into().ok()
}

impl TaskNames {
    /// Sets whether names are recorded from now on. Known names stay.
    pub fn record(&mut self, on: bool) {
        if on && !self.records {
            self.stale = self.now + 1;
        }
        self.records = on;
        self.newest = None;
    }

    /// Reads the name from a record of such an event.
    pub fn learn(&mut self, event: NameEvent, payload: &[u8]) {
        let (Some(pid), Some(comm)) = (bytes(payload, event.pid), bytes::<COMM_LEN>(payload, event.comm))
        else {
            return;
        };
        let pid = i32::from_ne_bytes(pid);
        if let Some((maker, flags)) = event.maker
            && let (Some(maker), Some(flags)) = (bytes(payload, maker), bytes(payload, flags))
        {
            let is_thread = u64::from_ne_bytes(flags) & CLONE_THREAD != 0;
            self.made(pid, is_thread.then_some(i32::from_ne_bytes(maker)));
        }
        if !self.records {
            return;
        }
        let name = comm.split(|byte| *byte == 0).next().unwrap_or_default();
        self.name(pid, name.to_vec());
    }

    /// Adds a new thread, which belongs to the process of `maker`, or is the first thread of a new process.
    fn made(&mut self, pid: i32, maker: Option<i32>) {
        // An ended thread may have had the same id.
        self.groups.remove(&pid);
        if self.made.len() >= self.capacity {
            self.made.clear();
        }
        self.made.insert(pid, maker);
    }

    /// The process of a thread that was created since the start or still exists.
    fn group_of(&self, pid: i32) -> Option<i32> {
        let mut thread = pid;
        // Follows the creators; a reused id may lead to a cycle.
        for _ in 0..self.made.len() {
            match self.made.get(&thread) {
                Some(Some(maker)) => thread = *maker,
                Some(None) => return Some(thread),
                None => break,
            }
            if let Some(group) = self.groups.get(&thread) {
                return Some(*group);
            }
        }
        thread_group(pid).or_else(|| thread_group(thread))
    }

    /// Maximum number of stored names.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the maximum number of stored names.
    pub fn set_capacity(&mut self, names: usize) {
        self.capacity = names.min(CAPACITY_MAX);
        self.forget();
    }

    fn name(&mut self, pid: i32, name: Vec<u8>) {
        self.now += 1;
        self.changes += 1;
        self.newest = None;
        self.names.insert(pid, (name, self.now));
        // Not for every name, because finding the oldest scans all names.
        if self.names.len() > self.capacity + self.capacity / 4 {
            self.forget();
        }
    }

    fn forget(&mut self) {
        if self.names.len() > self.capacity {
            let mut ages: Vec<u64> = self.names.values().map(|(_, age)| *age).collect();
            ages.sort_unstable();
            self.changes += 1;
            self.newest = None;
            let oldest = ages.iter().nth_back(self.capacity.max(1) - 1).copied().unwrap_or_default();
            self.names.retain(|_, (_, age)| *age >= oldest);
        }
        let names = &self.names;
        self.groups.retain(|pid, _| names.contains_key(pid));
    }

    /// Looks up the thread of a record, if it is unknown.
    #[inline]
    pub fn look_up(&mut self, pid: i32, wants_group: bool) {
        // Most records have the thread of the one before.
        if pid != 0 && (self.newest != Some(pid) || wants_group) {
            self.look_up_other(pid, wants_group);
        }
    }

    fn look_up_other(&mut self, pid: i32, wants_group: bool) {
        if let Some((_, age)) =
            self.names.get_mut(&pid).filter(|(_, age)| !self.records || *age >= self.stale)
        {
            self.now += 1;
            // A name that may have changed is looked up again when names are recorded again.
            if self.records {
                *age = self.now;
            }
            self.newest = Some(pid);
        } else if self.records
            && let Ok(shown) = std::fs::read(format!("/proc/{pid}/comm"))
        {
            self.name(pid, task_comm(shown));
        }
        if wants_group
            && !self.groups.contains_key(&pid)
            && let Some(group) = self.group_of(pid)
        {
            self.groups.insert(pid, group);
        }
    }

    /// Like [`Self::look_up`], for a thread whose name and process were looked up when it wrote a record.
    pub fn record_known(&mut self, pid: i32, comm: &[u8], group: Option<i32>) {
        self.newest = None;
        if pid != 0
            && self.records
            && !comm.is_empty()
            && self.names.get(&pid).is_none_or(|(_, age)| *age < self.stale)
        {
            self.name(pid, comm.to_vec());
        }
        if let Some((_, age)) = self.names.get_mut(&pid).filter(|_| self.records) {
            self.now += 1;
            *age = self.now;
        }
        if let Some(group) = group {
            self.groups.entry(pid).or_insert(group);
        }
    }

    /// All known names, by thread.
    pub fn names(&self) -> impl Iterator<Item = (i32, &[u8])> {
        self.names.iter().map(|(pid, (name, _))| (*pid, name.as_slice()))
    }

    /// All known processes, by thread.
    pub fn groups(&self) -> impl Iterator<Item = (i32, i32)> {
        self.groups.iter().map(|(pid, group)| (*pid, *group))
    }
}

/// A thread's name as in the kernel, from the text of /proc. There a kernel thread has its full name, and a worker also
/// shows its work (`proc_task_name()`, `wq_worker_comm()`).
fn task_comm(mut shown: Vec<u8>) -> Vec<u8> {
    shown.pop_if(|last| *last == b'\n');
    if shown.starts_with(b"kworker/") && !shown.starts_with(b"kworker/R-") {
        let end = shown.iter().position(|byte| matches!(byte, b'-' | b'+')).unwrap_or(shown.len());
        shown.truncate(end);
    }
    shown.truncate(COMM_LEN - 1);
    shown
}

/// The process of a thread that still exists. The owner of the tree calls this for threads of records, which may be
/// ending, so `process_of` takes no reference to their address space. The same is true of `comm` above.
pub(super) fn thread_group(pid: i32) -> Option<i32> {
    process_of(pid.try_into().ok()?).ok()?.try_into().ok()
}

impl Tasks for TaskNames {
    fn comm(&self, pid: i32) -> Option<&[u8]> {
        if pid == 0 {
            return Some(b"<idle>");
        }
        self.names.get(&pid).map(|(name, _)| name.as_slice())
    }

    fn tgid(&self, pid: i32) -> Option<i32> {
        self.groups.get(&pid).copied()
    }

    fn version(&self) -> Option<u64> {
        Some(self.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_proc_are_cut_to_those_in_the_kernel() {
        for (shown, comm) in [
            ("bash\n", "bash"),
            ("rcu_tasks_trace_kthread\n", "rcu_tasks_trace"),
            ("kworker/u8:2-events_unbound\n", "kworker/u8:2"),
            ("kworker/0:1H+kblockd\n", "kworker/0:1H"),
            ("kworker/R-mm_percpu_wq\n", "kworker/R-mm_pe"),
        ] {
            assert_eq!(task_comm(shown.as_bytes().to_vec()), comm.as_bytes());
        }
    }

    #[test]
    fn the_names_unused_for_longest_are_dropped() {
        let mut names = TaskNames::default();
        names.set_capacity(100);
        for pid in 1..=1000 {
            names.name(pid, vec![b'x']);
            names.look_up(1, false);
        }
        names.forget();
        assert_eq!(names.names().count(), 100);
        assert!(names.comm(1).is_some() && names.comm(1000).is_some() && names.comm(500).is_none());
    }

    #[test]
    fn names_are_learned_from_records() {
        let text = "name: task_rename\nID: 9\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:char oldcomm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
            \tfield:char newcomm[16];\toffset:24;\tsize:16;\tsigned:0;\n\nprint fmt: \"\"\n";
        let event = NameEvent::of(&Format::parse("task", text).unwrap()).unwrap();
        let mut record = vec![0; 40];
        record[4..8].copy_from_slice(&77_i32.to_ne_bytes());
        record[24..28].copy_from_slice(b"new!");
        let mut names = TaskNames::default();
        names.learn(event, &record);
        assert_eq!(names.comm(77), Some(&b"new!"[..]));
        assert_eq!(names.comm(0), Some(&b"<idle>"[..]));
        names.learn(event, &record[..20]);
        assert_eq!(names.comm(20), None);
    }

    #[test]
    fn ended_threads_keep_their_process() {
        let text = "name: task_newtask\nID: 9\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:pid_t pid;\toffset:8;\tsize:4;\tsigned:1;\n\
            \tfield:char comm[16];\toffset:12;\tsize:16;\tsigned:0;\n\
            \tfield:unsigned long clone_flags;\toffset:32;\tsize:8;\tsigned:0;\n\nprint fmt: \"\"\n";
        let event = NameEvent::of(&Format::parse("task", text).unwrap()).unwrap();
        let record = |maker: i32, pid: i32, flags: u64| {
            let mut record = vec![0; 40];
            record[4..8].copy_from_slice(&maker.to_ne_bytes());
            record[8..12].copy_from_slice(&pid.to_ne_bytes());
            record[32..40].copy_from_slice(&flags.to_ne_bytes());
            record
        };
        // Ids that no thread has, so /proc lacks them.
        let base = 1 << 30;
        let mut names = TaskNames::default();
        names.learn(event, &record(1, base, 0));
        names.learn(event, &record(base, base + 1, CLONE_THREAD));
        names.learn(event, &record(base + 1, base + 2, CLONE_THREAD | 0x100));
        names.learn(event, &record(base + 2, base + 3, 0x100));
        for pid in base..base + 4 {
            names.look_up(pid, false);
        }
        assert_eq!(names.groups().count(), 0, "not asked for");
        for (pid, group) in [(base + 2, base), (base + 1, base), (base + 3, base + 3), (base, base)] {
            names.look_up(pid, true);
            assert_eq!(names.tgid(pid), Some(group));
        }
        // The id is reused. Two threads that seem to have created each other belong to no process.
        names.learn(event, &record(base + 3, base + 1, CLONE_THREAD));
        names.look_up(base + 1, true);
        assert_eq!(names.tgid(base + 1), Some(base + 3));
        names.learn(event, &record(base + 5, base + 4, CLONE_THREAD));
        names.learn(event, &record(base + 4, base + 5, CLONE_THREAD));
        names.look_up(base + 4, true);
        assert_eq!(names.tgid(base + 4), None);
    }
}
