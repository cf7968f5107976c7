//! User events: what programs register through `user_events_data`, and what they write into it (the kernel's
//! trace_events_user.c, and docs/reference/user-events.md).
//!
//! An event is there while somebody holds it: an open file that registered it, a process that asked to be told
//! ([`spaces`]), an instance that has it on. One that is to persist, as those of `dynamic_events` and of the 6.1
//! interface are, goes when it is deleted. Nothing here waits for anybody: what must be read from a program's memory is read
//! before, and what must be written is handed to [`ClientMemory`], whose [`Ticket`] tells when it is.

mod asked;
mod caller;
mod page;
mod record;
mod register;
mod spaces;

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    time::{Duration, Instant},
};

use rustix::io::Errno;

pub use caller::{Access, Answer, Caller, Request};
pub use register::{Layout, Registered, Registration};

use self::{
    page::{EVENTS_MAX, Page},
    spaces::Spaces,
};
use crate::{
    attach::{TaskOffsets, Tasks, ids},
    buffer::clock::monotonic,
    engine::{
        Engine,
        client_memory::{ClientMemory, Ticket},
        facts::Facts,
        quota::{Charge, Kind},
        registry::table::EventChanges,
    },
    event::{
        EventId, InstanceId,
        user::{Event, MULTI_SYSTEM, SYSTEM},
    },
    lang::{ctype, define::Line, user::Command},
};

/// Nanoseconds after a change in which a child process may have been born with the state before.
const SETTLING: u64 = 2_000_000_000;
/// How long births and ends are taken in at a time; and where somebody asks for something, who is to be among those that are known.
const SLICE: Duration = Duration::from_millis(5);
const SLICE_OF_REQUEST: Duration = Duration::from_millis(25);

/// A user event.
#[derive(Debug)]
struct Known {
    event: Event,
    /// Its fields, as [`fields_key`](crate::event::user::fields_key) has them.
    fields: String,
    /// Its place among all dynamic events.
    serial: u64,
    /// It stays when nobody holds it.
    persists: bool,
    /// Where it stays, it outlives the daemon as well.
    saved: bool,
    /// What its maker's uid has of it.
    _charges: [Charge; 2],
    /// Files that have registered it.
    files: usize,
    /// Its bit in the page, where somebody asked for one.
    bit: Option<u32>,
    /// Whether an instance has it on, when programs were last told.
    on: bool,
    /// When that changed (`CLOCK_MONOTONIC`).
    changed: u64,
}

/// An entry in a file's table of events: what a write begins with is its place there.
#[derive(Clone, Copy, Debug)]
struct Held {
    event: EventId,
    /// It was registered by the 6.1 interface, which does not refuse writes while the event is off.
    first_age: bool,
}

/// An open file's table.
#[derive(Debug)]
struct Table {
    held: Vec<Held>,
    /// Places by event.
    places: HashMap<EventId, u32>,
    _charge: Charge,
}

/// The events of a name.
#[derive(Debug, Default)]
struct Named {
    single: Option<EventId>,
    /// Those of which there may be several, by their fields.
    formats: BTreeMap<String, EventId>,
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
pub(in crate::engine) struct UserEvents {
    known: BTreeMap<EventId, Known>,
    names: HashMap<String, Named>,
    files: HashMap<u64, Table>,
    next_file: u64,
    next_multi: u64,
    page: Page,
    spaces: Spaces,
    news: PendingUpdates,
    /// Events that lost a holder and may have none any more.
    loose: Vec<EventId>,
    /// When any of them was last turned on or off (`CLOCK_MONOTONIC`).
    changed: u64,
    /// What instances had on when programs were last told: their numbers and how often that had changed.
    told: Vec<(InstanceId, u64)>,
}

impl UserEvents {
    /// Whether a program registered an event.
    pub(in crate::engine) fn has(&self, event: EventId) -> bool {
        self.known.contains_key(&event)
    }

    /// Events of a name, the oldest first.
    fn named(&self, name: &str) -> Vec<EventId> {
        let Some(named) = self.names.get(name) else { return Vec::new() };
        let mut all: Vec<EventId> = named.single.into_iter().chain(named.formats.values().copied()).collect();
        all.sort_by_key(|event| self.known.get(event).map(|known| known.serial));
        all
    }

    /// Whether a file or a process holds an event, or an instance has it on.
    fn is_busy(&self, event: EventId, on: bool) -> bool {
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
}

/// What following tasks needs of the kernel's structures.
fn task_offsets(facts: &Facts) -> Option<TaskOffsets> {
    let btf = facts.btf()?;
    let offset = |of, name| Some(btf.member(of, name).ok()??.offset);
    let task = |name| offset("task_struct", name);
    let live = offset("signal_struct", "live")?;
    Some(TaskOffsets { tgid: task("tgid")?, mm: task("mm")?, signal: task("signal")?, live })
}

impl Engine {
    /// Reaches programs' memory by this from now on.
    pub fn user_reach_by(&mut self, memory: ClientMemory) {
        self.user.spaces.reach_by(memory, self.quotas.clone());
    }

    /// A new open `user_events_data` of a uid.
    ///
    /// # Errors
    /// `ENOMEM` when the uid has as many as it may have: the only error that the kernel's can have.
    pub fn user_open(&mut self, uid: u32) -> Result<u64, Errno> {
        let charge = self.quotas.charge(uid, Kind::UserEventFiles, 1).map_err(|_| Errno::NOMEM)?;
        self.user.next_file += 1;
        let table = Table { held: Vec::new(), places: HashMap::new(), _charge: charge };
        self.user.files.insert(self.user.next_file, table);
        Ok(self.user.next_file)
    }

    /// It is closed.
    pub fn user_close(&mut self, file: u64) {
        for held in self.user.files.remove(&file).map(|table| table.held).unwrap_or_default() {
            if let Some(known) = self.user.known.get_mut(&held.event) {
                known.files -= 1;
            }
            self.user_let_go(held.event);
        }
    }

    /// What `user_events_status` reads. Events that have a bit stand behind it, as on 6.1, others as later kernels show them.
    pub fn user_status(&self) -> Vec<u8> {
        let mut text = String::new();
        let mut busy = 0;
        for (event, known) in &self.user.known {
            if let Some(bit) = known.bit {
                let _ = write!(text, "{bit}:");
            }
            text += &known.event.tracepoint();
            if self.all().any(|state| state.is_enabled(*event)) {
                text += " # Used by ftrace";
                busy += 1;
            }
            text.push('\n');
        }
        let _ = write!(text, "\nActive: {}\nBusy: {busy}\nMax: {EVENTS_MAX}\n", self.user.known.len());
        text.into_bytes()
    }

    /// The page that programs map.
    pub fn user_page(&self) -> &[u8] {
        self.user.page.bytes()
    }

    /// Learns what became of tasks that take part, and what of that changes for programs. Bits that are to be written since the
    /// last call are on their way, and events that nobody holds any more are gone. Where there is more to learn than can be at a
    /// time, this is asked for again ([`ClientMemory::on_attention`]).
    pub fn user_news(&mut self) -> PendingUpdates {
        self.user_news_within(SLICE)
    }

    fn user_news_within(&mut self, slice: Duration) -> PendingUpdates {
        if self.user.known.is_empty() && self.user.spaces.is_empty() {
            return std::mem::take(&mut self.user.news);
        }
        let user = &mut self.user;
        user.spaces.attend(|event| user.known.get(&event).map(|known| known.on));
        let (born, more) = user.spaces.learn(Instant::now() + slice);
        for born in born.iter().filter(|born| born.time < user.changed.saturating_add(SETTLING)) {
            let state = |event: EventId| {
                let known = user.known.get(&event)?;
                (born.time < known.changed.saturating_add(SETTLING)).then_some(known.on)
            };
            user.spaces.tell_child(born, state, &mut user.news.ticket);
        }
        if more && let Some(memory) = user.spaces.memory() {
            memory.attend_again();
        }
        self.user_tell();
        let user = &mut self.user;
        let mut loose = std::mem::take(&mut user.loose);
        loose.append(&mut user.spaces.released);
        for event in loose {
            self.user_let_go(event);
        }
        std::mem::take(&mut self.user.news)
    }

    /// Tells programs of events that are on otherwise than before. They are looked through only when an instance has others on.
    fn user_tell(&mut self) {
        let now: Vec<(InstanceId, u64)> =
            self.numbered().map(|(instance, state)| (instance, state.enabled.changes())).collect();
        if now == self.user.told {
            return;
        }
        self.user.told = now;
        let now = monotonic();
        let user = &mut self.user;
        for (event, known) in &mut user.known {
            let on = self.instances.values().any(|state| state.is_enabled(*event));
            if on == known.on {
                continue;
            }
            (known.on, known.changed) = (on, now);
            user.changed = now;
            user.spaces.tell(*event, on, &mut user.news.ticket);
            if let Some(bit) = known.bit {
                user.page.set(bit, on);
                user.news.page = true;
            }
            if !on {
                user.loose.push(*event);
            }
        }
    }

    /// Tells programs that no event is on any more, as the mirror ends.
    pub fn user_farewell(&mut self) -> Option<Ticket> {
        let mut ticket = None;
        for (event, known) in &self.user.known {
            if known.on {
                self.user.spaces.tell(*event, false, &mut ticket);
            }
        }
        ticket
    }

    /// Tasks and address spaces that take part, and open files.
    pub fn user_counts(&self) -> (usize, usize, usize) {
        let (tasks, spaces) = self.user.spaces.counts();
        (tasks, spaces, self.user.files.len())
    }

    /// What becomes readable when something happens to tasks that take part.
    pub(in crate::engine) fn user_ring(&self) -> Option<&crate::sys::bpf::ring::RingMemory> {
        self.user.spaces.followed().map(Tasks::ring)
    }

    /// Begins to follow tasks. Where ids are not those that programs in the kernel see, nobody is followed: who registers is told
    /// all the same, its children are not.
    fn user_follow(&mut self) {
        if self.user.spaces.followed().is_some() || !ids::is_initial() {
            return;
        }
        let Some(offsets) = task_offsets(&self.facts) else { return };
        match Tasks::follow(offsets, None) {
            Ok(tasks) => self.user.spaces.set_followed(tasks),
            Err(cause) => tracing::warn!("processes of user events are not followed: {cause}"),
        }
    }

    /// A holder of an event less.
    fn user_let_go(&mut self, event: EventId) {
        let on = self.is_busy(event);
        let lasts = self.user.known.get(&event).is_none_or(|known| known.persists);
        if !lasts && !self.user.is_busy(event, on) {
            self.user_remove(event);
        }
    }

    fn user_remove(&mut self, event: EventId) {
        let Some(known) = self.user.known.remove(&event) else { return };
        if let Some(bit) = known.bit {
            self.user.page.take(bit);
            self.user.news.page |= known.on;
        }
        if let Some(named) = self.user.names.get_mut(&known.event.name) {
            if known.event.multi.is_some() {
                if named.formats.get(&known.fields) == Some(&event) {
                    named.formats.remove(&known.fields);
                }
            } else {
                named.single = None;
            }
            if named.single.is_none() && named.formats.is_empty() {
                self.user.names.remove(&known.event.name);
            }
        }
        if known.persists && known.saved {
            self.touch();
        }
        let mut changes = EventChanges::default();
        self.registry.remove(event, &mut changes);
        self.apply_changes(changes);
    }

    /// Deletes the events of a name: what `DIAG_IOCSDEL` does.
    ///
    /// # Errors
    /// `ENOENT`, `EBUSY` for one that somebody holds, `EPERM` for one that is to persist and a caller who may not have made it.
    pub fn user_delete(&mut self, name: &[u8], capable: bool) -> Result<(), Errno> {
        self.user_learn();
        let named = std::str::from_utf8(name).map(|name| self.user.named(name)).unwrap_or_default();
        if named.is_empty() {
            return Err(Errno::NOENT);
        }
        for event in named {
            let on = self.is_busy(event);
            if self.user.is_busy(event, on) {
                return Err(Errno::BUSY);
            }
            // Those of the first interface persist too, and need nothing for it.
            let known = self.user.known.get(&event);
            if known.is_some_and(|known| known.persists && known.bit.is_none()) && !capable {
                return Err(Errno::PERM);
            }
            self.user_remove(event);
        }
        Ok(())
    }

    /// Takes births and ends into account that happened before now; what is to be written of it waits.
    pub(in crate::engine) fn user_learn(&mut self) {
        self.user.news = self.user_news_within(SLICE_OF_REQUEST);
    }

    /// A line of `dynamic_events` that defines a user event.
    pub(in crate::engine) fn user_define(&mut self, line: &[u8]) -> Result<(), Errno> {
        let text = line.strip_prefix(b"u:").ok_or(Errno::INVAL)?;
        let text = ctype::trim_start(text);
        self.user_find(Command::split(text)?, Registration { persists: true, multi: false }, 0, true)
            .map(drop)
    }

    /// The part of a line of `dynamic_events` that deletes user events: how many went.
    ///
    /// # Errors
    /// `EBUSY`; those before it are gone then.
    pub(in crate::engine) fn user_delete_line(&mut self, line: &Line<'_>) -> Result<usize, Errno> {
        let head = line.word(0);
        let names = match head {
            [b'-', b':', names @ ..] => names,
            [b'-', ..] => return Ok(0),
            _ => match ctype::split_once(head, |byte| byte == b':') {
                Some((_, names)) => names,
                None => return Ok(0),
            },
        };
        let Ok(names) = std::str::from_utf8(names) else { return Ok(0) };
        let (system, name) = match names.split_once('/') {
            Some((system, name)) => (Some(system), name),
            None => (None, names),
        };
        if system.is_some_and(|system| system != SYSTEM && system != MULTI_SYSTEM) {
            return Ok(0);
        }
        let words: Vec<String> =
            line.words().skip(1).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
        self.user_learn();
        let mut gone = 0;
        for event in self.user.named(name) {
            if self.user.known.get(&event).is_some_and(|known| known.event.is_meant(&words)) {
                let on = self.is_busy(event);
                if self.user.is_busy(event, on) {
                    return Err(Errno::BUSY);
                }
                self.user_remove(event);
                gone += 1;
            }
        }
        Ok(gone)
    }

    /// Takes all user events away that are nobody's, as emptying `dynamic_events` does; `EBUSY` when one is somebody's is for
    /// [`Engine::user_any_busy`] to say first.
    pub(in crate::engine) fn user_clear(&mut self) {
        for event in self.user.known.keys().copied().collect::<Vec<_>>() {
            self.user_remove(event);
        }
    }

    /// Whether somebody holds any user event.
    pub(in crate::engine) fn user_any_busy(&mut self) -> bool {
        self.user_learn();
        self.user.known.keys().any(|event| self.user.is_busy(*event, self.is_busy(*event)))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use tracer_abi::{TaskEvent, task_event};

    use super::*;

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
