//! The user events that there are, the files that registered them, and the address spaces that asked for their state.

use std::collections::{BTreeMap, HashMap};

use rustix::io::Errno;

use super::{page::Page, spaces::Spaces};
use crate::{
    attach::{TaskOffsets, Tasks, ids},
    engine::{
        client_memory::{ClientMemory, Ticket},
        facts::Facts,
        quota::{Charge, Kind, Quotas},
    },
    event::{EventId, InstanceId, user::Event},
};

/// A user event.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) event: Event,
    /// Its fields, as [`fields_key`](crate::event::user::fields_key) has them.
    pub(super) fields: String,
    /// Its place among all dynamic events.
    pub(super) serial: u64,
    /// It stays when nobody holds it.
    pub(super) persists: bool,
    /// Where it stays, it outlives the daemon as well.
    pub(super) saved: bool,
    /// What its maker's uid has of it.
    pub(super) _charges: [Charge; 2],
    /// Files that have registered it.
    pub(super) files: usize,
    /// Its bit in the page, where somebody asked for one.
    pub(super) bit: Option<u32>,
    /// Whether an instance has it on, when programs were last told.
    pub(super) on: bool,
    /// When that changed (`CLOCK_MONOTONIC`).
    pub(super) changed: u64,
}

/// An entry in a file's table of events: what a write begins with is its place there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) event: EventId,
    /// It was registered by the 6.1 interface, which does not refuse writes while the event is off.
    pub(super) first_age: bool,
}

/// An open file's table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) held: Vec<Held>,
    /// Places by event.
    pub(super) places: HashMap<EventId, u32>,
    pub(super) _charge: Charge,
}

/// The events of a name.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) single: Option<EventId>,
    /// Those of which there may be several, by their fields.
    pub(super) formats: BTreeMap<String, EventId>,
}

/// What changed for programs.
#[derive(Debug, Default)]
pub struct PendingUpdates {
    /// Bits in memory are being written.
    pub ticket: Option<Ticket>,
    /// The page changed.
    pub page: bool,
}

/// All user events.
#[derive(Debug, Default)]
pub struct UserEvents {
    pub(super) known: BTreeMap<EventId, Known>,
    pub(super) names: HashMap<String, Named>,
    pub(super) files: HashMap<u64, Table>,
    pub(super) next_file: u64,
    pub(super) next_multi: u64,
    pub(super) page: Page,
    pub(super) spaces: Spaces,
    pub(super) news: PendingUpdates,
    /// Events that lost a holder and may have none any more.
    pub(super) loose: Vec<EventId>,
    /// When any of them was last turned on or off (`CLOCK_MONOTONIC`).
    pub(super) changed: u64,
    /// What instances had on when programs were last told: their numbers and how often that had changed.
    pub(super) told: Vec<(InstanceId, u64)>,
}

impl UserEvents {
    /// Whether a program registered an event.
    pub(in crate::engine) fn has(&self, event: EventId) -> bool {
        self.known.contains_key(&event)
    }

    /// Events of a name, the oldest first.
    pub(super) fn named(&self, name: &str) -> Vec<EventId> {
        let Some(named) = self.names.get(name) else { return Vec::new() };
        let mut all: Vec<EventId> = named.single.into_iter().chain(named.formats.values().copied()).collect();
        all.sort_by_key(|event| self.known.get(event).map(|known| known.serial));
        all
    }

    /// Whether a file or a process holds an event, or an instance has it on.
    pub(super) fn is_busy(&self, event: EventId, on: bool) -> bool {
        on || self.spaces.is_used(event) || self.known.get(&event).is_some_and(|known| known.files > 0)
    }

    /// An event may have nobody any more who holds it.
    pub(in crate::engine) fn loosen(&mut self, event: EventId) {
        self.loose.push(event);
    }

    /// Whether there is none.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Lines of `dynamic_events`, of all events or of those that outlive the daemon; with the place of each among all dynamic events.
    pub(in crate::engine) fn lines(&self, lasting: bool) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let meant = self.known.values().filter(move |known| known.persists && known.saved || !lasting);
        meant.map(|known| (known.serial, known.event.read_back().into_bytes()))
    }

    /// Sets how the memory of programs is reached.
    pub fn reach_by(&mut self, memory: ClientMemory, quotas: &Quotas) {
        self.spaces.reach_by(memory, quotas.clone());
    }

    /// A new open `user_events_data` of a uid.
    ///
    /// # Errors
    /// `ENOMEM` when the uid has as many as it may have: the only error that the kernel's can have.
    pub fn open(&mut self, uid: u32, quotas: &Quotas) -> Result<u64, Errno> {
        let charge = quotas.charge(uid, Kind::UserEventFiles, 1).map_err(|_| Errno::NOMEM)?;
        self.next_file += 1;
        let table = Table { held: Vec::new(), places: HashMap::new(), _charge: charge };
        self.files.insert(self.next_file, table);
        Ok(self.next_file)
    }

    /// The page that programs map.
    pub fn page(&self) -> &[u8] {
        self.page.bytes()
    }

    /// Clears the bits of all enabled events in the memory of programs, because the daemon ends.
    pub fn end_reports(&mut self) -> Option<Ticket> {
        let mut ticket = None;
        for (event, known) in &self.known {
            if known.on {
                self.spaces.tell(*event, false, &mut ticket);
            }
        }
        ticket
    }

    /// Tasks and address spaces that take part, and open files.
    pub fn counts(&self) -> (usize, usize, usize) {
        let (tasks, spaces) = self.spaces.counts();
        (tasks, spaces, self.files.len())
    }

    /// What becomes readable when something happens to tasks that take part.
    pub(in crate::engine) fn ring(&self) -> Option<&crate::sys::bpf::ring::RingMemory> {
        self.spaces.followed().map(Tasks::ring)
    }

    /// Begins to follow tasks. Where ids are not those that programs in the kernel see, nobody is followed: who registers is told
    /// all the same, its children are not.
    pub(super) fn follow(&mut self, facts: &Facts) {
        if self.spaces.followed().is_some() || !ids::is_initial() {
            return;
        }
        let Some(offsets) = task_offsets(facts) else { return };
        match Tasks::follow(offsets, None) {
            Ok(tasks) => self.spaces.set_followed(tasks),
            Err(cause) => tracing::warn!("processes of user events are not followed: {cause}"),
        }
    }
}

/// What following tasks needs of the kernel's structures.
fn task_offsets(facts: &Facts) -> Option<TaskOffsets> {
    let btf = facts.btf()?;
    let offset = |of, name| Some(btf.member(of, name).ok()??.offset);
    let task = |name| offset("task_struct", name);
    let live = offset("signal_struct", "live")?;
    Some(TaskOffsets { tgid: task("tgid")?, mm: task("mm")?, signal: task("signal")?, live })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use tracer_abi::{TaskEvent, task_event};

    use super::*;
    use crate::buffer::clock::monotonic;

    #[test]
    fn processes_are_followed_and_not_threads() {
        let Some(offsets) = Facts::running().ok().and_then(|facts| task_offsets(&facts)) else {
            return eprintln!("skipped: no BTF");
        };
        let mut tasks = match Tasks::follow(offsets, None) {
            Ok(tasks) => tasks,
            Err(cause) => return eprintln!("skipped: {cause}"),
        };
        // Of children that other tests have meanwhile nothing is to be seen: only one of ours is followed.
        let start = || Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut shell = Command::new("sh").args(["-c", "cat; exit"]).stdin(Stdio::piped()).spawn().unwrap();
        let (parent, mark) = (shell.id(), monotonic());
        tasks.add(parent, mark).unwrap();
        assert_eq!(tasks.mark(parent), Some(mark));
        tasks.remove(parent, mark + 1);
        assert_eq!(tasks.mark(parent), Some(mark), "of another process");
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!(tasks.mark(parent), None, "it ended");
        let (news, lost) = tasks.news(1000);
        assert!(!lost);
        let end = TaskEvent { kind: task_event::GONE, task: parent, other: 0, shares: 0, time: mark };
        assert_eq!(news.iter().rfind(|event| event.task == parent), Some(&end));
        // All births have their ends, with the same mark.
        let of = |kind| news.iter().filter(move |event| event.kind == kind);
        for birth in of(task_event::FORK) {
            assert!(birth.time > mark && birth.task == parent, "{news:?}");
            let ends = of(task_event::GONE).filter(|end| (end.task, end.time) == (birth.other, birth.time));
            assert_eq!(ends.count(), 1, "{news:?}");
        }
        // Threads of a process that takes part are nobody, and it does so until the last of them is gone.
        let own = std::process::id();
        tasks.add(own, mark).unwrap();
        for _ in 0..100 {
            std::thread::spawn(|| {}).join().unwrap();
        }
        let mut child = start();
        let born = |news: &[TaskEvent]| news.iter().any(|event| event.other == child.id());
        let (news, _) = tasks.news(1000);
        // Other tests have children too, but not threads that are some.
        assert!(born(&news) && tasks.mark(own) == Some(mark), "{news:?}");
        assert!(
            news.len() < 100 && news.iter().all(|event| event.task != own || event.kind == task_event::FORK)
        );
        tasks.remove(own, mark);
        assert_eq!(tasks.mark(own), None);
        drop(child.stdin.take());
        child.wait().unwrap();
        // What is not taken stays.
        let (news, _) = tasks.news(0);
        assert!(news.is_empty());
        assert!(tasks.news(1).0.len() <= 1);
    }
}
