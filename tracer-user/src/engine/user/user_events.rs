//! The table of user events, the files that registered them, and the address spaces with registered bits.

use std::collections::{BTreeMap, HashMap};

use super::{
    page::{Page, StatusBytes},
    spaces::Spaces,
};
use crate::{
    attach::{TaskOffsets, Tasks, ids},
    engine::{
        client_memory::{ClientMemory, Ticket},
        command::error::{CommandError, ErrorKind},
        facts::Facts,
        instances::Instances,
        quota::{Charge, Kind, Quotas},
    },
    event::{EventId, InstanceId, user::Event},
};

#[derive(Debug)]
pub(super) struct Known {
    pub(super) event: Event,
    /// Its fields in the form of [`fields_key`](crate::event::user::fields_key).
    pub(super) fields: String,
    /// Its serial number among all dynamic events.
    pub(super) serial: u64,
    /// Whether it stays without holders.
    pub(super) persists: bool,
    /// Whether a persistent event survives the daemon.
    pub(super) saved: bool,
    /// The payer that made it. Others may not delete it.
    pub(super) maker: u32,
    /// The payers that hold it, and its maker if it persists.
    pub(super) holders: BTreeMap<u32, EventHolder>,
    /// The charge of the event itself, to one of them.
    pub(super) charge: Charge,
    /// Its bit in the page, if one was requested.
    pub(super) bit: Option<u32>,
    /// Whether an instance had it enabled at the last update of programs.
    pub(super) on: bool,
    /// The time of the last change (`CLOCK_MONOTONIC`).
    pub(super) changed: u64,
}

impl Known {
    /// Whether it survives the daemon.
    pub(super) fn is_saved(&self) -> bool {
        self.persists && self.saved
    }

    pub(super) fn has_files(&self) -> bool {
        self.holders.values().any(|holding| holding.files > 0)
    }
}

/// A payer's part in an event.
#[derive(Debug)]
pub(super) struct EventHolder {
    /// Number of files that registered the event.
    pub(super) files: usize,
    _count: Charge,
    /// The bytes of the definition.
    pub(super) bytes: Charge,
}

impl EventHolder {
    /// Charges a payer for an event. `bytes` charges it for the definition.
    ///
    /// # Errors
    /// `EMFILE` if the payer has too many events (as `user_event_parse()`), and the error of `bytes`.
    pub(super) fn new(
        quotas: &Quotas,
        payer: u32,
        bytes: impl FnOnce() -> Result<Charge, CommandError>,
    ) -> Result<Self, CommandError> {
        let count = quotas.charge(payer, Kind::HeldEvents, 1).map_err(|_| ErrorKind::TooMany)?;
        Ok(Self { files: 0, _count: count, bytes: bytes()? })
    }
}

/// An entry in a file's table of events. A write begins with its index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) event: EventId,
    pub(super) payer: u32,
    /// Whether it was registered by the 6.1 interface, which accepts writes while the event is disabled.
    pub(super) first_age: bool,
}

/// The table of an open file.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) held: Vec<Held>,
    /// Indices by event.
    pub(super) places: HashMap<EventId, u32>,
    /// The charge of the file, to the payer that opened it.
    file: Charge,
    /// The charge of the entries, to the same payer.
    entries: Option<Charge>,
    /// The last writer, and its `stat` file.
    pub(super) writer: Option<(u32, std::fs::File)>,
}

impl Table {
    /// Charges the payer that opened the file for one more entry.
    ///
    /// # Errors
    /// `ENOMEM` at the limit, as if the kernel cannot allocate a longer table (`user_events_ref_add()`).
    pub(super) fn charge_entry(&self, quotas: &Quotas) -> Result<Charge, CommandError> {
        let charge = quotas.charge(self.file.payer(), Kind::TableEntries, 1);
        charge.map_err(|_| ErrorKind::NoMemory.into())
    }

    /// Adds an entry with its charge. Returns its index.
    pub(super) fn add(&mut self, held: Held, charge: Charge) -> u32 {
        let index = self.held.len() as u32;
        self.places.insert(held.event, index);
        self.held.push(held);
        match &mut self.entries {
            Some(entries) => entries.absorb(charge),
            None => self.entries = Some(charge),
        }
        index
    }
}

/// The events of one name.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) single: Option<EventId>,
    /// Events that may have several formats, by their fields.
    pub(super) formats: BTreeMap<String, EventId>,
}

/// Updates for programs.
#[derive(Debug, Default)]
pub struct PendingUpdates {
    /// Writes of bits that are in progress.
    pub ticket: Option<Ticket>,
    /// Whether the page changed.
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
    /// Events that lost a holder and may have none.
    pub(super) unheld: Vec<EventId>,
    /// The time of the last change of any event (`CLOCK_MONOTONIC`).
    pub(super) changed: u64,
    /// The instances at the last update of programs: their numbers and change counts.
    pub(super) reported: Vec<(InstanceId, u64)>,
    /// The earliest time of the next release of ids (`CLOCK_MONOTONIC`).
    pub(crate) next_release: u64,
    /// Whether the ring of tasks is new and not watched yet.
    pub(crate) new_ring: bool,
}

impl UserEvents {
    pub(crate) fn has(&self, event: EventId) -> bool {
        self.known.contains_key(&event)
    }

    pub(crate) fn is_saved(&self, event: EventId) -> bool {
        self.known.get(&event).is_some_and(Known::is_saved)
    }

    /// Events of a name, the oldest first.
    pub(super) fn named(&self, name: &str) -> Vec<EventId> {
        let Some(named) = self.names.get(name) else { return Vec::new() };
        let mut all: Vec<EventId> = named.single.into_iter().chain(named.formats.values().copied()).collect();
        all.sort_by_key(|event| self.known.get(event).map(|known| known.serial));
        all
    }

    /// Whether an event has a holder: a file, a process, or an instance that has it enabled.
    pub(super) fn is_busy(&self, event: EventId, instances: &Instances) -> bool {
        instances.is_enabled(event)
            || self.spaces.is_used(event)
            || self.known.get(&event).is_some_and(Known::has_files)
    }

    /// Releases the charges of payers that do not hold an event any more. An enabled event without holders stays
    /// charged to its last payer.
    pub(super) fn settle_payers(&mut self, event: EventId) {
        let Self { known, spaces, .. } = self;
        let Some(Known { holders, charge, persists, maker, .. }) = known.get_mut(&event) else { return };
        let holds = |payer: u32, holding: &EventHolder| {
            holding.files > 0 || spaces.is_used_by(event, payer) || (*persists && payer == *maker)
        };
        if !holders.iter().any(|(payer, holding)| holds(*payer, holding)) {
            return holders.retain(|payer, _| *payer == charge.payer());
        }
        holders.retain(|payer, holding| holds(*payer, holding));
        if let Some(payer) = holders.keys().next().copied().filter(|_| !holders.contains_key(&charge.payer()))
        {
            charge.pass_to(payer);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Lines of `dynamic_events` with their serial numbers, of all events or of those that survive the daemon.
    pub(crate) fn lines(&self, lasting: bool) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let meant = self.known.values().filter(move |known| known.is_saved() || !lasting);
        meant.map(|known| (known.serial, known.event.read_back().into_bytes()))
    }

    /// Sets how the memory of programs is accessed.
    pub fn set_memory(&mut self, memory: ClientMemory, quotas: &Quotas) {
        self.spaces.set_memory(memory, quotas.clone());
    }

    /// Adds an open `user_events_data` of a payer.
    ///
    /// # Errors
    /// `ENOMEM` if the payer has reached its limit: the only error that the kernel's open can return.
    pub fn open(&mut self, payer: u32, quotas: &Quotas) -> Result<u64, CommandError> {
        let file = quotas.charge(payer, Kind::UserEventFiles, 1).map_err(|_| ErrorKind::NoMemory)?;
        self.next_file += 1;
        let table = Table { held: Vec::new(), places: HashMap::new(), file, entries: None, writer: None };
        self.files.insert(self.next_file, table);
        Ok(self.next_file)
    }

    /// The page that programs map.
    pub fn page(&self) -> &StatusBytes {
        self.page.bytes()
    }

    /// Clears the bits of all enabled events in the memory of programs, because the daemon ends.
    pub fn end_reports(&mut self) -> Option<Ticket> {
        let mut ticket = None;
        for (event, known) in &self.known {
            if known.on {
                self.spaces.report(*event, false, &mut ticket);
            }
        }
        ticket
    }

    /// Number of processes, address spaces and open files.
    #[cfg(any(test, feature = "internals"))]
    pub fn counts(&self) -> (usize, usize, usize) {
        let (tasks, spaces) = self.spaces.counts();
        (tasks, spaces, self.files.len())
    }

    /// The ring that becomes readable when processes with registrations change.
    pub(crate) fn ring(&self) -> Option<&crate::sys::bpf::ring::RingMemory> {
        self.spaces.follow.as_ref().map(Tasks::ring)
    }

    /// Starts to follow processes. If this pid namespace differs from the one that programs in the kernel see,
    /// processes are not followed: the process that registered is updated, but its children are not.
    pub(super) fn follow(&mut self, facts: &Facts) {
        if self.spaces.follow.is_some() || !ids::is_initial() {
            return;
        }
        let Some(offsets) = task_offsets(facts) else { return };
        match Tasks::follow(offsets, facts.preempt_guard()) {
            Ok(tasks) => {
                self.spaces.follow = Some(tasks);
                self.new_ring = true;
            }
            Err(cause) => tracing::warn!("cannot follow processes of user events: {cause}"),
        }
    }
}

/// Offsets of the kernel structures that following needs.
fn task_offsets(facts: &Facts) -> Option<TaskOffsets> {
    let btf = facts.btf()?;
    let offset = |of, name| Some(btf.member(of, name).ok()??.offset);
    let task = |name| offset("task_struct", name);
    let live = offset("signal_struct", "live")?;
    Some(TaskOffsets { tgid: task("tgid")?, mm: task("mm")?, signal: task("signal")?, live })
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        process::{Command, Stdio},
    };

    use tracer_abi::{TaskEvent, task_event};

    use super::*;
    use crate::buffer::clock::monotonic;

    #[test]
    fn processes_are_followed_and_not_threads() {
        let facts = match Facts::running() {
            Ok(facts) => facts,
            Err(cause) => return eprintln!("skipped: tracefs: {cause}"),
        };
        let Some(offsets) = task_offsets(&facts) else {
            return eprintln!("skipped: btf: the types of tasks are not known");
        };
        let mut tasks = match Tasks::follow(offsets, None) {
            Ok(tasks) => tasks,
            Err(cause) => return eprintln!("skipped: cap_bpf: {cause}"),
        };
        // Children of other tests must not appear: only one of this test's children is followed.
        let start = || Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo; cat; exit"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        // `spawn` may return before the execution of the shell is complete, which would end its part.
        shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
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
        // Each birth has its end, with the same mark.
        let of = |kind| news.iter().filter(move |event| event.kind == kind);
        for birth in of(task_event::FORK) {
            assert!(birth.time > mark && birth.task == parent, "{news:?}");
            let ends = of(task_event::GONE).filter(|end| (end.task, end.time) == (birth.other, birth.time));
            assert_eq!(ends.count(), 1, "{news:?}");
        }
        // Threads are not listed as processes, and a process takes part until its last thread ends.
        let own = std::process::id();
        tasks.add(own, mark).unwrap();
        for _ in 0..100 {
            std::thread::spawn(|| {}).join().unwrap();
        }
        let mut child = start();
        let born = |news: &[TaskEvent]| news.iter().any(|event| event.other == child.id());
        let (news, _) = tasks.news(1000);
        // Other tests have children too, but none of them is a thread of this process.
        assert!(born(&news) && tasks.mark(own) == Some(mark), "{news:?}");
        assert!(
            news.len() < 100 && news.iter().all(|event| event.task != own || event.kind == task_event::FORK)
        );
        tasks.remove(own, mark);
        assert_eq!(tasks.mark(own), None);
        drop(child.stdin.take());
        child.wait().unwrap();
        // Remaining events stay in the ring.
        let (news, _) = tasks.news(0);
        assert!(news.is_empty());
        assert!(tasks.news(1).0.len() <= 1);
    }
}
