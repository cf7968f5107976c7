//! User events: what programs register through `user_events_data`, and what they write into it (the kernel's
//! trace_events_user.c, and docs/reference/user-events.md).
//!
//! An event is there while somebody holds it: an open file that registered it, a process that asked to be told
//! ([`spaces`]), an instance that has it on. One that is to persist, as those of `dynamic_events` and of the 6.1
//! interface are, goes when it is deleted. Nothing here waits for anybody: what must be read from a program's memory is read
//! before, and what must be written is handed to [`ClientMemory`](crate::engine::client_memory::ClientMemory), whose ticket tells when it is.

mod asked;
mod caller;
mod page;
mod record;
mod register;
mod spaces;
pub(in crate::engine) mod user_events;

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use rustix::io::Errno;

pub use caller::{Access, Answer, Caller, Request};
pub use register::{Layout, Registered, Registration};
pub use user_events::{PendingUpdates, UserEvents};

use self::page::EVENTS_MAX;
use crate::{
    buffer::clock::monotonic,
    engine::{Engine, registry::table::EventChanges},
    event::{
        EventId, InstanceId,
        user::{MULTI_SYSTEM, SYSTEM},
    },
    lang::{ctype, define::Line, user::Command},
};

/// Nanoseconds after a change in which a child process may have been born with the state before.
const SETTLING: u64 = 2_000_000_000;
/// How long births and ends are taken in at a time; and where somebody asks for something, who is to be among those that are known.
const SLICE: Duration = Duration::from_millis(5);
const SLICE_OF_REQUEST: Duration = Duration::from_millis(25);

impl Engine {
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

    /// Learns what became of tasks that take part, and what of that changes for programs. Bits that are to be written since the
    /// last call are on their way, and events that nobody holds any more are gone. Where there is more to learn than can be at a
    /// time, this is asked for again (`ClientMemory::on_attention`).
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
